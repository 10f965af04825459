"""What does the daemon say of itself: to the plant, to systemd, and to somebody on the box?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from edgeagent import __version__
from edgeagent.core.commands import CommandState
from edgeagent.core.policy import OPERATIONS, Policy
from edgeagent.publish.messages import MESSAGES
from edgeagent.publish.status import LinkState
from edgeagent.publishing import Office
from edgeagent.service import command_answers
from edgeagent.settings import Settings


@dataclass(frozen=True)
class Standing:
    """How things are at this moment."""

    running: CommandState | None
    waiting: int
    troubles: tuple[str, ...]
    link: LinkState | None
    """None without a broker."""
    unwatched: str | None = None
    """Why nobody can say yet whether the box is idle; None when it can be said."""


def sentence(standing: Standing) -> str:
    """What `systemctl status` shows."""
    running, link = standing.running, standing.link
    parts = ["idle" if running is None else _measuring(running)]
    if standing.waiting:
        parts.append("another sweep waits")
    if link is None:
        parts.append("no broker is configured")
    else:
        parts.append(f"{link.backlog.rows} messages wait for the broker")
        parts.append(_connection(link))
    if standing.troubles:
        parts.append(f"{len(standing.troubles)} troubles, the first: {standing.troubles[0]}")
    return "; ".join(parts)


def _measuring(running: CommandState) -> str:
    far = f", {running.done} of {running.total} cells" if running.total else ""
    return f"measuring {running.run}{far}"


def _connection(link: LinkState) -> str:
    if link.connection == "up":
        return "connected"
    return f"not connected: {link.last_error}" if link.last_error else "connecting"


def state_document(office: Office, standing: Standing) -> dict[str, object]:
    """What the control socket answers to `status`."""
    running, link = standing.running, standing.link
    document: dict[str, object] = {
        "schema": "edgeagent.service.daemon/1",
        "version": __version__,
        "site": office.identity.site,
        "node": office.identity.node,
        "epoch": office.spool.epoch,
        "running": None if running is None else running.run,
        "waiting": standing.waiting,
        "unwatched": standing.unwatched,
        "troubles": list(standing.troubles),
    }
    if link is not None:
        document["link"] = {
            "connection": link.connection,
            "protocol": link.protocol,
            "delivery": link.delivery,
            "reconnects": link.reconnects,
            "last_error": link.last_error,
            "troubles": list(link.troubles),
            "rows": link.backlog.rows,
        }
    return document


def meta_documents(
    office: Office, settings: Settings, policy: Policy, host: Mapping[str, object]
) -> Iterator[tuple[str, dict[str, object]]]:
    """What this box is and what may be asked of it: topics below the prefix, and documents."""
    yield (
        "meta/node",
        {
            "schema": "edgeagent.meta.node/1",
            "site": office.identity.site,
            "node": office.identity.node,
            "version": __version__,
            "topic_prefix": office.topics.prefix,
            "host": dict(host),
            "engines": [
                {"id": name, "kind": engine.kind} for name, engine in settings.engines.items()
            ],
            "schemas": [f"edgeagent.{name}/1" for name in MESSAGES],
        },
    )
    known = tuple(name for name in policy.profiles if name in settings.profiles())
    heard = replace(policy, profiles=known) if settings.mqtt.commands.enabled else Policy()
    for operation in OPERATIONS:
        yield f"meta/cmd/{operation}", command_answers.capability(operation, heard)
