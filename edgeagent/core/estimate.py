"""How long will it take? A rough guess before anything has run, a better one while it runs.

Before: two rules of thumb for a CPU. Decoding one stream reads all weights once per token, so
memory bandwidth over model size bounds it; prefill and many streams are bound by arithmetic, two
operations per parameter and token. The guess is off by a factor of two or three either way, and is
given as a range. While running: cells of a level already measured take what they took, others
take their guess times how wrong the guesses were so far.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from edgeagent.core.model import ArrivalSpec, Cell

_BANDWIDTH_BYTES_PER_S = 10e9
_OPERATIONS_PER_CORE_S = 40e9
_DECODE_SHARE = 0.25
"""Of the prefill rate that many streams reach together while decoding."""

_UNKNOWN_PARAMETERS = 1e9
_UNKNOWN_BYTES = 1e9
_START_S = 5.0
_SETTLING_S = 12.0
"""Memory is read four times around a start, each time once it holds still."""
LOW, HIGH = 0.4, 2.5


@dataclass(frozen=True)
class Speeds:
    """Guessed tokens per second."""

    prefill: float
    one_stream: float
    all_streams: float


def guess_speeds(parameters: int | None, size_bytes: int | None, cores: int) -> Speeds:
    """What a CPU of so many cores may do with a model of this size."""
    prefill = cores * _OPERATIONS_PER_CORE_S / (2 * (parameters or _UNKNOWN_PARAMETERS))
    together = prefill * _DECODE_SHARE
    one = min(_BANDWIDTH_BYTES_PER_S / (size_bytes or _UNKNOWN_BYTES), together)
    return Speeds(prefill, one, together)


def cell_s(cell: Cell, speeds: Speeds) -> float:
    """Guessed seconds of a cell, its lead-in and priming included."""
    if cell.arrival is not None:
        return _arrival_s(cell, cell.arrival, speeds)
    work = cell.workload
    if work.seconds is not None:
        return work.seconds * 1.3
    requests = (cell.requests or 0) + cell.concurrency / 2
    fresh = work.prompt_tokens
    if cell.config.prefix_cache == "off":
        fresh += work.prefix_tokens
    decode = min(cell.concurrency * speeds.one_stream, speeds.all_streams)
    load_s = requests * (fresh / speeds.prefill + work.output_tokens / decode)
    return load_s + (_START_S + _SETTLING_S if cell.purpose == "memory" else 0.0)


def _arrival_s(cell: Cell, spec: ArrivalSpec, speeds: Speeds) -> float:
    """Guessed seconds of a cell whose windows a second operator comes into, or does not.

    A newcomer waits for a slot, reads its prompt and is answered beside the others.
    """
    output = cell.workload.output_tokens
    per_token_s = cell.concurrency / min(cell.concurrency * speeds.one_stream, speeds.all_streams)
    window_s = (
        output / cell.concurrency * per_token_s
        + spec.prompt_tokens / speeds.prefill
        + spec.output_tokens * per_token_s
    )
    quiet_s = max(spec.quiet_s, window_s / 2)
    return (1 + 2 * spec.pairs) * (window_s + 2 * quiet_s) + 2 * output * per_token_s


def launches_s(cells: Iterable[Cell], speeds: Speeds, cooldown_s: float) -> float:
    """Guessed seconds of starts, warm-ups and pauses."""
    groups: dict[tuple[object, int], int] = {}
    pauses = 0.0
    for cell in cells:
        key = (cell.config, cell.repeat)
        groups[key] = max(groups.get(key, 0), cell.concurrency)
        pauses += cooldown_s
    warmups = 0.0
    for widest in groups.values():
        warmups += widest * 64 / speeds.all_streams
    return len(groups) * _START_S + warmups + pauses


def time_left_s(
    left: Iterable[Cell], measured: Sequence[tuple[Cell, float]], speeds: Speeds
) -> float | None:
    """Seconds for the cells that are left; None before the first has been measured.

    `measured` holds each cell so far and the seconds that it took.
    """
    if not measured:
        return None
    took = {_like(cell): seconds for cell, seconds in measured}
    guessed = sum(cell_s(cell, speeds) for cell, _ in measured)
    ratio = sum(seconds for _, seconds in measured) / guessed if guessed else 1.0
    return sum(took.get(_like(cell), cell_s(cell, speeds) * ratio) for cell in left)


def _like(cell: Cell) -> tuple[object, ...]:
    """Cells that take as long as each other."""
    return cell.config, cell.concurrency, cell.purpose
