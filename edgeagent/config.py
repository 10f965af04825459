"""What did the operator ask for, and is it sound?

Options and a plan in TOML say the same things: a plan's `[sweep]` and `[engines.NAME]` are read
first, options override them, and everything is checked in one place. Every refusal is one
sentence that names where the value came from (UsageError, exit status 2).
"""

from __future__ import annotations

import difflib
import hashlib
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError

from edgeagent.core.model import EngineKind, EngineSpec, Limits, Slo, SweepSpec, WorkloadSpec
from edgeagent.core.plan import both
from edgeagent.errors import UsageError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # the same code under its older name

MAX_CONCURRENCY = 1024
_MAX_TOKENS = 10_000_000


@dataclass(frozen=True)
class Access:
    """How to get into a server that somebody else runs. Paths only: secrets stay in their files."""

    api_key_file: str | None = None
    cacert: str | None = None

    def api_key(self) -> str | None:
        """The key's text; UsageError when the file cannot be read or is empty."""
        if self.api_key_file is None:
            return None
        path = Path(self.api_key_file)
        try:
            key = path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(
                f"--api-key-file {path} cannot be read ({why(error)}): give a readable text file"
            ) from error
        if not key:
            raise UsageError(f"--api-key-file {path} is empty: put the key on its first line")
        return key


@dataclass(frozen=True)
class SweepRequest:
    """A sweep as asked for: the question, and where its answer goes."""

    spec: SweepSpec
    access: Mapping[str, Access] = field(default_factory=dict)
    """By engine id."""


def _numbers(value: object) -> object:
    """`1,4,8` as [1, 4, 8]; anything else is left for the type check."""
    if isinstance(value, str):
        parts = [part.strip() for part in value.split(",")]
        if not all(part.lstrip("-").isdigit() for part in parts):
            raise ValueError("write whole numbers with commas between them, like 1,4,8")
        return parts
    return [value] if isinstance(value, int) else value


