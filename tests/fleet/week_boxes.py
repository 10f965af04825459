"""What does a simulated box record, what does it send, and what may it forget?

Lean, so that one process speaks for a thousand. What is the product's: the bytes of every message
(publish/messages.py) and what may be sent when (core/window.py). What is ours: the spool holds
numbers instead of rows, because what a row says follows from its number. It numbers as the real one
does: from 1 without holes, by epoch and stream; a row goes when a receipt covers it, or when it is
thinned and declared in a row of stream R.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from edgeagent.core.delivery import Entry, Row, Stamp, Stream
from edgeagent.core.window import Key, Limits, Server, Window
from edgeagent.publish.messages import encoded, envelope
from edgeagent.publish.topics import Identity

MINUTE_MS = 60_000
RESULT_EVERY = 10
"""Minutes between two rows of stream R: nine levels, then the run that they belong to."""
KEPT_ONE_OF = 5
_MEM = ("ram_total_bytes", "ram_used_bytes", "swap_used_bytes", "gpu_used_bytes")
_GPU = ("gpu_util_fraction", "gpu_power_w", "gpu_temperature_c", "gpu_clock_hz")

Publish = Callable[[str, bytes, "Box", Key], None]


def _minute_of(names: tuple[str, ...], value: float) -> dict[str, float]:
    kinds = ("min", "mean", "max", "last")
    values = {f"{name}_{kind}": value + k for name in names for k, kind in enumerate(kinds)}
    return {"samples": 24, "span_s": 120, **values}


_MEM_MINUTE = _minute_of(_MEM, 4_012_345_678)
_GPU_MINUTE = _minute_of(_GPU, 61.25)


@dataclass(frozen=True)
class Thinned:
    """Telemetry that a full spool gave up: numbers of M, but for multiples of `KEPT_ONE_OF`."""

    first: int
    last: int

    def has(self, seq: int) -> bool:
        return self.first <= seq <= self.last and seq % KEPT_ONE_OF != 0

    @property
    def rows(self) -> int:
        return sum(self.has(seq) for seq in range(self.first, self.last + 1))


@dataclass
class Lane:
    """One stream of one life of a spool. Numbers from `upcoming` on were never sent."""

    last: int = 0
    wm: int = 0
    upcoming: int = 1
    again: list[int] = field(default_factory=list)
    """A heap of numbers below `upcoming` that are to be sent once more."""
    thinned: list[Thinned] = field(default_factory=list)

    def waiting(self) -> bool:
        """Whether there is something to send."""
        self._pass()
        return bool(self.again) or self.upcoming <= self.last

    def take(self) -> int | None:
        """The lowest number that is to be sent, None if there is none."""
        if not self.waiting():
            return None
        if self.again:
            return heapq.heappop(self.again)
        self.upcoming += 1
        return self.upcoming - 1

    def _pass(self) -> None:
        while self.again and self.again[0] <= self.wm:
            heapq.heappop(self.again)
        self.upcoming = max(self.upcoming, self.wm + 1)
        while self.thinned and any(one.has(self.upcoming) for one in self.thinned):
            self.upcoming += 1

    def receipt(self, upto: int) -> None:
        assert upto <= self.last, f"receipted {upto}, recorded {self.last}"
        self.wm = max(self.wm, upto)

    def rewind(self) -> None:
        """Everything above the receipt once more."""
        self.again.clear()
        self.upcoming = self.wm + 1


@dataclass
class Life:
    """One epoch of a box's spool."""

    epoch: str
    began_minute: int
    lanes: dict[Stream, Lane] = field(default_factory=lambda: {"R": Lane(), "M": Lane()})
    gaps: dict[int, Thinned] = field(default_factory=dict)
    """Rows of R that declare what was thinned, by their number."""

    def record(self, minute: int) -> None:
        """A minute goes by: one row of telemetry, and now and then one of results."""
        self.lanes["M"].last += 1
        if (minute - self.began_minute) % RESULT_EVERY == 0:
            self.lanes["R"].last += 1

    def thin(self) -> None:
        """Give up four fifths of the older half of what was never sent, and declare it."""
        lane = self.lanes["M"]
        first, last = lane.upcoming, (lane.upcoming + lane.last) // 2
        gone = Thinned(first, last)
        if last - first < KEPT_ONE_OF:
            return
        lane.thinned.append(gone)
        self.lanes["R"].last += 1
        self.gaps[self.lanes["R"].last] = gone

    @property
    def recorded(self) -> int:
        return sum(lane.last for lane in self.lanes.values())

    @property
    def receipted(self) -> int:
        return sum(lane.wm for lane in self.lanes.values())


