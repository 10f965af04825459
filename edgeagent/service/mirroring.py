"""What does a Sparkplug host get to see of this box (docs/sparkplug.md)?

The node shows what telemetry shows; each engine that was measured is a device with its last run.
A mirror that does not work is a trouble and nothing else: the record is the JSON beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from edgeagent.core.backoff import Pace
from edgeagent.core.outgoing import Finished
from edgeagent.errors import EdgeAgentError
from edgeagent.publish.link import Broker, PahoLink
from edgeagent.publish.sparkplug_client import SparkplugClient, host_topics
from edgeagent.publish.sparkplug_mirror import MOST_METRICS, Names, node_metrics, run_metrics
from edgeagent.publish.spool import Spool

_MOST_FIGURES = MOST_METRICS - 1
"""Beside the node's status."""
_OF_A_LEVEL = {
    "output_tokens_per_s": "output_tokens_per_s",
    "ttft_s.p95": "ttft_p95_s",
    "tpot_s.p95": "tpot_p95_s",
    "goodput_per_s": "goodput_per_s",
}


@dataclass(frozen=True)
class Place:
    """Where the mirror connects, and as whom."""

    broker: Broker
    group: str
    node: str
    primary_host: str


class Mirroring:
    """The mirror at work. `start` and `stop` once each; the rest never waits."""

    def __init__(
        self, place: Place, spool: Spool, pace: Pace, random: Random, now_ms: Callable[[], int]
    ) -> None:
        """Raises ConfigError."""
        names = Names(place.group, place.node, place.primary_host or None)
        broker = replace(
            place.broker,
            client_id=f"{place.node}-spb",
            session_expiry_s=0,
            will_delay_s=0,
            commands="heard" if place.primary_host else "ignored",
        )
        self._client = SparkplugClient(
            names,
            lambda: PahoLink(broker, host_topics(names), random, pace),
            _Notes(spool),
            now_ms,
        )

    def start(self) -> None:
        """Begin to connect."""
        self._client.start()

    def node(self, status: str, figures: Mapping[str, float | int]) -> None:
        """Show the readings of the moment."""
        chosen = {name: float(figures[name]) for name in sorted(figures)[:_MOST_FIGURES]}
        self._client.readings(node_metrics(status, chosen))

    def run(self, run: Finished) -> None:
        """Show the last run of each engine."""
        for engine, summary in summaries(run.document):
            self._client.readings(run_metrics(summary), engine)

    def alive(self) -> bool:
        """Whether its threads live."""
        return self._client.alive()

    def stop(self, timeout_s: float) -> None:
        """Say goodbye and disconnect."""
        self._client.stop(timeout_s)


def summaries(document: Mapping[str, Any]) -> list[tuple[str, dict[str, float | str | None]]]:
    """What a host sees of a run: of each engine its highest level, and what a slot costs."""
    found = []
    for engine in dict.fromkeys(level["engine"] for level in document["levels"]):
        own = [level for level in document["levels"] if level["engine"] == engine]
        top = max(own, key=lambda level: level["concurrency"])
        summary: dict[str, float | str | None] = {
            "run": str(document["run_id"]),
            "status": str(document["status"]),
            "concurrency": top["concurrency"],
        }
        for ours, theirs in _OF_A_LEVEL.items():
            summary[theirs] = (top["metrics"].get(ours) or {}).get("mean")
        costs = (one for one in document["memory"] if one["engine"] == engine)
        cost: Mapping[str, Any] = next(costs, {})
        summary["memory_bytes_per_slot"] = cost.get("measured_bytes_per_slot")
        summary["max_slots"] = cost.get("max_slots")
        found.append((str(engine), summary))
    return found


class _Notes:
    """The bdSeq outlives the agent in the spool; one that cannot be written is still counted."""

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._known: dict[str, str] = {}

    def get(self, name: str) -> str | None:
        """The note of this name."""
        if name not in self._known:
            with suppress(EdgeAgentError):
                return self._spool.get(name)
        return self._known.get(name)

    def put(self, name: str, value: str) -> None:
        """Keep a note for good, if that can be."""
        self._known[name] = value
        with suppress(EdgeAgentError):
            self._spool.put(name, value)
