"""What arrives of a long outage when the consumer is slow, or one of several dies?"""

from __future__ import annotations

import signal
import time
from contextlib import ExitStack
from pathlib import Path

from agent_process import Feed, Spec
from broker_places import Variant, mosquitto, until
from collector import Collector, Manner
from ledger import Account, account, arrived
from outages import ANYBODY, Before, came
from scenario_places import AgentProcess, Member, agent, collecting, member

WEEK = Feed(results=1_008, telemetry=10_080, result_bytes=20_000, telemetry_bytes=1_500)
"""Seven days away: a minute's telemetry each minute, a sweep's point each ten; 35 MB in all."""


def week_drained(folder: Path, delay_s: float = 0.002) -> Account:
    """T4: a week's backlog to a slow consumer, through a queue of 1,000 that drops in silence."""
    database = folder / "plant.db"
    short = Variant(ANYBODY, head=("persistence false", "max_queued_messages 1000"))
    with (
        mosquitto(folder / "broker", short) as broker,
        collecting(broker.port, database, Manner(delay_s=delay_s)) as collector,
        agent(folder / "agent", Spec(broker.port, link="later")) as box,
    ):
        box.feed(WEEK)
        box.fed()
        before = Before(box)
        begun_s = time.monotonic()
        box.order(link=True)
        drained_s = drained(box, database, begun_s)
        arrived([box], database)
        rows = WEEK.results + WEEK.telemetry
        p95_s = live_delay_s(collector, begun_s, begun_s + drained_s)
        figures = {
            "drained in": f"{drained_s:.1f} s",
            "rows/s": f"{rows / drained_s:.0f}",
            "RSS growth": f"{before.grown() / 1e6:.1f} MB",
            "live delay p95": f"{1000 * p95_s:.0f} ms",
        }
        made = account("7-day backlog, slow consumer", [box], database, figures)
        assert before.grown() < 30e6
        assert p95_s < drained_s / 10, "live readings wait behind the backlog"
        return made


def drained(box: AgentProcess, database: Path, begun_s: float, patience_s: float = 240.0) -> float:
    """Wait until all rows came, with an eye on the agent's memory; return the seconds."""

    def over() -> bool:
        box.rss_bytes()
        time.sleep(0.05)
        return came(database) >= WEEK.results + WEEK.telemetry

    until(over, "the backlog is drained", patience_s)
    return time.monotonic() - begun_s


def live_delay_s(collector: Collector, first_s: float, last_s: float) -> float:
    """The 95th percentile of the delay of live readings that came in a span."""
    delays = sorted(at_s - ms / 1000 for _, ms, at_s in collector.live if first_s <= at_s <= last_s)
    assert len(delays) >= 20, "too few live readings to speak of"
    return delays[int(0.95 * len(delays))]


def member_killed(folder: Path, rows: int = 1200) -> Account:
    """T21: three collectors share a subscription; one dies with messages that it never stored."""
    database = folder / "plant.db"
    with ExitStack() as ends:
        broker = ends.enter_context(
            mosquitto(folder / "broker", Variant(ANYBODY, head=("persistence false",)))
        )
        members = [
            ends.enter_context(
                member(Member(broker.port, database, ("--name", f"member-{n}", "--share", "fleet")))
            )
            for n in range(3)
        ]
        box = ends.enter_context(agent(folder / "agent", Spec(broker.port)))
        box.feed(Feed(rows // 3, rows - rows // 3, per_s=200.0))
        until(lambda: came(database) > rows // 10, "rows flow")
        assert members[0].process is not None
        members[0].process.send_signal(signal.SIGSTOP)
        until(lambda: box.link["unreceipted"] > 100, "the member holds rows back")
        members[0].end()
        box.fed()
        arrived([box], database)
        assert box.state()["notes"].get("mqtt_go_back"), "nothing was held: nothing was tried"
        return account("shared subscription, member killed", [box], database)