@dataclass
class Box:
    """A box: what it recorded, and what it may send now."""

    identity: Identity
    start_ms: int
    limits: Limits
    lives: list[Life] = field(default_factory=list)
    dirty: bool = True
    sessions: int = 0
    sent: int = 0
    """Rows that were handed to the broker, each time counted."""
    receipts: int = 0

    def __post_init__(self) -> None:
        self.prefix = f"edgeagent/v1/{self.identity.site}/{self.identity.node}"
        self.window = Window(self.limits, "receipt")
        self.begin_life(0)

    @property
    def life(self) -> Life:
        return self.lives[-1]

    def begin_life(self, minute: int) -> None:
        """A new spool: the one before it is empty, or is given up."""
        self.lives.append(Life(f"{len(self.lives) + 1:02d}{self.identity.node[-6:]}", minute))
        self.window.new_epoch()

    def up(self, now_s: float) -> None:
        self.window.up(Server(), now_s)
        self.dirty = True

    def down(self, in_flight: list[Key]) -> None:
        """The connection is gone; what the broker did not answer for goes once more."""
        assert not self.window.down("closed"), "no row of ours ends a connection"
        self._once_more(in_flight)

    def _once_more(self, keys: list[Key]) -> None:
        for stream, seq in keys:
            lane = self.life.lanes[stream]
            if (
                lane.wm < seq < lane.upcoming
            ):  # because what was in flight may be of an earlier life
                heapq.heappush(lane.again, seq)

    def answered(self, key: Key, code: int, now_s: float) -> None:
        if self.window.answered(key, code, now_s) not in {"sent", "unknown"}:
            self._once_more([key])
        self.dirty = True

    def heard(self, payload: bytes, now_s: float) -> int:
        """Take a receipt; return how many rows may be forgotten."""
        said = json.loads(payload)
        if said["epoch"] != self.life.epoch:
            return 0
        before = self.life.receipted
        self.life.lanes["R"].receipt(said["wm"]["R"])
        self.life.lanes["M"].receipt(said["wm"]["M"])
        self.window.receipt(said["wm"], now_s, said["u"])
        self.receipts += 1
        self.dirty = True
        return self.life.receipted - before

    def look(self, now_s: float) -> None:
        """Once a second: send again what was not receipted in time."""
        if self.window.reopen(now_s):
            self.dirty = True
        for stream in self.window.stalled(now_s):
            self.life.lanes[stream].rewind()
            self.dirty = True

    def storm(self) -> None:
        """Send everything again that is not receipted, whatever is under way already."""
        self.window.new_epoch()
        for lane in self.life.lanes.values():
            lane.rewind()
        self.dirty = True

    def fill(self, publish: Publish, now_s: float) -> None:
        """Send what may go, results first."""
        self.dirty = False
        for stream in ("R", "M"):
            lane = self.life.lanes[stream]
            for _ in range(self.window.room(stream, now_s)):
                if not self._send(stream, lane, publish, now_s):
                    break
            if lane.waiting():
                return

    def _send(self, stream: Stream, lane: Lane, publish: Publish, now_s: float) -> bool:
        if not lane.waiting():
            self.window.exhausted(stream)
            return False
        below = "m" if stream == "M" else "r"
        if self.window.rests(below, now_s):
            return False
        seq = lane.take()
        assert seq is not None
        key = (stream, seq)
        row = self.row(self.life, stream, seq)
        payload = envelope(row, self.identity, self.window.replay(key, 0))
        self.window.sent(key, below, now_s)
        self.sent += 1
        publish(f"{self.prefix}/{row.entry.topic}", payload, self, key)
        return True

    # ------------------------------------------------------------ what a row says

    def row(self, life: Life, stream: Stream, seq: int) -> Row:
        """The row of a number, the same whenever it is asked for."""
        made = self._minute(life, seq) if stream == "M" else self._result(life, seq)
        return Row(made, life.epoch, seq, 0, "new", 0)

    def ts_ms(self, life: Life, stream: Stream, seq: int) -> int:
        each = 1 if stream == "M" else RESULT_EVERY
        return self.start_ms + (life.began_minute + seq * each) * MINUTE_MS

    def _stamp(self, life: Life, stream: Stream, seq: int) -> Stamp:
        ts_ms = self.ts_ms(life, stream, seq)
        return Stamp(ts_ms, f"boot-{life.epoch}", ts_ms - self.start_ms, "sync")

    def _minute(self, life: Life, seq: int) -> Entry:
        kind = "gpu" if seq % 2 else "mem"
        values: dict[str, object] = dict(_GPU_MINUTE if seq % 2 else _MEM_MINUTE)
        values["ram_used_bytes_mean" if kind == "mem" else "gpu_power_w_mean"] = seq
        stamp = self._stamp(life, "M", seq)
        return Entry("M", f"m/{kind}_1m", f"edgeagent.{kind}_1m/1", stamp, values)

    def _result(self, life: Life, seq: int) -> Entry:
        stamp = self._stamp(life, "R", seq)
        if (gap := life.gaps.get(seq)) is not None:
            value: dict[str, object] = {
                "stream": "M", "from": gap.first, "to": gap.last, "n": gap.rows,
                "reason": "thinned", "every": KEPT_ONE_OF,
            }  # fmt: skip
            return Entry("R", "e/gap", "edgeagent.gap/1", stamp, value)
        run = f"{life.epoch}-{(seq - 1) // 10}"
        if seq % 10 == 0:
            return Entry("R", f"r/run/{run}", "edgeagent.run/1", stamp, _run(run, seq))
        dims = {
            "engine": "llamacpp", "engine_ver": "b6500", "model": "qwen2.5-1.5b", "quant": "Q4_K_M",
            "ctx": 4096, "slots": 8, "run": run, "point": seq,
        }  # fmt: skip
        value = {
            "concurrency": seq % 10, "requests_ok": 60, "requests_failed": 0, "ttft_p50_s": 0.21,
            "ttft_p95_s": 0.48, "tpot_p50_s": 0.031, "tpot_p95_s": 0.045, "e2e_p95_s": 5.2,
            "output_tokens_per_s": 30.5 * (seq % 10), "memory_bytes_per_slot": 58_720_256,
        }  # fmt: skip
        return Entry("R", f"r/point/{run}", "edgeagent.point/1", stamp, value, dims)

    def status(self, version: str = "0.1") -> bytes:
        """A birth."""
        self.sessions += 1
        waiting = self.life.recorded - self.life.receipted
        spool = {
            "rows": waiting, "bytes": waiting * 900, "oldest_age_s": None, "parked": 0, "evicted": 0
        }  # fmt: skip
        document: dict[str, object] = {
            "schema": "edgeagent.status/1", "site": self.identity.site, "node": self.identity.node,
            "state": "online", "session": f"s-{self.sessions}", "session_n": self.sessions,
            "clk": "sync", "version": version, "health": "ok", "spool": spool,
        }  # fmt: skip
        return encoded(document)


def _run(run: str, seq: int) -> dict[str, object]:
    cells = [{"concurrency": n, "output_tokens_per_s": 30.5 * n} for n in range(1, 10)]
    result: dict[str, Any] = {
        "run_id": run, "status": "complete", "host": {"class": "uma-nvgpu"},
        "started_at": "2026-11-01T00:00:00Z", "finished_at": "2026-11-01T00:10:00Z", "cells": cells,
    }  # fmt: skip
    return {
        "run_id": run, "status": "complete", "extent": "whole", "result": result,
        "result_sha256": f"{seq:064x}",
    }  # fmt: skip


def boxes(count: int, halls: int, start_ms: int, limits: Limits) -> Iterator[Box]:
    """Boxes in the halls of a plant, in turn."""
    for number in range(count):
        identity = Identity(f"hall-{number % halls + 1}", f"edge-{number:06d}")
        yield Box(identity, start_ms, limits)
