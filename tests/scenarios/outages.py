"""What arrives when the broker, the agent or the collector goes away?"""

from __future__ import annotations

import signal
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from agent_process import Feed, Spec
from broker_places import Mosquitto, Variant, mosquitto, until
from collector import Manner, Store
from ledger import Account, account, arrived
from scenario_places import AgentProcess, Member, agent, collecting, member

ANYBODY = ("allow_anonymous true",)
FORGETS = Variant(ANYBODY, head=("persistence false",))


def came(database: Path) -> int:
    """How many rows a collector has committed."""
    with closing(Store(database)) as store:
        return store.how_many()


def broker_killed(folder: Path, kills: int = 5, rows: int = 3087) -> Account:
    """T1: SIGKILL in the middle of the traffic; the broker remembers nothing afterwards.

    At each second time the collector dies with it: what it had in its hands, acknowledged by the
    broker and stored by nobody, is nowhere but in the agent's spool.
    """
    database = folder / "plant.db"
    with (
        mosquitto(folder / "broker", FORGETS) as broker,
        member(Member(broker.port, database, ("--delay", "0.002"))) as collector,
        agent(folder / "agent", Spec(broker.port)) as box,
    ):
        results = rows // 3
        box.feed(Feed(results, rows - results, per_s=1000.0))
        for n in range(kills):
            reached = (n + 1) * rows // (kills + 1)
            until(lambda reached=reached: came(database) >= reached, f"{reached} rows came")  # type: ignore[misc]  # because mypy cannot type a default in a lambda
            broker.end(signal.SIGKILL)
            if n % 2:
                collector.end()
            broker.start()
            if n % 2:
                collector.start()
        box.fed()
        arrived([box], database)
        again = box.state()["notes"].get("mqtt_go_back", 0)
        assert again, "nothing was forgotten: the scenario tried nothing"
        figures = {"times that rows were sent anew for want of a receipt": f"{again}"}
        return account(f"broker killed x{kills}, receipts", [box], database, figures)


