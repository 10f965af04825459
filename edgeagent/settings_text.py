"""How does the configuration explain itself?

The annotated file, the reference and the JSON Schema are made from the keys' own descriptions;
a test compares them with what stands in configs/ and docs/. What is in force is shown as TOML
again, with the origin of each value behind it. Secrets are not in a configuration, and what looks
like one in an engine's environment or arguments is not shown.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from edgeagent.config import EngineKeys, SweepKeys
from edgeagent.settings import Settings, takes_effect
from edgeagent.settings_faults import is_secret
from edgeagent.settings_keys import FileKey, KeyPath, SettingsFile, field_at, inner

_HIDDEN = "(not shown)"

PLAN_NOTES: Mapping[str, tuple[str, object]] = {
    "concurrency": ("levels of simultaneous requests", None),
    "context": ("tokens per slot; default: what a request needs, rounded up to 256", 512),
    "prefix_tokens": ("shared opening of every prompt", None),
    "prompt_tokens": ("each prompt's own part", None),
    "output_tokens": ("generated per request", None),
    "prompts": (
        "own traffic, one JSON object a line; default: made from the numbers",
        "traffic.jsonl",
    ),
    "chat": ("use the chat endpoint", None),
    "requests": ("per cell; default: 20, or 4 per simultaneous request", 20),
    "seconds": ("measure each cell for so long instead of counting requests", 60.0),
    "shape": ("sustained: N always in flight; fanout: waves of N that start together", None),
    "repeats": ("each on a fresh start of the engine", None),
    "warmup": ("requests per start; default: one per simultaneous request", 16),
    "prefix_cache": ("on, off or both", None),
    "speculation": ("off, ngram or draft:PATH", None),
    "ttft": ("longest time to the first token of a good request, in seconds; default: none", 1.0),
    "tpot": ("longest time per further token of a good request, in seconds; default: none", 0.1),
    "e2e": ("longest time of a good request, in seconds; default: none", 30.0),
    "timeout": ("longest time a request may take, in seconds", None),
    "idle_timeout": ("longest silence between two tokens, in seconds", None),
    "cell_timeout": (
        "longest time of a cell, in seconds; default: every round at its limit",
        3600.0,
    ),
    "sweep_timeout": ("longest time of a sweep, in seconds; default: none", 86_400.0),
    "start_timeout": ("longest wait for an engine, in seconds", None),
    "cooldown": ("seconds between cells", None),
    "seed": ("of the generated traffic", None),
    "device": ("auto; cpu and gpu refuse the other", None),
    "strict": ("a suspect cell counts as failed, a box in doubt is refused", None),
    "memory_slots": ("slot counts, for what a slot costs; default: by the concurrencies", None),
    "memory_repeats": ("starts at each slot count; 0 leaves the cost of a slot out", None),
    "settle": ("seconds for which memory must hold still before it is read", None),
    "canary": ("requests that open and close the sweep alike, to see drift; 0: none", None),
    "second_operator": ("also send a second operator's long prompt into a running fan-out", None),
    "capacity": ("also find the most requests that keep the limits (needs slo)", None),
    "kind": ("llamacpp or vllm; openai for any server with a url", "llamacpp"),
    "binary": ("the engine's program; default: the one in PATH", "/usr/bin/llama-server"),
    "command": ("program with arguments before ours, instead of binary", ["nice", "llama-server"]),
    "model": ("GGUF file, or folder for vllm", "/var/lib/edgeagent/models/model.gguf"),
    "url": ("server that runs already, instead of binary and model", "http://127.0.0.1:8080"),
    "args": ("the engine's own arguments, after ours: they win", None),
    "env": ("variables for the engine", None),
    "kv_type": ("type of the key-value cache", None),
    "slots": ("slots of a start; default: the largest concurrency", 16),
    "api_key_file": ("file with the key of a server that wants one", "/etc/edgeagent/key"),
    "cacert": ("certificates that a server with https is checked against", "/etc/edgeagent/ca.pem"),
}
"""What the keys of a plan mean, and an example where there is no default."""

_OPENING = (
    "Configuration of edgeagent: every key, at its default (or with an example, where there is "
    "none). A key counts once its # is gone. What an OEM or a site adds belongs into conf.d/ "
    "(50-oem.toml, 90-site.toml): the last file wins. `edgeagent config check` finds mistakes, "
    "`edgeagent config show --origin` says who said what."
)
_NODE_EXAMPLE = "edge-0001"
_ABOUT = {
    "sweep": "What every profile begins with: the keys of a plan (configs/plan.toml).",
    "sweep.slo": "Limits that a good request keeps.",
    "sweep.profiles.NAME": (
        "A sweep with a name, for `edgeagent trigger NAME` and for commands. It has the keys of "
        "[sweep], which it inherits, and may have [sweep.profiles.NAME.engines.NAME] of its own; "
        "without them it measures every [engines.NAME]."
    ),
    "engines.NAME": "An engine, as in a plan.",
}


# --------------------------------------------------------------------------------- what is in force


def values_shown(settings: Settings) -> Iterator[tuple[KeyPath, object]]:
    """Every key and its value as it may be shown."""
    for path, value in settings.values():
        key = field_at(path)
        if value is None and key and any(isinstance(mark, FileKey) for mark in key.metadata):
            yield path, ""
        elif path == ("mqtt", "topic_prefix"):  # filled in it would be another box's mistake
            yield path, settings.topic_template
        else:
            yield path, _covered(path, value)


def _covered(path: KeyPath, value: object) -> object:
    if len(path) > 1 and path[-2] == "env" and is_secret(path[-1]):
        return _HIDDEN
    if path[-1] in ("args", "command") and isinstance(value, list):
        return list(_covered_words(value))
    return str(value) if isinstance(value, Path) else value


def _covered_words(words: list[str]) -> Iterator[str]:
    cover_next = False
    for word in words:
        name, equals, _ = word.partition("=")
        secret = name.startswith("-") and is_secret(name.lstrip("-"))
        if cover_next and not word.startswith("-"):
            yield _HIDDEN
        else:
            yield f"{name}={_HIDDEN}" if secret and equals else word
        cover_next = secret and not equals


def shown(settings: Settings, origins: Literal["with", "without"] = "without") -> str:
    """What is in force, as TOML; with the origin of each value as a comment behind it."""
    tables: dict[KeyPath, list[str]] = {}
    for path, value in values_shown(settings):
        line = f"# {path[-1]} is not set" if value is None else _assignment(path, value)
        if origins == "with":
            line += f"  # {settings.origins.get(path, 'default')}"
        tables.setdefault(path[:-1], []).append(line)
    return "\n".join(
        f"[{_dotted(table)}]\n" + "".join(f"{line}\n" for line in lines)
        for table, lines in tables.items()
    )


def _assignment(path: KeyPath, value: object) -> str:
    return f"{_name(path[-1])} = {_value(value)}"


def document(settings: Settings) -> dict[str, object]:
    """What is in force, for programs: values, origins, files, warnings."""
    values: dict[str, Any] = {}
    for path, value in values_shown(settings):
        table = values
        for name in path[:-1]:
            table = table.setdefault(name, {})
        table[path[-1]] = value
    return {
        "scope": settings.scope,
        "settings": values,
        "origins": {
            ".".join(path): settings.origins[path]
            for path, _ in settings.values()
            if path in settings.origins
        },
        "files": [str(path) for path in settings.files],
        "warnings": [str(fault) for fault in settings.warnings],
    }


# ------------------------------------------------------------------------------ what may be written


def schema() -> dict[str, Any]:
    """JSON Schema of a configuration file."""
    made = SettingsFile.model_json_schema()
    for name, table in made["$defs"].items():
        for key, about in table.get("properties", {}).items():
            if name in ("SweepTable", "ProfileKeys", "SloKeys", "EngineKeys") and key in PLAN_NOTES:
                about.setdefault("description", PLAN_NOTES[key][0])
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **made}


def annotated() -> str:
    """The configuration file with every key at its default, each line commented out."""
    return "\n".join(_annotated()) + "\n"


def _annotated() -> Iterator[str]:
    yield from _comment(_OPENING)
    for path, table in _tables():
        yield ""
        yield from _comment(_about(path, table))
        example = (
            ".".join(path).replace("engines.NAME", "engines.llamacpp").replace("NAME", "nightly")
        )
        yield f"[{example}]" if "NAME" not in path else f"#[{example}]"
        if path[-2:-1] == ("profiles",):
            yield "#concurrency = [1, 4, 8]"
            continue
        for name, key in _plain(table):
            yield from _comment(_meaning(name, key))
            yield f"#{name} = {_value(_default(name, key))}"


def reference() -> str:
    """The chapter about the keys, in Markdown."""
    return "\n".join(_reference())


def _reference() -> Iterator[str]:
    for path, table in _tables():
        yield f"### `[{'.'.join(path)}]`"
        yield ""
        yield _about(path, table)
        yield ""
        if path[-2:-1] == ("profiles",):
            continue
        plan = issubclass(table, SweepKeys | EngineKeys) or path[-1] == "slo"
        yield "| key | default | meaning |" + ("" if plan else " takes effect |")
        yield "|---|---|---|" + ("" if plan else "---|")
        for name, key in _plain(table):
            default = key.get_default(call_default_factory=True)
            value = "" if default in (None, "") else f"`{_value(default)}`"
            row = f"| `{name}` | {value} | {_meaning(name, key)} |"
            yield row if plan else f"{row} {_when(key)} |"
        yield ""


def _when(key: FieldInfo) -> str:
    return "after a restart" if takes_effect(key) == "restart" else "on reload"


def _tables(
    table: type[BaseModel] = SettingsFile, path: KeyPath = ()
) -> Iterator[tuple[KeyPath, type[BaseModel]]]:
    if path:
        yield path, table
    if path[-2:-1] == ("profiles",):
        return
    for name, key in table.model_fields.items():
        below, shape = inner(key.annotation)
        if below is not None:
            yield from _tables(below, (*path, name) if shape == "table" else (*path, name, "NAME"))


def _plain(table: type[BaseModel]) -> Iterator[tuple[str, FieldInfo]]:
    for name, key in table.model_fields.items():
        if inner(key.annotation)[0] is None:
            yield name, key


def _about(path: KeyPath, table: type[BaseModel]) -> str:
    return _ABOUT.get(".".join(path)) or str(table.__doc__).split("\n", maxsplit=1)[0]


def _meaning(name: str, key: FieldInfo) -> str:
    return key.description or PLAN_NOTES[name][0]


def _default(name: str, key: FieldInfo) -> object:
    """The default as it can be written, or an example where there is none to write."""
    if key.description is None and PLAN_NOTES[name][1] is not None:
        return PLAN_NOTES[name][1]
    if name == "node":
        return _NODE_EXAMPLE
    default = key.get_default(call_default_factory=True)
    return "" if default is None else default


def _comment(text: str) -> Iterator[str]:
    import textwrap  # here, because only the file's makers need it

    yield from textwrap.wrap(text, 100, initial_indent="# ", subsequent_indent="# ")


# ------------------------------------------------------------------------------------ TOML, written


def _dotted(path: KeyPath) -> str:
    return ".".join(_name(name) for name in path)


def _name(name: str) -> str:
    bare = name.isascii() and name.replace("-", "").replace("_", "").isalnum()
    return name if bare else json.dumps(name, ensure_ascii=False)


def _value(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(_value(item) for item in value)}]"
    if isinstance(value, Mapping):
        inside = ", ".join(f"{_name(str(key))} = {_value(item)}" for key, item in value.items())
        return f"{{ {inside} }}" if inside else "{}"
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
