"""Whatever happens in whatever order: received, declared missing, or still here."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from spool_places import Hands, entry, limits, opened

from edgeagent.core.delivery import Row, Stream
from edgeagent.publish.spool import Spool, SpoolFull
from edgeagent.publish.spool_file import beside

STREAMS: tuple[Stream, ...] = ("R", "M")
SMALL = replace(limits(0.4), kept_bytes=40_000)
# What becomes of one message: it may arrive or not, and the broker's answer may arrive or not.
Fate = Literal["arrived", "answer_lost", "lost_behind_the_broker", "never_left"]
FATES: tuple[Fate, ...] = ("arrived", "answer_lost", "lost_behind_the_broker", "never_left")
streams = st.sampled_from(STREAMS)
ALL_WELL: list[Fate] = ["arrived"] * 300
LOST_BEHIND: list[Fate] = ["lost_behind_the_broker"] * 300
courses = st.one_of(
    st.just(ALL_WELL), st.just(LOST_BEHIND), st.lists(st.sampled_from(FATES), max_size=25)
)


@dataclass
class Collector:
    """Keeps what arrives by (stream, seq), and knows up to where it is complete."""

    rows: dict[tuple[Stream, int], object] = field(default_factory=dict)
    closed: dict[Stream, set[int]] = field(default_factory=lambda: {"R": set(), "M": set()})

    def take(self, row: Row) -> None:
        key = (row.entry.stream, row.seq)
        value = dict(row.entry.value)
        assert self.rows.setdefault(key, value) == value, "a number was given twice"
        if row.entry.topic == "e/gap":
            stream, numbers = covered(value)
            self.closed[stream] |= numbers

    def copy(self) -> Collector:
        return Collector(dict(self.rows), {s: set(its) for s, its in self.closed.items()})

    def watermark(self, stream: Stream) -> int:
        at = 0
        while (stream, at + 1) in self.rows or at + 1 in self.closed[stream]:
            at += 1
        return at


def covered(gap: dict[str, object]) -> tuple[Stream, set[int]]:
    first, last, every = gap["from"], gap["to"], gap.get("every")
    assert isinstance(first, int)
    assert isinstance(last, int)
    numbers = set(range(first, last + 1))
    if isinstance(every, int):
        numbers = {number for number in numbers if number % every}
    return ("R" if gap["stream"] == "R" else "M"), numbers


class SpoolLife(RuleBasedStateMachine):
    """One spool file, one or two processes on it, a broker that may lie, one collector."""

    def __init__(self) -> None:
        super().__init__()
        shared_memory = Path("/dev/shm")  # noqa: S108  # because syncing is not what is tested here
        where = shared_memory if shared_memory.is_dir() else None
        self.folder = Path(tempfile.mkdtemp(prefix="spool-", dir=where))
        self.lives = 0
        self.path = self.folder / "0" / "spool.db"
        self.clock = Hands()
        self.spools = [opened(self.path, SMALL, clock=self.clock)]
        self.epoch = self.spools[0].epoch
        self.collector = Collector()
        self.backup = Collector()
        self.count = 0
        self.unwritten: dict[int, list[int]] = {0: [], 1: []}
        self.committed: dict[tuple[Stream, int], int] = {}
        # Without receipts the broker's word has to do, for rows and for records of gaps.
        self.trusted: set[tuple[Stream, int]] = set()
        self.told_to_the_broker: set[tuple[Stream, int]] = set()
        self.mode: Literal["puback", "receipt"] = "puback"
        self.last_m = 0

    # --- what producers do ---

    @rule(which=st.integers(0, 1), size=st.sampled_from([0, 2_000, 30_000]))
    def commit(self, which: int, size: int) -> None:
        self.count += 1
        try:
            row = self.spool(which).commit(entry("R", self.count, size))
        except SpoolFull:
            return
        assert ("R", row.seq) not in self.committed
        self.committed[("R", row.seq)] = self.count

    @rule(
        which=st.integers(0, 1),
        n=st.sampled_from([1, 7, 80]),
        size=st.sampled_from([0, 1_000, 3_000]),
        then=st.sampled_from(["flush", "wait"]),
    )
    def add(self, which: int, n: int, size: int, then: str) -> None:
        which = which % len(self.spools)
        for _ in range(n):
            self.count += 1
            self.spools[which].add(entry("M", self.count, size))
            self.unwritten[which].append(self.count)
        if then == "flush" or len(self.unwritten[which]) > 400:
            self.flush(which)

    @rule(which=st.integers(0, 1))
    def flush(self, which: int) -> None:
        which = which % len(self.spools)
        if self.spools[which].flush() is None:
            for i in self.unwritten[which]:
                self.last_m += 1
                self.committed[("M", self.last_m)] = i
            self.unwritten[which] = []

    # --- what the pump does ---

    @rule(stream=streams, fates=courses, noted=st.booleans())
    def send(self, stream: Stream, fates: list[Fate], noted: bool) -> None:  # noqa: FBT001  # because hypothesis draws it
        rows = self.spool(0).due(stream, 0, len(fates))
        pairs = list(zip(rows, fates, strict=False))
        left = [row for row, fate in pairs if fate != "never_left"]
        if noted:
            self.spool(0).tried(stream, [row.seq for row in left], self.epoch)
        for row, fate in pairs:
            if fate in ("arrived", "answer_lost"):
                self.collector.take(row)
        answered = [row.seq for row, fate in pairs if fate in ("arrived", "lost_behind_the_broker")]
        if self.mode == "receipt":
            self.spool(0).sent(stream, answered, self.epoch)
        else:
            self.spool(0).acknowledged(stream, answered, self.epoch)
            self.trusted |= {(stream, seq) for seq in answered}
            for row in rows:
                if row.seq in answered and row.entry.topic == "e/gap":
                    of, numbers = covered(dict(row.entry.value))
                    self.told_to_the_broker |= {(of, number) for number in numbers}

    @rule(which=st.integers(0, 1), stale=st.integers(0, 5), some=st.sets(streams, min_size=1))
    def receive_a_receipt(self, which: int, stale: int, some: set[Stream]) -> None:
        self.mode = "receipt"
        wm = {stream: max(0, self.collector.watermark(stream) - stale) for stream in some}
        self.spool(which).receipt(wm, self.epoch)
        self.trusted = {key for key in self.trusted if key[0] not in some}
        if "R" in some:
            self.told_to_the_broker = set()

    @rule()
    def back_the_collector_up(self) -> None:
        self.backup = self.collector.copy()

    @precondition(lambda self: self.mode == "receipt")
    @rule(which=st.integers(0, 1))
    def restore_the_collector(self, which: int) -> None:
        self.collector = self.backup.copy()
        for stream in STREAMS:
            self.spool(which).step_back(stream, self.collector.watermark(stream), self.epoch)

    @rule(stream=streams)
    def reconnect(self, stream: Stream) -> None:
        self.spool(0).rewind(stream)

    @rule(stream=streams, pick=st.integers(0, 50))
    def park(self, stream: Stream, pick: int) -> None:
        # A parked gap record declares nothing until it is unparked; it is small and never poison.
        rows = [row for row in self.spool(0).due(stream, 0, 51) if row.entry.topic != "e/gap"]
        if rows:
            self.spool(0).park(stream, rows[pick % len(rows)].seq, "too_large", self.epoch)

    @rule(stream=streams)
    def unpark(self, stream: Stream) -> None:
        self.spool(0).unpark(stream)

    @rule(stream=streams, first=st.integers(-3, 200), length=st.integers(0, 100))
    def resync(self, stream: Stream, first: int, length: int) -> None:
        self.spool(0).resync(stream, first, first + length)

    # --- what befalls processes ---

    @precondition(lambda self: len(self.spools) == 1)
    @rule()
    def a_second_process_comes(self) -> None:
        self.spools.append(opened(self.path, SMALL, clock=self.clock))

    @precondition(lambda self: len(self.spools) == 2)
    @rule(how=st.sampled_from(["ends", "is killed"]))
    def a_second_process(self, how: str) -> None:
        if how == "ends":
            self.flush(1)
        self.forget(self.spools.pop())
        self.unwritten[1] = []

    @rule()
    def everything_is_killed(self) -> None:
        """What SIGKILL leaves is the files as they stand: the pages are the kernel's."""
        self.lives += 1
        after = self.folder / str(self.lives) / "spool.db"
        after.parent.mkdir()
        for suffix in ("", "-wal"):
            shutil.copy(beside(self.path, suffix), beside(after, suffix))
        for spool in self.spools:
            self.forget(spool)
        self.path = after
        self.unwritten = {0: [], 1: []}
        self.spools = [opened(after, SMALL, clock=self.clock)]

    @rule(days=st.integers(1, 20))
    def time_passes(self, days: int) -> None:
        self.clock.forward(days * 86400.0)

    # --- what always holds ---

    @invariant()
    def nothing_is_lost(self) -> None:
        with closing(sqlite3.connect(self.path)) as db:
            rows = db.execute("SELECT stream, seq, topic, payload FROM q").fetchall()
            tallies = dict(db.execute("SELECT stream || state, n FROM tally WHERE n <> 0"))
            counted = dict(
                db.execute("SELECT stream || state, count(*) FROM q GROUP BY stream, state")
            )
            last: dict[Stream, int] = dict(db.execute("SELECT stream, last FROM streams"))
        assert tallies == counted
        assert last["M"] == self.last_m
        here = {(stream, seq) for stream, seq, _, _ in rows}
        declared = {(s, n) for s in STREAMS for n in self.collector.closed[s]}
        for _, _, topic, payload in rows:
            if topic == "e/gap":
                stream, numbers = covered(_value(payload))
                declared |= {(stream, number) for number in numbers}
        everything = {(stream, seq) for stream in STREAMS for seq in range(1, last[stream] + 1)}
        trusted = self.trusted | self.told_to_the_broker
        safe = here | declared | trusted | set(self.collector.rows)
        assert everything - safe == set()
        assert {key for key in self.committed if key not in everything} == set()
        for stream, seq, _, payload in rows:
            i = self.committed.get((stream, seq))
            assert i is None or _value(payload)["i"] == i

    @invariant()
    def no_result_is_evicted(self) -> None:
        gaps = [
            value
            for (stream, _), value in self.collector.rows.items()
            if stream == "R" and isinstance(value, dict) and value.get("stream") == "R"
        ]
        assert {gap["reason"] for gap in gaps} <= {"too_large", "not_kept"}

    @invariant()
    def the_spool_stays_small(self) -> None:
        assert self.spool(0).stats().used_bytes <= SMALL.max_bytes

    def teardown(self) -> None:
        """A broker and a collector that behave at last get everything, in a few rounds."""
        try:
            for which in range(len(self.spools)):
                self.flush(which)
            self.drain()
            stats = self.spool(0).stats()
            assert stats.rows == 0
            for stream in STREAMS:
                assert self.collector.watermark(stream) == stats.streams[stream].last_seq
                self.spool(0).unpark(stream)
            self.drain()
            stats = self.spool(0).stats()
            assert stats.rows == stats.parked == 0
        finally:
            for spool in self.spools:
                self.forget(spool)
            shutil.rmtree(self.folder)

    def drain(self) -> None:
        spool = self.spool(0)
        for _ in range(3):
            for stream in STREAMS:
                spool.rewind(stream)
                rows = spool.due(stream, 0, 100_000)
                for row in rows:
                    self.collector.take(row)
                spool.sent(stream, [row.seq for row in rows])
            spool.receipt({stream: self.collector.watermark(stream) for stream in STREAMS})

    def spool(self, which: int) -> Spool:
        return self.spools[which % len(self.spools)]

    def forget(self, spool: Spool) -> None:
        """End one process's part without what a clean end would still write."""
        with spool._lock:
            spool._waiting.clear()
        spool.close()


def _value(payload: str) -> dict[str, object]:
    import json

    value: dict[str, object] = json.loads(payload)["v"]
    return value


def test_received_or_declared_or_spooled_is_what_was_committed() -> None:
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(
        SpoolLife,
        settings=settings(
            max_examples=100,
            stateful_step_count=50,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