def _words(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _limits(value: object) -> object:
    """`ttft=1.0,tpot=0.1` as a table."""
    if not isinstance(value, str):
        return value
    pairs = [part.partition("=") for part in value.split(",")]
    return {name.strip(): number.strip() for name, _, number in pairs}


_Level = Annotated[int, Field(ge=1, le=MAX_CONCURRENCY)]
_Seconds = Annotated[float, Field(gt=0, le=1e7, allow_inf_nan=False)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class SloKeys(_Strict):
    """Limits a good request keeps, in seconds."""

    ttft: _Seconds | None = None
    tpot: _Seconds | None = None
    e2e: _Seconds | None = None


class SweepKeys(_Strict):
    """`[sweep]` of a plan; the options of `edgeagent sweep` have the same names."""

    concurrency: Annotated[list[_Level], BeforeValidator(_numbers), Field(min_length=1)] = [
        1,
        4,
        8,
        16,
    ]
    context: Annotated[int, Field(ge=1, le=_MAX_TOKENS)] | None = None
    prefix_tokens: Annotated[int, Field(ge=0, le=_MAX_TOKENS)] = 256
    prompt_tokens: Annotated[int, Field(ge=0, le=_MAX_TOKENS)] = 64
    output_tokens: Annotated[int, Field(ge=1, le=_MAX_TOKENS)] = 64
    prompts: str | None = None
    chat: bool = False
    requests: Annotated[int, Field(ge=1, le=10_000_000)] | None = None
    seconds: _Seconds | None = None
    shape: Literal["sustained", "fanout"] = "sustained"
    repeats: Annotated[int, Field(ge=1, le=1000)] = 3
    warmup: Annotated[int, Field(ge=0, le=100_000)] | None = None
    prefix_cache: Literal["on", "off", "both"] = "both"
    speculation: Annotated[list[str], BeforeValidator(_words), Field(min_length=1)] = ["off"]
    slo: Annotated[SloKeys, BeforeValidator(_limits)] = SloKeys()
    timeout: _Seconds = 300.0
    idle_timeout: _Seconds = 120.0
    cell_timeout: _Seconds | None = None
    sweep_timeout: _Seconds | None = None
    start_timeout: _Seconds = 600.0
    cooldown: Annotated[float, Field(ge=0, le=86_400, allow_inf_nan=False)] = 1.0
    seed: int = 20260101
    device: Literal["auto", "cpu", "gpu"] = "auto"
    strict: bool = False
    memory_slots: Annotated[list[_Level], BeforeValidator(_numbers)] = []
    memory_repeats: Annotated[int, Field(ge=0, le=100)] = 2
    settle: Annotated[float, Field(ge=0, le=600, allow_inf_nan=False)] = 3.0
    canary: Annotated[int, Field(ge=0, le=1000)] = 5
    second_operator: bool = False
    capacity: bool = False


class EngineKeys(_Strict):
    """`[engines.NAME]` of a plan."""

    kind: Literal["llamacpp", "vllm", "openai", "fake"] | None = None
    binary: str | None = None
    command: Annotated[list[str], Field(min_length=1)] | None = None
    model: str | None = None
    url: str | None = None
    args: list[str] = []
    env: dict[str, str] = {}
    kv_type: str = "f16"
    slots: Annotated[int, Field(ge=1, le=MAX_CONCURRENCY)] | None = None
    api_key_file: str | None = None
    cacert: str | None = None


class PlanFile(_Strict):
    """A whole plan."""

    sweep: SweepKeys = SweepKeys()
    engines: dict[str, EngineKeys] = {}


@dataclass(frozen=True)
class EngineOptions:
    """What the command line says about engines; all strings are as typed."""

    engines: tuple[str, ...] = ()
    binaries: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    engine_args: tuple[str, ...] = ()
    kv_type: str | None = None
    slots: int | None = None
    url: str | None = None
    api_key_file: str | None = None
    cacert: str | None = None


def sweep_request(
    plan: Path | None, sweep: Mapping[str, object], engines: EngineOptions
) -> SweepRequest:
    """The sweep that plan and options together ask for. Raises UsageError."""
    document = read_plan(plan) if plan else {}
    return plan_request(document, str(plan) if plan else "plan", sweep, engines)


def plan_request(
    document: Mapping[str, Any], where: str, sweep: Mapping[str, object], engines: EngineOptions
) -> SweepRequest:
    """The sweep that a plan's tables and options together ask for. Raises UsageError.

    `where` says in errors where the tables stand; "plan" means that nobody gave any.
    """
    keys = document.get("sweep", {})
    if not isinstance(keys, dict):
        raise UsageError(f"{where}: sweep is not a table: write [sweep] and its keys below it")
    given = {name: value for name, value in sweep.items() if value is not None}
    _validated(PlanFile, document, lambda path: f"{where}: {path}")
    checked = _validated(SweepKeys, {**keys, **given}, lambda path: _origin(path, given, where))
    tables = {
        name: _validated(EngineKeys, table, lambda path: f"{where}: engines.{path}")
        for name, table in document.get("engines", {}).items()
    }
    specs, access = _engines(tables, engines)
    return SweepRequest(_spec(checked, specs, given, where), access)


def read_plan(path: Path) -> dict[str, Any]:
    """The plan's TOML as it stands. Raises UsageError."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"plan {path} cannot be read ({why(error)}): give a TOML file") from error
    try:
        return toml(text)
    except ValueError as error:
        raise UsageError(f"plan {path} is not TOML ({error}): correct that line") from error


def toml(text: str) -> dict[str, Any]:
    """The document that is written there. Raises ValueError, which names the line."""
    try:
        return dict(tomllib.loads(text))
    except RecursionError as error:
        raise ValueError("nested too deep") from error


def sweep_request_from_document(document: object, where: str) -> SweepRequest:
    """The request that a run folder's plan.json keeps. Raises UsageError when it is damaged."""
    try:
        return TypeAdapter(SweepRequest).validate_python(document)
    except ValidationError as error:
        raise UsageError(
            f"{where} does not hold a plan that this version can read "
            f"({error.error_count()} faults, first at {_path(error.errors()[0])}): "
            "start a new run"
        ) from error


# ------------------------------------------------------------------------------------- engines


def _engines(
    tables: Mapping[str, EngineKeys], options: EngineOptions
) -> tuple[tuple[EngineSpec, ...], dict[str, Access]]:
    chosen = _chosen(tables, options)
    if not chosen:
        raise UsageError(
            "no engine was named: give --engine llamacpp --model FILE.gguf, or --url URL of a "
            "server that runs already, or a plan with an [engines.NAME] table"
        )
    if options.slots is not None:
        _validated(EngineKeys, {"slots": options.slots}, lambda path: f"--{path}")
    overrides = _Overrides(options, {keys.kind for keys in chosen.values() if keys.kind})
    specs = tuple(_engine(name, overrides.apply(keys)) for name, keys in chosen.items())
    overrides.check_used()
    access = {
        name: Access(
            options.api_key_file or keys.api_key_file,
            options.cacert or keys.cacert,
        )
        for name, keys in chosen.items()
    }
    return specs, access


def _chosen(tables: Mapping[str, EngineKeys], options: EngineOptions) -> dict[str, EngineKeys]:
    if options.url is not None:
        kinds = options.engines or ("auto",)
        if len(kinds) > 1:
            raise UsageError("--url attaches to one server: name one --engine, or none")
        kind = None if kinds[0] == "auto" else _kind(kinds[0])
        return {kinds[0] if kind else "server": EngineKeys(kind=kind, url=options.url)}
    if not options.engines:
        return dict(tables)
    chosen: dict[str, EngineKeys] = {}
    for name in options.engines:
        if name in chosen:
            raise UsageError(f"--engine {name} was given twice: name each engine once")
        chosen[name] = tables[name] if name in tables else EngineKeys(kind=_kind(name))
    return chosen


def _kind(name: str) -> EngineKind:
    kinds: dict[str, EngineKind] = {
        "llamacpp": "llamacpp",
        "vllm": "vllm",
        "openai": "openai",
        "fake": "fake",
    }
    if name not in kinds:
        hint = did_you_mean(name, [kind for kind in kinds if kind != "fake"])
        raise UsageError(f"--engine {name} is not known{hint}: engines are llamacpp, vllm, openai")
    return kinds[name]


class _Overrides:
    """`[KIND=]VALUE` options: whom each one is for, and whether it was for anybody."""

    def __init__(self, options: EngineOptions, kinds: set[EngineKind]) -> None:
        self._kinds = kinds
        self._kv_type = options.kv_type
        self._slots = options.slots
        self._binaries = [self._split("--binary", text) for text in options.binaries]
        self._models = [self._split("--model", text) for text in options.models]
        self._args = [self._split("--engine-arg", text) for text in options.engine_args]
        self._unused = {
            *(("--binary", text) for text in options.binaries),
            *(("--model", text) for text in options.models),
            *(("--engine-arg", text) for text in options.engine_args),
        }

    def _split(self, option: str, text: str) -> tuple[str, str, str | None, str]:
        kind, equals, value = text.partition("=")
        if equals and kind in ("llamacpp", "vllm", "openai", "fake"):
            return option, text, kind, value
        return option, text, None, text

    def _for(self, items: list[tuple[str, str, str | None, str]], keys: EngineKeys) -> list[str]:
        values = []
        for option, text, kind, value in items:
            if kind is None or kind == keys.kind:
                self._unused.discard((option, text))
                values.append(value)
        return values

    def apply(self, keys: EngineKeys) -> EngineKeys:
        update: dict[str, object] = {}
        if binaries := self._for(self._binaries, keys):
            update["binary"] = binaries[-1]
            update["command"] = None
        if models := self._for(self._models, keys):
            update["model"] = models[-1]
        if args := self._for(self._args, keys):
            update["args"] = [*keys.args, *args]
        if self._kv_type is not None:
            update["kv_type"] = self._kv_type
        if self._slots is not None:
            update["slots"] = self._slots
        return keys.model_copy(update=update)

    def check_used(self) -> None:
        for option, text in sorted(self._unused):
            raise UsageError(
                f"{option} {text} is for an engine that is not part of this sweep: "
                f"add --engine {text.partition('=')[0]}, or leave the option out"
            )


def _engine(name: str, keys: EngineKeys) -> EngineSpec:
    kind = keys.kind
    if keys.url is not None:
        _check_url(keys.url)
        started_only = {"--binary": keys.binary, "--engine-arg": keys.args}
        for option, value in started_only.items():
            if value:
                raise UsageError(
                    f"{option} is for an engine that this sweep starts, but {keys.url} runs "
                    "already: leave one of the two out"
                )
        # None: attached.py finds out what answers there.
        return EngineSpec(name, kind or "openai", url=keys.url, model=keys.model, slots=keys.slots)
    if kind is None:
        raise UsageError(f'engines.{name} has no kind: say kind = "llamacpp", or give a url')
    if kind == "openai":
        raise UsageError(f"engine {name} of kind openai needs a server: give --url URL")
    if keys.model is None and kind != "fake":
        raise UsageError(f"engine {name} has no model: give --model FILE, or model in the plan")
    if keys.binary and keys.command:
        raise UsageError(f"engines.{name} has both binary and command: keep one of them")
    command = keys.command or [keys.binary or _default_binary(kind)]
    return EngineSpec(
        id=name,
        kind=kind,
        command=tuple(command),
        model=keys.model,
        args=tuple(keys.args),
        env=tuple(sorted(keys.env.items())),
        kv_type=keys.kv_type,
        slots=keys.slots,
    )


def _default_binary(kind: EngineKind) -> str:
    return {"llamacpp": "llama-server", "vllm": "vllm"}.get(kind, "")


def _check_url(url: str) -> None:
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(url)
        sound = parts.scheme in ("http", "https") and parts.hostname and (parts.port or 1)
    except ValueError:
        sound = None
    if not sound:
        raise UsageError(f"--url {url} is not a URL: write it like http://127.0.0.1:8080")


# --------------------------------------------------------------------------------------- the spec


def _spec(
    keys: SweepKeys, engines: tuple[EngineSpec, ...], given: Mapping[str, object], where: str
) -> SweepSpec:
    twice = sorted({n for n in keys.concurrency if keys.concurrency.count(n) > 1})
    if twice:
        raise UsageError(
            f"{_origin('concurrency', given, where)} names {twice[0]} more than once: "
            "name each level once, repeats are --repeats"
        )
    if keys.memory_slots and len(set(keys.memory_slots)) < 2:  # noqa: PLR2004  # because a line needs two places
        raise UsageError(
            f"{_origin('memory_slots', given, where)} names one slot count: what one more slot "
            "costs needs two at least, better three, like 1,4,8"
        )
    if keys.capacity and not any((keys.slo.ttft, keys.slo.tpot, keys.slo.e2e)):
        raise UsageError(
            f"{_origin('capacity', given, where)} asks how many requests are served well, and no "
            "limit says what well is: give --slo ttft=1.0,tpot=0.1, for example"
        )
    if keys.seconds is not None and keys.requests is not None:
        raise UsageError("a cell is bounded by --requests or by --seconds: give one of them")
    if keys.prefix_tokens + keys.prompt_tokens < 1:
        raise UsageError("a request needs a prompt: give --prefix-tokens or --prompt-tokens")
    for word in keys.speculation:
        if word not in ("off", "ngram") and not word.startswith("draft:"):
            raise UsageError(
                f"--speculation {word} is not known"
                f"{did_you_mean(word, ['off', 'ngram'])}: say off, ngram or draft:PATH"
            )
    prompts, prompts_sha256 = _prompts(keys.prompts)
    workload = WorkloadSpec(
        shape=keys.shape,
        prefix_tokens=keys.prefix_tokens,
        prompt_tokens=keys.prompt_tokens,
        output_tokens=keys.output_tokens,
        endpoint="chat" if keys.chat else None,
        requests=keys.requests,
        seconds=keys.seconds,
        warmup=keys.warmup,
        seed=keys.seed,
        prompts=prompts,
        prompts_sha256=prompts_sha256,
    )
    return SweepSpec(
        engines=engines,
        concurrency=tuple(keys.concurrency),
        prefix_cache=both(keys.prefix_cache),
        speculation=tuple(keys.speculation),
        repeats=keys.repeats,
        context=keys.context,
        workload=workload,
        slo=Slo(keys.slo.ttft, keys.slo.tpot, keys.slo.e2e),
        limits=Limits(
            request_s=keys.timeout,
            idle_s=min(keys.idle_timeout, keys.timeout),
            cell_s=keys.cell_timeout,
            sweep_s=keys.sweep_timeout,
            start_s=keys.start_timeout,
            settle_s=keys.settle,
        ),
        cooldown_s=keys.cooldown,
        device=keys.device,
        strict=keys.strict,
        memory_slots=tuple(sorted(set(keys.memory_slots))),
        memory_repeats=keys.memory_repeats,
        canary=keys.canary,
        second_operator="on" if keys.second_operator else "off",
        capacity="on" if keys.capacity else "off",
    )


def _prompts(path: str | None) -> tuple[tuple[Mapping[str, object], ...], str | None]:
    """Own traffic: one JSON object a line, with `prompt` or `messages`."""
    if path is None:
        return (), None
    try:
        data = Path(path).read_bytes()
        lines = data.decode("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"--prompts {path} cannot be read ({why(error)}): give a text file"
        ) from error
    prompts = tuple(
        _prompt(line, f"--prompts {path}, line {number}")
        for number, line in enumerate(lines, start=1)
        if line.strip()
    )
    if not prompts:
        raise UsageError(f"--prompts {path} is empty: give one JSON object a line")
    return prompts, hashlib.sha256(data).hexdigest()


def _prompt(line: str, where: str) -> Mapping[str, object]:
    wanted = 'is not {"prompt": "…"} or {"messages": [{"role": "user", "content": "…"}]}'
    try:
        entry = json.loads(line)
    except ValueError as error:
        raise UsageError(f"{where} {wanted} ({error})") from error
    if not isinstance(entry, dict):
        raise UsageError(f"{where} {wanted}")
    if isinstance(entry.get("prompt"), str) and entry["prompt"]:
        return {"prompt": entry["prompt"]}
    messages = entry.get("messages")
    if (
        isinstance(messages, list)
        and messages
        and all(
            isinstance(message, dict)
            and isinstance(message.get("role"), str)
            and isinstance(message.get("content"), str)
            for message in messages
        )
    ):
        return {"messages": [{"role": m["role"], "content": m["content"]} for m in messages]}
    raise UsageError(f"{where} {wanted}")


def with_kind(spec: SweepSpec, engine_id: str, kind: EngineKind) -> SweepSpec:
    """The spec once an attached server's kind has been found out."""
    engines = tuple(
        replace(engine, kind=kind) if engine.id == engine_id else engine for engine in spec.engines
    )
    return replace(spec, engines=engines)


# ------------------------------------------------------------------------------ one-sentence errors


def _validated(model: type[Any], data: object, origin: Any) -> Any:
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise UsageError(_sentence(model, error, origin)) from error


def _sentence(model: type[BaseModel], error: ValidationError, origin: Any) -> str:
    first = error.errors()[0]
    path = _path(first)
    if first["type"] == "extra_forbidden":
        name = str(first["loc"][-1])
        hint = did_you_mean(name, _known_keys(model, first["loc"]))
        return f"{origin(path)} is not a known key{hint}: see edgeagent sweep --help"
    value = first["input"]
    shown = f" {value!r}" if isinstance(value, str | int | float) else ""
    message = first["msg"].replace("Input should be", "should be")
    more = error.error_count() - 1
    others = f" ({more} more faults)" if more else ""
    message = message.removeprefix("Value error, ")
    return f"{origin(path)}:{shown} {message[0].lower()}{message[1:]}{others}"


def _known_keys(model: type[BaseModel], loc: tuple[int | str, ...]) -> list[str]:
    """Keys that would have been right where the unknown one stands."""
    if model is PlanFile and len(loc) > 1:
        model = SweepKeys if loc[0] == "sweep" else EngineKeys
    if loc[-2:-1] == ("slo",):
        model = SloKeys
    return list(model.model_fields)


def _path(fault: Any) -> str:
    return ".".join(str(part) for part in fault["loc"] if not str(part).startswith("function-"))


def _origin(path: str, given: Mapping[str, object], where: str) -> str:
    key, _, rest = path.partition(".")
    if key not in given and where != "plan":
        return f"{where}: sweep.{path}"
    option = f"--{key.replace('_', '-')}"
    return option if not rest or rest.isdigit() else f"{option}: {rest}"


def did_you_mean(word: str, known: list[str]) -> str:
    """`, did you mean X?` when one of the known words is close; else nothing."""
    close = closest(word, known)
    return f", did you mean {close}?" if close else ""


def closest(word: str, known: list[str]) -> str | None:
    """The known word that this one is nearly, or None."""
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return close[0] if close else None


def why(error: Exception) -> str:
    """Why a text file could not be read, in the operating system's words."""
    if isinstance(error, OSError):
        return (error.strerror or str(error)).lower()
    return "not UTF-8 text"