def agent_killed(folder: Path, kills: int = 10, rows: int = 3000) -> Account:
    """T2: SIGKILL of the agent in the middle of the traffic."""
    database = folder / "plant.db"
    with (
        mosquitto(folder / "broker", FORGETS) as broker,
        collecting(broker.port, database),
        agent(folder / "agent", Spec(broker.port)) as box,
    ):
        each = rows // (kills + 1)
        more = Feed(each // 2, each, per_s=1000.0)  # a third of it is never produced
        for _ in range(kills):
            before = came(database)
            box.feed(more)
            until(lambda before=before: came(database) > before + each, "most of it came")  # type: ignore[misc]  # because mypy cannot type a default in a lambda
            box.kill()
            box.start()
        box.feed(more)
        box.fed()
        arrived([box], database)
        return account(f"agent killed x{kills}, receipts", [box], database)


@dataclass(frozen=True)
class Memory:
    """How a broker keeps what it has taken."""

    name: str
    lines: tuple[str, ...]


AS_DEBIAN = Memory("default autosave", ("autosave_interval 1800",))
ON_CHANGE = Memory("autosave_on_changes", ("autosave_on_changes true", "autosave_interval 1"))


def broker_with_memory_killed(folder: Path, memory: Memory, rows: int = 501) -> Account:
    """T3: the collector is away, the broker's word is all there is, and then the broker dies."""
    database = folder / "plant.db"
    head = ("persistence true", f"persistence_location {folder}/broker/", *memory.lines)
    variant = Variant(ANYBODY, head=(*head, "max_queued_messages 0"))
    at_once = {"backfill_per_s": 1e4}
    with (
        mosquitto(folder / "broker", variant) as broker,
        agent(folder / "agent", Spec(broker.port, delivery="puback", limits=at_once)) as box,
    ):
        with collecting(broker.port, database):
            pass  # because a collector that was here once has a session, and messages wait for it
        if memory is AS_DEBIAN:
            broker.restart(signal.SIGTERM)  # because so far it is told of nothing but on a good end
        until(lambda: box.link["connection"] == "up", "connected")
        box.feed(Feed(rows // 3, rows - rows // 3))
        box.fed()
        until(lambda: box.state()["rows"] == 0, "the broker has taken all")
        if memory is ON_CHANGE:
            saved_completely(folder / "broker", rows)
        broker.restart(signal.SIGKILL)
        with collecting(broker.port, database):
            if memory is ON_CHANGE:
                arrived([box], database)
            else:
                a_later_row_arrives(box, database)
        return account(f"persistent broker killed, {memory.name}, puback", [box], database)


def saved_completely(folder: Path, rows: int) -> None:
    """Wait until the broker has written every row to its disk: it says so to nobody."""
    path = folder / "mosquitto.db"
    pad = b'"concurrency":1'
    until(lambda: path.exists() and path.read_bytes().count(pad) >= rows, "the broker has saved")


def a_later_row_arrives(box: AgentProcess, database: Path) -> None:
    """What comes after the loss flows: whoever waits for the rest now waits for ever."""
    until(lambda: box.link["connection"] == "up", "connected again")
    box.feed(Feed(results=1))
    until(lambda: came(database) >= 1, "a later row arrives")
    until(lambda: box.state()["rows"] == 0, "the spool is empty")


def broker_stands_still(folder: Path, still_s: float = 8.0, keepalive_s: int = 2) -> Account:
    """T5: SIGSTOP; connections stay open, nothing is answered. The producer must not notice."""
    database = folder / "plant.db"
    patient = {"keepalive_s": keepalive_s, "connect_timeout_s": 2.0}
    with (
        mosquitto(folder / "broker", FORGETS) as broker,
        collecting(broker.port, database),
        agent(folder / "agent", Spec(broker.port, broker=patient)) as box,
    ):
        until(lambda: box.link["connection"] == "up", "connected")
        box.feed(Feed(telemetry=int(still_s * 200), per_s=100.0))
        until(lambda: came(database) > 20, "rows flow")
        before = Before(box)
        broker.send(signal.SIGSTOP)
        until(lambda: box.link["connection"] == "down", "the connection is given up", 120.0)
        given_up_s = before.since_s()
        until(lambda: before.grown() < 10e6 and before.since_s() >= still_s, "time passes", 180.0)
        produced_per_s = before.produced() / before.since_s()
        broker.send(signal.SIGCONT)
        box.fed(still_s * 2 + 60.0)
        arrived([box], database)
        assert given_up_s <= 2 * keepalive_s + 15.0
        assert produced_per_s > 50.0
        figures = {
            "connection given up after": f"{given_up_s:.1f} s (keepalive {keepalive_s} s)",
            "longest hand-over": f"{1000 * box.state()['longest_s']['hand']:.1f} ms",
            "longest turn of the producer": f"{1000 * box.state()['longest_s']['tick']:.1f} ms",
            "samples meanwhile": f"{produced_per_s:.0f}/s of 100/s",
            "RSS growth": f"{before.grown() / 1e6:.1f} MB",
        }
        return account(f"broker stands still for {still_s:g} s", [box], database, figures)


class Before:
    """How an agent stood at a moment, to compare with."""

    def __init__(self, box: AgentProcess) -> None:
        self._box = box
        self._at_s = time.monotonic()
        self._rss_bytes = box.most_rss_bytes = box.rss_bytes()
        self._samples = box.state()["counts"]["samples"]

    def since_s(self) -> float:
        return time.monotonic() - self._at_s

    def produced(self) -> int:
        return int(self._box.state()["counts"]["samples"] - self._samples)

    def grown(self) -> int:
        """How much more memory it held at most since, as far as it was looked at."""
        if self._box.process is not None:
            self._box.rss_bytes()
        return self._box.most_rss_bytes - self._rss_bytes


def nobody_subscribes(folder: Path, rows: int = 200) -> Account:
    """T8: the broker says that nobody listens; the rows wait for somebody."""
    database = folder / "plant.db"
    with (
        mosquitto(folder / "broker", FORGETS) as broker,
        agent(folder / "agent", Spec(broker.port, delivery="auto")) as box,
    ):
        until(lambda: box.link["connection"] == "up", "connected")
        box.feed(Feed(rows // 2, rows - rows // 2))
        box.fed()
        until(lambda: refused_for_nobody(broker), "the broker was offered rows")
        assert box.state()["rows"] == rows, "the rows stay while nobody listens"
        with collecting(broker.port, database):
            arrived([box], database)
            assert box.link["delivery"] == "receipt"
        return account("nobody subscribed at first", [box], database)


def refused_for_nobody(broker: Mosquitto) -> bool:
    return "rc16" in broker.log()


def slow_consumer(folder: Path, most: int, rows: int = 1500) -> Account:
    """T6: 2 ms a message, a queue of 500 that drops in silence, `most` rows without a receipt."""
    database = folder / "plant.db"
    short = Variant(ANYBODY, head=("persistence false", "max_queued_messages 500"))
    with (
        mosquitto(folder / "broker", short) as broker,
        collecting(broker.port, database, Manner(delay_s=0.002, u=most)),
        agent(folder / "agent", Spec(broker.port, link="later")) as box,
    ):
        box.feed(Feed(rows // 3, rows - rows // 3))
        box.fed()
        begun_s = time.monotonic()
        box.order(link=True)
        arrived([box], database)
        figures = {"rows/s": f"{rows / (time.monotonic() - begun_s):.0f}"}
        return account(f"slow consumer, U={most}", [box], database, figures)
