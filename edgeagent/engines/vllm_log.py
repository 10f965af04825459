"""What does vLLM's log say: how far a start has come, and why it failed?

The cause of a failure is not the last line: three processes fail one after another, and the last
says "See root cause above". Lines look like `(Worker pid=7) INFO 11-30 08:45:02 [file.py:1] text`.
Formats of 0.32.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Kind = Literal[
    "port_busy",
    "memory_race",  # another process gave memory back while vLLM measured how much is free
    "pool_too_small",
    "no_memory",
    "too_long",
    "unknown_flag",
    "no_model",
    "environment",
    "other",
]

_SENTENCE = 300
_LINE = 2000
_PREFIX = re.compile(
    r"^(?:\([^()]* pid=\d+\) ?)?(?:(?:INFO|WARNING|ERROR|CRITICAL|DEBUG) \S+ \S+ \[[^\]]*\] ?)?"
)

_CAUSES: tuple[tuple[Kind, re.Pattern[str]], ...] = (
    ("unknown_flag", re.compile(r"error: (?:unrecognized arguments|argument \S+:).*")),
    ("environment", re.compile(r"edgeagent: cannot run.*")),
    ("memory_race", re.compile(r"Error in memory profiling.*")),
    ("pool_too_small", re.compile(r"To serve at least one request with the model's max seq.*")),
    ("too_long", re.compile(r".*max_model_len.* is greater than the derived max_model_len.*")),
    ("no_memory", re.compile(r"Available memory on node \S+ .*is less than.*")),
    ("no_memory", re.compile(r"Free memory on device .*is less than desired.*")),
    ("no_memory", re.compile(r"No available memory for the cache blocks.*")),
    ("no_memory", re.compile(r"(?:\S*OutOfMemoryError|CUDA out of memory|MemoryError).*")),
    ("no_memory", re.compile(r".*(?:DefaultCPUAllocator: can't allocate|Cannot allocate mem).*")),
    ("port_busy", re.compile(r".*Address already in use.*")),
    ("no_model", re.compile(r"\S*(?:HFValidationError|LocalEntryNotFoundError|RepositoryNot).*")),
    ("no_model", re.compile(r".*(?:Invalid repository ID|is not a local folder and is not).*")),
    ("environment", re.compile(r"(?:ModuleNotFoundError|ImportError|\S*PackageNotFoundErr).*")),
    ("environment", re.compile(r".*No module named .*")),
    ("environment", re.compile(r".*cannot open shared object file.*")),
)
"""In order of how much they explain."""

_EXCEPTION = re.compile(r"(?:[\w.]+\.)?\w*(?:Error|Exception)(?:: .+|$)")
_ECHO = re.compile(r"See (?:root cause|stack trace) .*above|EngineDeadError|CancelledError")
"""Failures that only follow from another."""

_VALIDATION = re.compile(r"\d+ validation errors? for \S+$")
_FOLLOWED = 2

_FORWARD: dict[Kind, str] = {
    "port_busy": "start it again",
    "memory_race": "start it when nothing else on the device starts or ends",
    "pool_too_small": "give its pool room for one whole request, or shorten --context",
    "no_memory": "give it fewer slots or a shorter --context, or free memory first",
    "too_long": "shorten --context to what the model was made for",
    "unknown_flag": "leave the argument out, or use a vLLM that has it (0.32 has all of ours)",
    "no_model": "give --model the folder that holds config.json and the weights",
    "environment": "mend that environment: its python must be able to `import vllm`",
    "other": "correct that and start again",
}

_STAGES: tuple[tuple[str, str], ...] = (
    # In the order of a start; the last one that has been reached counts.
    ("non-default args", "reading the model's configuration"),
    ("Initializing a V1 LLM engine", "starting its engine"),
    ("Starting to load model", "loading weights"),
    ("Loading weights took", "weights loaded, preparing the cache"),
    ("Dynamo bytecode transform", "compiling"),
    ("Warming up model for the compilation", "compiling"),
    ("KV cache size: ", "cache made, warming up"),
    ("Capturing CUDA graphs", "capturing graphs"),
    ("init engine (", "opening its port"),
)
_PERCENT = re.compile(r"checkpoint shards: +(\d+)% Completed")
_DEVICE = re.compile(r"device_config=(\w+)")
_POOL_DEVICE = re.compile(r"\b(CPU|GPU) KV cache size: ")


@dataclass(frozen=True)
class Cause:
    """Why it failed: the kind of trouble, its own words in one line, and what to do."""

    kind: Kind
    words: str

    @property
    def forward(self) -> str:
        """What the operator can do, as a clause."""
        return _FORWARD[self.kind]


def cause(log: str) -> Cause | None:
    """The root cause that a log tells; None when it is empty."""
    lines = list(_bare(log))
    for kind, pattern in _CAUSES:
        for line in lines:
            if found := pattern.match(line) or _after_colon(pattern, line):
                return Cause(kind, _clipped(found.group(0)))
    raised = [number for number, line in enumerate(lines) if _EXCEPTION.match(line)]
    for number in [n for n in raised if not _ECHO.search(lines[n])] or raised:
        # What was invalid stands below the count of errors.
        more = _FOLLOWED if _VALIDATION.search(lines[number]) else 0
        return Cause("other", _clipped(" ".join(lines[number : number + 1 + more])))
    return Cause("other", _clipped(lines[-1])) if lines else None


def stage(log: str) -> str | None:
    """How far a start has come, in the operator's words; None before its first word."""
    said = next((text for sign, text in reversed(_STAGES) if sign in log), None)
    if said is None:
        return "importing its libraries" if log else None
    percent = _PERCENT.findall(log)
    if said == "loading weights" and percent:
        return f"{said}, {percent[-1]} %"
    return said


def device(log: str) -> Literal["cpu", "gpu"] | None:
    """Where it computes, by its own words."""
    if found := _DEVICE.search(log):
        return "cpu" if found.group(1) == "cpu" else "gpu"
    if found := _POOL_DEVICE.search(log):
        return "cpu" if found.group(1) == "CPU" else "gpu"
    return None


def _bare(log: str) -> Iterator[str]:
    """Lines without process, level and place, empty ones left out."""
    for line in log.splitlines():
        # Clipped, because searching a line takes the square of its length.
        text = _PREFIX.sub("", line[:_LINE].strip(), count=1).strip()
        if text:
            yield text


def _after_colon(pattern: re.Pattern[str], line: str) -> re.Match[str] | None:
    """A match behind `ValueError: ` or `prog.py: `, where most causes stand."""
    head, colon, _ = line.partition(": ")
    if not colon or " " in head:
        return None
    return pattern.match(line, len(head) + len(colon))


def _clipped(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _SENTENCE else text[: _SENTENCE - 1] + "…"
