"""What does somebody want delivered, and in which shape does it wait?

Two streams: R carries results and events and loses nothing silently, M carries telemetry and may
thin out. An `Entry` is what a producer hands over; a `Row` is an entry that the spool has numbered.
The bytes on the wire are made from a row when it is sent, never before.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Stream = Literal["R", "M"]
ClockState = Literal["sync", "holdover", "unsync"]
RowState = Literal["new", "sent", "parked"]


@dataclass(frozen=True)
class Stamp:
    """When something was measured, by the box's own clocks.

    `ts_ms` is UTC in milliseconds since 1970 and may be wrong while `clk` is not "sync"; `boot` and
    `mono_ms` let a collector put right what the wall clock got wrong.
    """

    ts_ms: int
    boot: str
    mono_ms: int
    clk: ClockState


@dataclass(frozen=True)
class Entry:
    """One thing to deliver: topic below the prefix ("m/mem_1m", "r/run/ID"), schema, values.

    `value` becomes the envelope's `v`: finite numbers, flat for telemetry, None for missing.
    `dims` is for results alone: engine, engine_ver, model, quant, ctx, slots, run, point.
    """

    stream: Stream
    topic: str
    schema: str
    stamp: Stamp
    value: Mapping[str, object]
    dims: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """An entry with its number: `epoch` is the spool's life, `seq` counts up by one a stream.

    `tries` counts the attempts to send it, `size` is the bytes that it takes in the spool.
    """

    entry: Entry
    epoch: str
    seq: int
    tries: int
    state: RowState
    size: int
