"""What do the command line, the configuration and the documents look like, by the code itself?

    python scripts/docs_reference.py            writes docs/reference/{cli,configuration,schemas}.md
    python scripts/docs_reference.py --check    exit 1 when one of them is not what the code says

Nothing here depends on the version of Python or on the width of a terminal.
"""  # noqa: INP001  # because it is a script beside the package

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from edgeagent import app, errors
from edgeagent.cli.main import parser
from edgeagent.config import SweepKeys
from edgeagent.publish.messages import MESSAGES
from edgeagent.settings_text import PLAN_NOTES, reference

PLACE = Path(__file__).parent.parent / "docs/reference"
_MADE = "<!-- made by scripts/docs --write: edit the code, not this page -->\n"


def main(arguments: list[str]) -> int:
    """Write the pages, or say which of them are not up to date."""
    pages = {"cli.md": cli(), "configuration.md": configuration(), "schemas.md": schemas()}
    if arguments != ["--check"]:
        for name, text in pages.items():
            (PLACE / name).write_text(text, encoding="utf-8")
        return 0
    old = [name for name, text in pages.items() if _stands(name) != text]
    for name in old:
        print(f"docs/reference/{name} is not what the code says: run scripts/docs --write")  # noqa: T201  # because it is a script
    return 1 if old else 0


def _stands(name: str) -> str | None:
    path = PLACE / name
    return path.read_text(encoding="utf-8") if path.is_file() else None


# -------------------------------------------------------------------------------- the command line


def cli() -> str:
    """Every command with its arguments, options, defaults and examples."""
    top = parser()
    lines = [
        "# Command line",
        "",
        _MADE,
        "`edgeagent --help` and `edgeagent COMMAND --help` say the same. `man edgeagent` has it "
        "where the package is installed.",
        "",
        "## Exit status",
        "",
        "Of every command; what differs or is narrower stands at the command.",
        "",
        "| status | means |",
        "|---|---|",
        *(f"| {status} | {meaning} |" for status, meaning in _statuses()),
        "",
        "Errors are one sentence on standard error: what was tried, what was seen, what to do. A "
        "traceback is a mistake of ours.",
        "",
        "## Every command",
        "",
        *_arguments(top),
    ]
    for path, command, summary in _commands(top, "edgeagent"):
        lines += _command(path, command, summary)
    return _page(lines)


def _statuses() -> list[tuple[int, str]]:
    known = {
        0: "done, every cell ok",
        1: "done, but a cell failed or is suspect; `verify` or `doctor` found a fault",
        130: "interrupted (Ctrl-C); what was measured is kept and can be resumed",
        143: "terminated (SIGTERM); the same",
    }
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    for kind in kinds:
        status = getattr(kind, "exit_status", 1)
        if status not in known and kind.__doc__:
            known[status] = _started_small(kind.__doc__)
    return sorted(known.items())


def _started_small(sentence: str) -> str:
    text = " ".join(sentence.split()).rstrip(".")
    return text[0].lower() + text[1:]


def _commands(
    of: argparse.ArgumentParser, path: str
) -> Iterator[tuple[str, argparse.ArgumentParser, str]]:
    for action in of._actions:  # noqa: SLF001  # because argparse has no other way to ask
        if not isinstance(action, argparse._SubParsersAction):  # noqa: SLF001  # because the same
            continue
        helps = {choice.dest: choice.help or "" for choice in action._choices_actions}  # noqa: SLF001  # because the same
        for name, command in action.choices.items():
            yield f"{path} {name}", command, helps.get(name, "")
            yield from _commands(command, f"{path} {name}")


def _command(path: str, command: argparse.ArgumentParser, summary: str) -> Iterator[str]:
    mark = "##" if path.count(" ") == 1 else "###"
    yield f"{mark} {path}"
    yield ""
    said = " ".join((command.description or "").split()) or f"{summary[:1].upper()}{summary[1:]}."
    yield _plain(said)
    yield ""
    yield "```text"
    yield command.usage or _usage(path, command)
    yield "```"
    yield ""
    yield from _arguments(command)
    for part in (command.epilog or "").strip().split("\n\n"):
        yield from _epilogue(part)


def _usage(path: str, command: argparse.ArgumentParser) -> str:
    """Our own line: argparse's differs from version to version."""
    words = [path]
    if any(
        action.option_strings and not isinstance(action, argparse._HelpAction)  # noqa: SLF001  # because the same
        for action in command._actions  # noqa: SLF001  # because the same
    ):
        words.append("[options]")
    for action in command._actions:  # noqa: SLF001  # because the same
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001  # because the same
            words.append("COMMAND")
        elif not action.option_strings:
            words.append(_positional(action))
    return " ".join(words)


