"""What do the verdicts on some messages make together?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from edgeagent.fleet.intake import Verdict
from edgeagent.fleet.store import Batch, BootRow, HourMark, NodeNews, TelemetryRow
from edgeagent.fleet.store_hours import HOUR_MS, MARK_EVERY_MS

_HEARD_EVERY_MS = 5_000
_SAME_CLOCK_MS = 50
_MOST_LIVE = 400
_MOST_HOURS = 50_000


@dataclass
class Recent:
    """What was written lately, so that it need not be written with every message.

    Bounded by the number of boxes: one boot, one moment and one set of live values each.
    """

    heard_ms: dict[str, int] = field(default_factory=dict)
    boots: dict[str, BootRow] = field(default_factory=dict)
    hours: dict[HourMark, int] = field(default_factory=dict)
    live: dict[str, dict[str, Any]] = field(default_factory=dict)

    def batch(self, verdicts: Sequence[Verdict], now_ms: int) -> Batch:
        """Return everything to write, as one."""
        telemetry = [one.telemetry for one in verdicts if one.telemetry is not None]
        return Batch(
            messages=[one.message for one in verdicts if one.message is not None],
            telemetry=telemetry,
            hours=self._new_hours(telemetry, now_ms),
            points=[one.point for one in verdicts if one.point is not None],
            runs=[one.run for one in verdicts if one.run is not None],
            gaps=[gap for one in verdicts for gap in one.gaps],
            boots=self._new_boots(one.boot for one in verdicts if one.boot is not None),
            unclear=[one.unclear for one in verdicts if one.unclear is not None],
            nodes=self._news(one.news for one in verdicts if one.news is not None),
            quarantined=[one.quarantined for one in verdicts if one.quarantined is not None],
            now_ms=now_ms,
        )

    def written(self, batch: Batch) -> None:
        """Remember what is in the store now."""
        self.boots.update((row.node, row) for row in batch.boots)
        self.heard_ms.update((one.node, one.rx_ms) for one in batch.nodes)
        if len(self.hours) > _MOST_HOURS:
            self.hours.clear()
        self.hours.update(dict.fromkeys(batch.hours, batch.now_ms))

    def _new_hours(self, rows: Sequence[TelemetryRow], now_ms: int) -> list[HourMark]:
        hours = {HourMark(row.node, row.kind, row.ts_ms - row.ts_ms % HOUR_MS) for row in rows}
        return [one for one in hours if abs(now_ms - self.hours.get(one, 0)) >= MARK_EVERY_MS]

    def _new_boots(self, rows: Iterable[BootRow]) -> list[BootRow]:
        latest: dict[tuple[str, str], BootRow] = {}
        for row in rows:
            known = self.boots.get(row.node)
            if (
                known is not None
                and known.boot == row.boot
                and abs(known.offset_ms - row.offset_ms) < _SAME_CLOCK_MS
            ):
                continue
            before = latest.get(row[:2])
            if before is None or before.mono_ms <= row.mono_ms:
                latest[row[:2]] = row
        return list(latest.values())

    def _news(self, news: Iterable[NodeNews]) -> list[NodeNews]:
        """Statuses one by one, in order; what else is known of a box once, where it is new."""
        said: list[NodeNews] = []
        heard: dict[str, NodeNews] = {}
        for one in news:
            if one.status is not None or one.meta is not None:
                said.append(one)
                continue
            if one.live:
                self._remember(one)
            known = heard.get(one.node)
            heard[one.node] = one if known is None else _joined(known, one)
        due = [
            one._replace(live=self.live.get(one.node))
            for one in heard.values()
            # Either way, because the clock may have gone back.
            if abs(one.rx_ms - self.heard_ms.get(one.node, 0)) >= _HEARD_EVERY_MS
        ]
        return said + due

    def _remember(self, one: NodeNews) -> None:
        values = {**self.live.get(one.node, {}), **(one.live or {})}
        self.live[one.node] = values if len(values) <= _MOST_LIVE else dict(one.live or {})


def _joined(old: NodeNews, new: NodeNews) -> NodeNews:
    return new._replace(
        clk=new.clk or old.clk,
        lag_ms=old.lag_ms if new.lag_ms is None else new.lag_ms,
    )
