"""How does the box tell that it lives, and how far behind it is?

The same values twice: `LinkState`, a snapshot for whoever asks inside (status, watchdog), and the
retained status message for the plant. A will is a status as well, written before it is true.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from edgeagent.core.delivery import Stamp
from edgeagent.core.window import Delivery
from edgeagent.publish.messages import encoded
from edgeagent.publish.topics import Identity

SCHEMA = "edgeagent.status/1"
Reason = Literal["lwt", "shutdown", "update"]


@dataclass(frozen=True)
class Backlog:
    """What waits in the spool. `oldest_ts_ms` is None when nothing waits."""

    rows: int = 0
    bytes: int = 0
    oldest_ts_ms: int | None = None
    parked: int = 0
    evicted: int = 0


@dataclass(frozen=True)
class LinkState:
    """A snapshot of delivery. Times are seconds of the pump's monotonic clock."""

    connection: Literal["up", "down"] = "down"
    since_s: float = 0.0
    """When the connection came up, or was lost."""
    turned_s: float = 0.0
    """When the pump last went round: its own sign of life."""
    link_thread: Literal["alive", "dead"] = "dead"
    generation: int = 0
    session_n: int = 0
    reconnects: int = 0
    protocol: Literal["5", "3.1.1"] | None = None
    delivery: Delivery = "puback"
    last_error: str | None = None
    troubles: tuple[str, ...] = ()
    """One sentence each, about what needs somebody."""
    backlog: Backlog = Backlog()
    in_flight: int = 0
    unreceipted: int = 0
    unheard: tuple[str, ...] = ()
    """Topics to which nobody subscribes, so that their rows wait."""
    live_dropped: int = 0


@dataclass(frozen=True)
class About:
    """What the status says of the box that delivery itself does not know."""

    version: str
    cert_not_after_ms: int | None = None
    policy_sha256: str | None = None
    troubles: tuple[str, ...] = ()


def will(identity: Identity, name: str, n: int) -> bytes:
    """Return what the broker is to say when this session ends without a goodbye."""
    return encoded(
        {
            "schema": SCHEMA,
            "site": identity.site,
            "node": identity.node,
            "state": "offline",
            "reason": "lwt",
            "session": name,
            "session_n": n,
        }
    )


@dataclass(frozen=True)
class Moment:
    """Who says it in which session, and when."""

    identity: Identity
    session: str
    session_n: int
    stamp: Stamp


def document(
    state: Literal["online", "offline"],
    moment: Moment,
    link: LinkState,
    about: About,
    reason: Reason | None = None,
) -> bytes:
    """Return the status message."""
    stamp = moment.stamp
    troubles = link.troubles + about.troubles
    whole: dict[str, object] = {
        "schema": SCHEMA,
        "site": moment.identity.site,
        "node": moment.identity.node,
        "state": state,
        "reason": reason,
        "session": moment.session,
        "session_n": moment.session_n,
        "ts": stamp.ts_ms,
        "boot": stamp.boot,
        "clk": stamp.clk,
        "version": about.version,
        "health": "degraded" if troubles else "ok",
        "troubles": list(troubles),
        "delivery": link.delivery,
        "spool": _figures(link.backlog, stamp.ts_ms),
        "cert_not_after": about.cert_not_after_ms,
        "policy_sha256": about.policy_sha256,
    }
    return encoded({name: value for name, value in whole.items() if value is not None})


def _figures(backlog: Backlog, now_ms: int) -> Mapping[str, object]:
    oldest = backlog.oldest_ts_ms
    return {
        "rows": backlog.rows,
        "bytes": backlog.bytes,
        "oldest_age_s": None if oldest is None else max(0, now_ms - oldest) / 1000,
        "parked": backlog.parked,
        "evicted": backlog.evicted,
    }
