"""What does a week of a plant's boxes do to a collector, with everything that can end on the way?

A week of minutes goes by as fast as the collector stores it; where the plant is away, days go by at
once. `Size.scaled` makes it smaller in both directions: boxes, and length of the week.
"""

from __future__ import annotations

import getpass
import signal
import sqlite3
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from broker_places import MOSQUITTO, Mosquitto, Variant, until
from fleet_boxes import Collecting, collecting
from ledger import Account
from week_account import Count, age, agrees, counted
from week_boxes import MINUTE_MS, Box, boxes
from week_lines import Line, Lines

from edgeagent.core.window import Limits
from edgeagent.fleet.store import open_store

HALLS = 8
_QUEUE_OF_A_BOX = 100
"""100,000 messages for a thousand boxes, of which each may have 50 under way."""
_WEEK_MINUTES = 7 * 24 * 60
_AHEAD = 20
"""Rows a box that may wait before the next minute begins: fewer than a box may have under way."""
_STILL_S = 600.0
_THINS, _BEGINS_ANEW = 3, 7
"""Of forty boxes one has a small spool, and one gets a new one."""


@dataclass(frozen=True)
class Size:
    """How much, and how long what is away stays away."""

    boxes: int
    minutes: int
    away_s: float
    """A locked database, and a collector that nobody starts."""
    no_progress_s: float = 30.0
    hold_s: float = 30.0
    every_s: float = 10.0
    """Between two looks at memory and disk."""

    @property
    def queue(self) -> int:
        """Messages that the broker keeps for the collector."""
        return self.boxes * _QUEUE_OF_A_BOX

    @property
    def anew_minute(self) -> int:
        """When some boxes get another spool."""
        return round(self.minutes * 0.95)

    @classmethod
    def scaled(cls, scale: float) -> Size:
        """A thousand boxes and a week, each smaller by the root of `scale`."""
        side = scale**0.5
        small = scale < 0.02
        return cls(
            boxes=max(HALLS, round(1_000 * side)),
            minutes=max(240, round(_WEEK_MINUTES * side)),
            away_s=12.0 if small else 25.0,
            no_progress_s=5.0 if small else 30.0,
            hold_s=2.0 if small else 30.0,
            every_s=1.0 if small else 10.0,
        )


# ---------------------------------------------------------------- what goes wrong


@dataclass(frozen=True)
class Fault:
    """What happens when such a part of all rows is receipted."""

    at: float
    name: str


@dataclass(frozen=True)
class Story:
    """A scenario: parts of the week before and after which the plant is away, and the faults."""

    name: str
    faults: tuple[Fault, ...] = ()
    away: tuple[float, float] | None = None


def _often(name: str, *at: float) -> tuple[Fault, ...]:
    return tuple(Fault(each, name) for each in at)


KILLED = Story("collector killed x5", _often("kill", 0.1, 0.25, 0.4, 0.6, 0.8))
LOCKED = Story("database locked x2", _often("lock", 0.2, 0.6))
BROKER = Story(
    "broker ended x2 and killed x2, with persistence",
    (*_often("broker ends", 0.1, 0.5), *_often("broker dies", 0.3, 0.7)),
)
STORM = Story("duplicate storm x3", _often("storm", 0.3, 0.5, 0.7), (0.1, 0.9))
BACKLOG = Story("backlog of the whole time", away=(0.0, 1.0))
WEEK = Story(
    "a week: plant away for four days, everything above",
    (
        Fault(0.03, "kill"),
        Fault(0.07, "broker ends"),
        Fault(0.14, "kill"),
        Fault(0.20, "broker dies"),
        # From 2/7 on what four days have left is worked off.
        Fault(0.31, "kill"),
        Fault(0.34, "broker dies"),
        Fault(0.37, "storm"),
        Fault(0.40, "lock"),
        Fault(0.43, "kill and wait"),
        Fault(0.46, "broker ends"),
    ),
    (2 / 7, 6 / 7),
)
STORIES: Mapping[str, Story] = {
    "killed": KILLED,
    "locked": LOCKED,
    "broker": BROKER,
    "storm": STORM,
    "backlog": BACKLOG,
    "week": WEEK,
}


