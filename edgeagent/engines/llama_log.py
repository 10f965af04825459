"""What does llama-server's log say about memory and devices?

Its memory lines appear from verbosity 4 on and are the engine's own books: one line a buffer, with
the device that it lies on. Formats of b10434 and b11434; lines that do not match add nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

from edgeagent.core.model import ServerFacts

Kind = Literal["model", "kv", "recurrent", "compute", "output"]

MIB = 1 << 20

_BUFFER = re.compile(r": +(\S+) +(model|KV|RS|compute|output) buffer size = +(\d+\.?\d*) MiB")
_KINDS: dict[str, Kind] = {
    "model": "model",
    "KV": "kv",
    "RS": "recurrent",
    "compute": "compute",
    "output": "output",
}
_IN_MIB: tuple[Kind, ...] = ("kv", "compute", "output", "model")
_UNIFIED = re.compile(r"kv_unified += '?(\w+)'?")
_OFFLOADED = re.compile(r"offloaded (\d+)/(\d+) layers to GPU")
_NO_GPU = re.compile(r"no usable GPU found[^\n]*")
_PROJECTED = re.compile(r"projected to use (\d+) MiB of")
_TABLE = "memory breakdown [MiB]"
_ROW = re.compile(r"\| +- .*[ (](\d+) = +\d+ \+ +\d+ \+ +\d+\)? ")
_HOST = re.compile(r"CPU|AMX|\w*_Host$")


@dataclass(frozen=True)
class LogBuffer:
    """One allocation; `draft` when it is the draft model's."""

    kind: Kind
    device: str
    bytes: int
    draft: bool = False

    @property
    def on_host(self) -> bool:
        """Whether it lies in the memory of the host."""
        return _HOST.match(self.device) is not None

    def as_details(self) -> dict[str, object]:
        """The form in a launch's facts."""
        form: dict[str, object] = {"kind": self.kind, "device": self.device, "bytes": self.bytes}
        return {**form, "of": "draft"} if self.draft else form


def buffers(log: str) -> tuple[LogBuffer, ...]:
    """Every buffer of a start's log, in order.

    A draft model's lines follow the model's and look alike: they begin with its own weights, or,
    where it shares them, with a second output buffer. Compute buffers that are reserved anew take
    the place of those before.
    """
    found: list[LogBuffer] = []
    seen: set[Kind] = set()
    draft = False
    for device, word, mib in _BUFFER.findall(log):
        kind = _KINDS[word]
        if (kind == "model" and seen - {"model"}) or (kind == "output" and "output" in seen):
            draft, seen = True, set()
        seen.add(kind)
        buffer = LogBuffer(kind, device, round(float(mib) * MIB), draft)
        if kind == "compute":
            found = [b for b in found if (b.kind, b.device, b.draft) != (kind, device, draft)]
        found.append(buffer)
    return tuple(found)


def projected_bytes(log: str) -> int | None:
    """What the engine itself says it needs in all: its last memory table, else its projection.

    Precise to 1 MiB a row; None when it says neither. Only `-fit on` makes it project, and without
    that the table is printed when it ends.
    """
    _, table, rest = log.rpartition(_TABLE)
    rows = [int(found.group(1)) for line in rest.splitlines() if (found := _ROW.search(line))]
    if table and rows:
        return sum(rows) * MIB
    said = _PROJECTED.findall(log)
    return int(said[-1]) * MIB if said else None


def with_log(facts: ServerFacts, log: str) -> ServerFacts:
    """`facts` and what the start's log adds.

    Details: `buffers` (each with its device, in bytes), `KIND_buffer_mib` (summed over devices),
    `projected_bytes`, `kv_unified`, and `no_gpu` when it says that there is none.
    """
    all_buffers = buffers(log)
    details = dict(facts.details)
    for kind in _IN_MIB:
        sizes = [buffer.bytes for buffer in all_buffers if buffer.kind == kind]
        if sizes:
            details[f"{kind}_buffer_mib"] = round(sum(sizes) / MIB, 2)
    if all_buffers:
        details["buffers"] = [buffer.as_details() for buffer in all_buffers]
    if unified := _UNIFIED.findall(log):
        details["kv_unified"] = unified[-1]
    if (projected := projected_bytes(log)) is not None:
        details["projected_bytes"] = projected
    if no_gpu := _NO_GPU.search(log):
        details["no_gpu"] = no_gpu.group(0).strip()
    return _with_offload(replace(facts, details=details), log, all_buffers)


def _with_offload(facts: ServerFacts, log: str, all_buffers: tuple[LogBuffer, ...]) -> ServerFacts:
    offload = _OFFLOADED.search(log)  # the first: a draft model has a line of its own
    if offload is None:
        return facts
    layers, total = int(offload.group(1)), int(offload.group(2))
    weights = [b for b in all_buffers if b.kind == "model" and not b.draft]
    if weights and all(buffer.on_host for buffer in weights):
        # With `-ngl all` it says "offloaded 31/31 layers to GPU" on a box that has no GPU, too;
        # where the weights lie is the truth (seen: b10434, only `CPU` and `AMX` buffers).
        layers = 0
    return replace(facts, offloaded_layers=layers, total_layers=total)
