"""Which flags does this llama-server understand, and which of them do we pin?

llama.cpp adds, renames and drops flags between builds, so nothing is taken for granted: a binary's
own `--help` is read once, and every flag is chosen from it. What would change memory or caching
behind our back is pinned; a flag that the binary does not know is left out and noted.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from edgeagent.core.kv import CELL_STEP
from edgeagent.core.model import EngineConfig

_FLAG = re.compile(r"(?<![\w-])--?[a-zA-Z][\w-]*")
_REMOVED = "argument has been removed"


@dataclass(frozen=True)
class KnownFlags:
    """The names of one binary's flags."""

    names: frozenset[str]

    def __contains__(self, name: str) -> bool:
        return name in self.names

    def first(self, *names: str) -> str | None:
        """The first of `names` that this binary knows."""
        return next((name for name in names if name in self.names), None)


def parse_help(text: str) -> KnownFlags:
    """The flags that a `--help` text offers; flags it lists only to say they are gone do not count.

    A flag's entry starts at the left margin and its aliases stand before the description, which
    begins after two spaces or on the next, indented line.
    """
    names: set[str] = set()
    entries = re.split(r"\n(?=-)", "\n" + text)
    for entry in entries[1:]:
        if _REMOVED in " ".join(entry.split()):
            continue
        head = entry.split("\n", 1)[0]
        aliases = re.split(r"(?<=[^,\s])\s{2,}", head, maxsplit=1)[0]
        names.update(_FLAG.findall(aliases))
    return KnownFlags(frozenset(names))


CONSERVATIVE = KnownFlags(
    frozenset({"-m", "--host", "--port", "-np", "-c", "--metrics", "-ngl", "-ctk", "-ctv"})
)
"""What every llama-server of the last years knows: for wrappers that do not pass `--help` on."""


@dataclass
class _Chosen:
    known: KnownFlags
    argv: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    pinned: set[str] = field(default_factory=set)
    """Every name of every flag that was pinned."""

    def pin(self, names: Sequence[str], *values: str, why: str | None = None) -> bool:
        """Add the first of `names` that is known; else note it, if `why` says that it matters."""
        name = self.known.first(*names)
        if name is not None:
            self.pinned.update(names)
            self.argv += [name, *values]
        elif why is not None:
            wanted = " ".join([names[0], *values])
            self.notes.append(f"this llama-server does not know {wanted}: {why}")
        return name is not None


@dataclass(frozen=True)
class FlagChoice:
    """Arguments for a launch (without model, address and port), and what could not be pinned."""

    argv: tuple[str, ...]
    notes: tuple[str, ...]


def choose_flags(
    config: EngineConfig,
    known: KnownFlags,
    sliding_window: bool | None = None,  # noqa: FBT001  # because it is a fact about the model, unknown being one of three answers
) -> FlagChoice:
    """The launch's arguments, from what the binary knows.

    `sliding_window` says whether the model has such layers; None when that is not known.
    """
    chosen = _Chosen(known)
    context = -(-config.context_per_slot // CELL_STEP) * CELL_STEP
    chosen.pin(["-np", "--parallel"], str(config.slots), why="slots are left to its default")
    chosen.pin(["-c", "--ctx-size"], str(context * config.slots), why="context is left to it")
    _pin_memory(chosen, config, sliding_window)
    _pin_cache(chosen, config)
    _pin_speculation(chosen, config)
    chosen.pin(["--metrics"])
    chosen.pin(["--slots"])
    chosen.pin(["--no-ui", "--no-webui"])
    chosen.pin(["--offline"])
    # Memory lines of the log appear from verbosity 4 on.
    chosen.pin(["-lv", "--verbosity", "--log-verbosity"], "4")
    _note_overrides(chosen, config.engine.args)
    return FlagChoice((*chosen.argv, *config.engine.args), tuple(chosen.notes))


def _pin_memory(chosen: _Chosen, config: EngineConfig, sliding_window: bool | None) -> None:  # noqa: FBT001  # because see choose_flags
    pin = chosen.pin
    # Split: each slot owns its context. Unified, the slots would share one pool and `-np` cost
    # nothing. Builds before the flag existed always split.
    pin(["--no-kv-unified", "-no-kvu"])
    # "Fitting" shrinks context and moves layers without a word at normal verbosity.
    pin(["-fit", "--fit"], "off")
    layers = "0" if config.device == "cpu" else "all" if "-fit" in chosen.known else "999"
    pin(["-ngl", "--gpu-layers", "--n-gpu-layers"], layers)
    if not pin(["-lm", "--load-mode"], "none"):
        # Mapped weights come and go with the page cache; read in, they stay what they cost.
        pin(["--no-mmap"], why="weights stay mapped, host memory is partly page cache")
    quantized = config.engine.kv_type not in ("f16", "bf16", "f32")
    if "-fit" in chosen.known:
        pin(["-fa", "--flash-attn"], "on" if quantized else "auto")
    elif quantized:
        pin(["-fa", "--flash-attn"])
    pin(["-ctk", "--cache-type-k"], config.engine.kv_type)
    pin(["-ctv", "--cache-type-v"], config.engine.kv_type)
    if config.prefix_cache == "off" or sliding_window is False:
        # Copies of a slot's state in host memory; only a warm sliding-window model needs them.
        pin(["-ctxcp", "--ctx-checkpoints", "--swa-checkpoints"], "0")


def _pin_cache(chosen: _Chosen, config: EngineConfig) -> None:
    # The host-memory prompt cache copies every finished prompt, up to 8 GiB by default.
    chosen.pin(["--cache-ram", "-cram"], "0")
    if config.prefix_cache == "on":
        chosen.pin(["--cache-prompt"])
    else:
        chosen.pin(["--no-cache-prompt"])


def _pin_speculation(chosen: _Chosen, config: EngineConfig) -> None:
    setting = config.speculation
    if setting == "off":
        return
    if setting == "ngram":
        # ngram-mod is the variant that drafts on repetitive agent traffic without a second model.
        chosen.pin(["--spec-type"], "ngram-mod", why="it runs without speculation")
        return
    draft = setting.removeprefix("draft:")
    chosen.pin(["-md", "--model-draft", "--spec-draft-model"], draft, why="no draft model is used")
    # A draft model alone is loaded and then dropped; the type switches it on.
    chosen.pin(["--spec-type"], "draft-simple")


def _note_overrides(chosen: _Chosen, args: Sequence[str]) -> None:
    for argument in args:
        name = argument.split("=", 1)[0]
        if name in chosen.pinned:
            chosen.notes.append(f"{name} was pinned and is overridden by the operator's argument")