@dataclass
class QuietBroker(Mosquitto):
    """mosquitto that remembers, and does not write every message into its log."""

    queue: int = 1_000

    def start(self) -> None:
        assert MOSQUITTO is not None, "no mosquitto; apt-get install mosquitto"
        config = self.folder / "mosquitto.conf"
        config.write_text(
            f"user {getpass.getuser()}\nlog_dest file {self.folder}/mosquitto.log\n"
            "log_type error\nlog_type warning\nlog_type notice\n"
            "persistence true\nautosave_interval 60\n"
            f"persistence_location {self.folder}/\n"
            # One connection stands for many boxes, each of which may have 20 in flight.
            f"max_inflight_messages 20000\nmax_queued_messages {self.queue}\n"
            f"listener {self.port} 127.0.0.1\nallow_anonymous true\n"
        )
        self.process = subprocess.Popen(
            [MOSQUITTO, "-c", str(config)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        until(self._answers, "mosquitto listens")


@dataclass
class Figures:
    """What was seen on the way."""

    began_s: float = field(default_factory=time.monotonic)
    seconds: float = 0.0
    rss: dict[int, list[int]] = field(default_factory=dict)
    """Of each collector's process, in bytes, at every look."""
    most_disk: int = 0
    events: list[str] = field(default_factory=list)


@dataclass
class Plant:
    """Boxes, broker and collector, and the time of the week."""

    story: Story
    size: Size
    folder: Path
    broker: Mosquitto
    collector: Collecting
    boxes: list[Box]
    lines: Lines
    figures: Figures = field(default_factory=Figures)
    minute: int = 0
    failed: BaseException | None = None
    done: bool = False
    storms: int = 0
    over: int = 0
    """Faults that are over."""
    spools_begun: int = 0

    # ------------------------------------------------------------ how far it is

    @property
    def forgotten(self) -> int:
        return sum(line.forgotten for line in self.lines.lines)

    @property
    def planned(self) -> int:
        return self.size.boxes * (self.size.minutes + self.size.minutes // 10)

    @property
    def database(self) -> Path:
        return self.folder / "fleet.db"

    def recorded(self) -> int:
        return sum(life.recorded for box in self.boxes for life in box.lives)

    def waiting(self) -> int:
        return sum(box.life.recorded - box.life.receipted for box in self.boxes)

    def note(self, text: str) -> None:
        at_s = time.monotonic() - self.figures.began_s
        line = f"{at_s:7.1f} s, minute {self.minute:,}, {self.forgotten:,} receipted: {text}"
        self.figures.events.append(line)
        print(line, flush=True)

    # ------------------------------------------------------------ the week

    def live(self) -> None:
        """Let the week go by, and wait until every box may forget everything."""
        moved_s, moved = time.monotonic(), -1
        known = 0
        while True:
            now_s = time.monotonic()
            if self.failed is not None:
                raise self.failed
            if self.forgotten != moved:
                moved_s, moved = now_s, self.forgotten
            assert now_s - moved_s < _STILL_S, f"nothing moves any more:\n{self.collector.text()}"
            known = self._pass_time(known)
            if self.minute >= self.size.minutes and self.done and not self.waiting():
                break
            self._storm()
            self.lines.turn()
        self.figures.seconds = time.monotonic() - self.figures.began_s

    def _pass_time(self, known: int) -> int:
        """Begin minutes as long as little waits; `known` is how much was recorded."""
        while self.minute < self.size.minutes and known - self.forgotten < (
            _AHEAD * self.size.boxes
        ):
            away = self.story.away
            if away is not None and self.minute == round(away[0] * self.size.minutes):
                if any(fault.at <= away[0] for fault in self.story.faults[self.over :]):
                    return known  # because what is to happen before has not happened yet
                self._days_go_by(round(away[1] * self.size.minutes))
            elif self.minute == self.size.anew_minute and not self.spools_begun:
                if self.waiting():
                    return known  # because a spool is given up when it is empty
                self._spools_anew()
            else:
                self._one_minute()
            known = self.recorded()
        return known

    def _one_minute(self) -> None:
        self.minute += 1
        for box in self.boxes:
            box.life.record(self.minute)
            box.dirty = True

    def _days_go_by(self, until_minute: int) -> None:
        """The plant is away: no network, no broker; the boxes go on."""
        self.note(f"the plant is away until minute {until_minute:,}")
        self.lines.cut = True
        self.lines.turn()
        self.broker.end()
        while self.minute < until_minute:
            self._one_minute()
        for box in self.boxes[_THINS::40]:
            box.life.thin()
        self.broker.start()
        self.lines.cut = False
        self.note(f"the plant is back; {self.waiting():,} rows wait")

    def _spools_anew(self) -> None:
        """Some boxes whose spool is empty get another one: a new epoch."""
        for box in self.boxes[_BEGINS_ANEW::40]:
            box.begin_life(self.minute)
            self.spools_begun += 1

    def _storm(self) -> None:
        while self.storms:
            self.storms -= 1
            for box in self.boxes:
                box.storm()

    # ------------------------------------------------------------ faults

    def suffer(self) -> None:
        """Do what the story says; a thread of its own."""
        try:
            for fault in self.story.faults:
                until(
                    lambda at=fault.at: self.failed or self.forgotten >= at * self.planned,  # type: ignore[misc]  # because mypy cannot type a default in a lambda
                    f"{fault.at:.0%} of the rows",
                    1e6,
                )
                if self.failed:
                    return
                self.note(fault.name)
                _FAULTS[fault.name](self)
                self.over += 1
                had = self.forgotten
                until(
                    lambda had=had: self.failed or self.forgotten > had or not self.waiting(),  # type: ignore[misc]  # because mypy cannot type a default in a lambda
                    f"receipts after: {fault.name}",
                    _STILL_S,
                )
                self.note(f"{fault.name}: over")
            self.done = True
        except BaseException as error:  # noqa: BLE001  # because the thread that lives the week has to end
            self.failed = error

    def look(self) -> None:
        """Watch memory and disk; a thread of its own."""
        last, last_s = self.forgotten, time.monotonic()
        while self.failed is None and not self.figures.seconds:
            time.sleep(self.size.every_s)
            disk = sum(path.stat().st_size for path in self.folder.glob("fleet.db*"))
            self.figures.most_disk = max(self.figures.most_disk, disk)
            process = self.collector.process
            rss = _rss(process.pid) if process is not None else None
            if process is not None and rss is not None:
                self.figures.rss.setdefault(process.pid, []).append(rss)
            now, now_s = self.forgotten, time.monotonic()
            rate = (now - last) / (now_s - last_s)
            last, last_s = now, now_s
            self.note(
                f"{rate:,.0f} rows/s, collector {(rss or 0) / 2**20:.1f} MiB, "
                f"store {disk / 2**20:,.0f} MiB, {self.waiting():,} wait"
            )


def _rss(pid: int) -> int | None:
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return None  # because it has just been killed


def _kill(plant: Plant) -> None:
    plant.collector.end(signal.SIGKILL)
    plant.collector.start()


def _kill_and_wait(plant: Plant) -> None:
    plant.collector.end(signal.SIGKILL)
    time.sleep(plant.size.away_s / 4)
    plant.collector.start()


def _lock(plant: Plant) -> None:
    said = plant.collector.text().count("fleet_store_away")
    with closing(sqlite3.connect(plant.database, isolation_level=None, timeout=60.0)) as other:
        other.execute("BEGIN EXCLUSIVE")
        time.sleep(plant.size.away_s)
        until(
            lambda: plant.collector.text().count("fleet_store_away") > said, "it says that it waits"
        )
        other.execute("ROLLBACK")


def _storm(plant: Plant) -> None:
    for _ in range(3):
        plant.storms += 1
        time.sleep(0.7)


_FAULTS: Mapping[str, Callable[[Plant], None]] = {
    "kill": _kill,
    "kill and wait": _kill_and_wait,
    "lock": _lock,
    "storm": _storm,
    "broker ends": lambda plant: plant.broker.restart(signal.SIGTERM),
    "broker dies": lambda plant: plant.broker.restart(signal.SIGKILL),
}


# ---------------------------------------------------------------- played


@contextmanager
def _plant(folder: Path, story: Story, size: Size) -> Iterator[Plant]:
    folder.mkdir(parents=True, exist_ok=True)
    limits = Limits(no_progress_s=size.no_progress_s, hold_s=size.hold_s)
    start_ms = time.time_ns() // 1_000_000 - size.minutes * MINUTE_MS
    made = list(boxes(size.boxes, HALLS, start_ms, limits))
    (folder / "broker").mkdir()
    broker = QuietBroker(folder / "broker", Variant(), queue=size.queue)
    broker.start()
    lines = Lines(
        [
            Line(
                broker.port,
                f"hall-{hall}",
                {box.identity.node: box for box in made if box.identity.site == f"hall-{hall}"},
            )
            for hall in range(1, HALLS + 1)
        ]
    )
    words = ("--queue-limit", str(size.queue), "--keep-days", "60")
    url = f"sqlite://{folder}/fleet.db"
    try:
        with collecting(folder, broker.port, url, *words) as collector:
            collector.connected()
            yield Plant(story, size, folder, broker, collector, made, lines)
    finally:
        lines.close()
        broker.end(signal.SIGKILL)


def played(folder: Path, story: Story, size: Size) -> Account:
    """Play a story to its end and account for every row; AssertionError if one is missing."""
    with _plant(folder, story, size) as plant:
        helpers = [threading.Thread(target=plant.suffer), threading.Thread(target=plant.look)]
        for each in helpers:
            each.start()
        try:
            plant.live()
        except BaseException as error:
            plant.failed = error
            raise
        finally:
            for each in helpers:
                each.join()
        plant.note("every box may forget everything")
        assert plant.collector.end() == 0, plant.collector.text()
    return _account(plant)


def _account(plant: Plant) -> Account:
    with closing(open_store(f"sqlite://{plant.database}", "collect")) as store:
        count = counted(store, plant.boxes)
        plant.note(f"counted: {count}")
        assert count.strange == 0
        assert count.lost == 0
        agrees(store, plant.boxes)
        plant.note("watermarks, gaps, results, times and words agree")
        began_s = time.monotonic()
        aged = age(store, time.time_ns() // 1_000_000)
        plant.note(f"aged in {time.monotonic() - began_s:.0f} s: {aged}")
        assert aged.minutes_summed == aged.minutes_before
        assert aged.minutes_after == 0
    figures = _figures(plant, count)
    figures["a hundred days later"] = (
        f"{aged.minutes_before:,} minutes have become {aged.hours:,} hours that speak of "
        f"{aged.minutes_summed:,} minutes, and are gone"
    )
    sent = sum(box.sent for box in plant.boxes)
    name = f"{plant.story.name}; {plant.size.boxes:,} boxes, {plant.size.minutes / 1440:.1f} days"
    return Account(
        name,
        committed=count.recorded,
        received=count.stored,
        duplicates=sent - count.stored,
        declared=count.declared,
        lost=count.lost,
        figures=figures,
    )


def _figures(plant: Plant, count: Count) -> dict[str, str]:
    seen = plant.figures
    lives = [each for each in seen.rss.values() if len(each) > 2]
    longest: Sequence[int] = max(lives, key=len, default=[0])
    late = longest[len(longest) // 10 :]
    most = max((max(each) for each in lives), default=0)
    return {
        "seconds": f"{seen.seconds:,.0f}",
        "rows/s": f"{count.stored / seen.seconds:,.0f}",
        "collector's memory, first / last / most of the longest life": (
            f"{late[0] / 2**20:.1f} / {late[-1] / 2**20:.1f} / {max(longest) / 2**20:.1f} MiB"
        ),
        "most of any life": f"{most / 2**20:.1f} MiB in {len(seen.rss)} lives",
        "disk": f"{seen.most_disk / 2**20:,.0f} MiB",
        "spools begun anew": f"{plant.spools_begun}",
        "receipts": f"{sum(box.receipts for box in plant.boxes):,}",
    }