def _positional(action: argparse.Action) -> str:
    name = str(action.metavar or action.dest)
    return {"?": f"[{name}]", "*": f"[{name} ...]", "+": f"{name} [{name} ...]"}.get(
        str(action.nargs), name
    )


def _arguments(command: argparse.ArgumentParser) -> Iterator[str]:
    for group in command._action_groups:  # noqa: SLF001  # because argparse has no other way to ask
        rows = [
            _row(command, action)
            for action in group._group_actions  # noqa: SLF001  # because the same
            if not isinstance(action, argparse._SubParsersAction | argparse._HelpAction)  # noqa: SLF001  # because the same
            and action.help != argparse.SUPPRESS
        ]
        if not rows:
            continue
        title = group.title or ""
        if title not in ("options", "optional arguments", "positional arguments"):
            yield f"**{title[:1].upper()}{title[1:]}**"
            yield ""
        first = "argument" if title == "positional arguments" else "option"
        if any(default for _, default, _ in rows):
            yield f"| {first} | default | meaning |"
            yield "|---|---|---|"
            yield from (f"| {names} | {default} | {meaning} |" for names, default, meaning in rows)
        else:
            yield f"| {first} | meaning |"
            yield "|---|---|"
            yield from (f"| {names} | {meaning} |" for names, _, meaning in rows)
        yield ""


def _row(command: argparse.ArgumentParser, action: argparse.Action) -> tuple[str, str, str]:
    """Its names, its default, what it means."""
    value = ""
    if action.nargs != 0 and action.option_strings:
        choices = "|".join(map(str, action.choices)) if action.choices else None
        value = " " + str(action.metavar or choices or action.dest.upper())
    names = [f"{name}{value}" for name in action.option_strings] or [_positional(action)]
    expanded = command._get_formatter()._expand_help(action) if action.help else ""  # noqa: SLF001  # because the same
    meaning, default = _default_said(" ".join(expanded.split()))
    if not default and action.default not in (None, False, [], (), argparse.SUPPRESS, ""):
        default = str(action.default)
    if not default and command.prog.endswith(" sweep") and action.nargs != 0:
        default = _of_a_plan(action.dest)
    needed = "**required**" if action.required and action.option_strings else _plain(default)
    shown = "<br>".join(_code(name) for name in names)
    return shown, needed, _plain(meaning)


def _of_a_plan(name: str) -> str:
    """The default of a key of a plan, which its option has as well; empty for none."""
    key = SweepKeys.model_fields.get(name)
    if key is None:
        return ""
    value = key.get_default(call_default_factory=True)
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    if isinstance(value, str | int | float):
        return f"{value:g}" if isinstance(value, float) else str(value)
    return PLAN_NOTES.get(name, ("", None))[0].partition("default: ")[2]


_SAID = re.compile(r"\s*\((?:default:? )?([^()]*)\)")
_SPEAKS_OF_DEFAULT = re.compile(r"\(default|\((?:[\d,.]+|[a-z]\w*:///[^()]*|mqtt\.\w+)\)")


def _default_said(text: str) -> tuple[str, str]:
    """What an option means, and the default that its help names in brackets."""
    found = _SPEAKS_OF_DEFAULT.search(text)
    if found is None or (said := _SAID.match(text, found.start())) is None:
        return text, ""
    before, behind = text[: said.start()].rstrip(), text[said.end() :]
    default = said[1].strip()
    if not default or default == "default":
        return text, ""
    return f"{before}{behind}", default


def _epilogue(part: str) -> Iterator[str]:
    head, _, rest = part.partition("\n")
    if head.rstrip() == "examples:":
        yield "```sh"
        # what an example does stands behind it, apart by spaces
        yield from re.sub(r"(?<=\S) {2,}(?=\S)", "  # ", textwrap.dedent(rest)).splitlines()
        yield "```"
    elif head.startswith("exit status:"):
        said = " ".join(part.split()).removeprefix("exit status:").strip()
        yield f"Exit status: {_plain(said)}."
    elif part.strip():
        yield _plain(" ".join(part.split()))
    yield ""


# ------------------------------------------------------------------------------- the configuration


def configuration() -> str:
    """Every key with its default and when it takes effect."""
    return _page(
        [
            "# Configuration keys",
            "",
            _MADE,
            "What they are for, where they are written and who wins: "
            "[Configure](../configuration.md). The annotated file: "
            "[configs/edgeagent.toml](../../configs/edgeagent.toml). A program reads "
            "`edgeagent config schema`, which is a JSON Schema.",
            "",
            "## Keys",
            "",
            reference().rstrip("\n"),
        ]
    )


# ------------------------------------------------------------------------------------- the schemas


def schemas() -> str:
    """Every document and message, field by field."""
    lines = [
        "# Documents and messages",
        "",
        _MADE,
        "`edgeagent schema NAME` prints the JSON Schema of each. Within a number (`/1`) fields "
        "are only added, and none changes its type. What the numbers mean: "
        "[metrics](../metrics.md); where messages stand on the broker: [MQTT](../mqtt.md).",
        "",
        "Units stand in the names: `_s` seconds, `_bytes` bytes, `_per_s` per second; `ts`, `_ms` "
        "and `_at` of messages are milliseconds. `null` is missing.",
        "",
        "## Files of a run folder",
        "",
    ]
    for name in app.DOCUMENTS:
        lines += _schema(f"{name}.json", app.schema(name))
    lines += ["## Messages on the broker", ""]
    for name in MESSAGES:
        lines += _schema(name, app.schema(name))
    return _page(lines)


def _schema(name: str, schema: Mapping[str, Any]) -> Iterator[str]:
    yield f"### {name}"
    yield ""
    number = schema.get("$id")
    yield " ".join(
        filter(None, (f"`{number}`." if number else "", _first(schema.get("description", ""))))
    )
    yield ""
    parts = {
        part: f"{name.replace('.', '-')}-{part.lower()}"
        for part, inner in schema.get("$defs", {}).items()
        if inner.get("properties")
    }
    yield from _fields(schema, parts)
    for part, anchor in parts.items():
        inner = schema["$defs"][part]
        yield f'<a id="{anchor}"></a>**{part}**: {_first(inner.get("description", ""))}'
        yield ""
        yield from _fields(inner, parts)


def _fields(schema: Mapping[str, Any], parts: Mapping[str, str]) -> Iterator[str]:
    needed = set(schema.get("required", ()))
    yield "| field | type | always there |"
    yield "|---|---|---|"
    for name, about in schema.get("properties", {}).items():
        there = "yes" if name in needed else ""
        yield f"| `{name}` | {_type(about, parts)} | {there} |"
    yield ""


def _type(about: Mapping[str, Any], parts: Mapping[str, str]) -> str:  # noqa: PLR0911  # because JSON Schema has so many ways
    if "anyOf" in about:
        kinds = list(dict.fromkeys(_type(one, parts) for one in about["anyOf"]))
        if "number" in kinds and "integer" in kinds:
            kinds.remove("integer")
        return " or ".join(kinds)
    if "$ref" in about:
        part = str(about["$ref"]).rsplit("/", 1)[-1]
        return f"[{part}](#{parts[part]})" if part in parts else part
    if "const" in about:
        return _code(str(about["const"]))
    if "enum" in about:
        return ", ".join(_code(str(one)) for one in about["enum"])
    kind = str(about.get("type", "any"))
    if kind == "array":
        items = about.get("items") or about.get("prefixItems", [{}])[0]
        return f"list of {_type(items, parts)}"
    if kind == "object":
        values = about.get("additionalProperties")
        return f"object of {_type(values, parts)}" if isinstance(values, dict) and values else kind
    return kind


# --------------------------------------------------------------------------------------- markdown


def _first(text: str) -> str:
    """The first paragraph of a description, on one line."""
    return _plain(" ".join(text.split("\n\n", 1)[0].split()))


def _plain(text: str) -> str:
    """Text in which nothing is taken for Markdown or HTML, but for code in backticks."""
    parts = text.split("`")
    for index in range(0, len(parts), 2):
        parts[index] = re.sub(r"([*_\[\]|\\])", r"\\\1", parts[index]).replace("<", "&lt;")
    return re.sub(r"docs/([a-z-]+)\.md", r"[\1](../\1.md)", "`".join(parts))


def _code(text: str) -> str:
    """Text as code, also inside a table, where a stroke would end the cell."""
    if "|" not in text:
        return f"`{text}`"
    safe = text.replace("&", "&amp;").replace("<", "&lt;").replace("|", "&#124;")
    return f"<code>{safe}</code>"


def _page(lines: list[str]) -> str:
    return "\n".join(lines).rstrip("\n") + "\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
