"""How do results get into the spool, and from there to the plant's broker?

The daemon, `sweep --publish` and `publish --flush` build their parts here, so that they all speak
under the same name, through the same spool.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random, SystemRandom

from edgeagent import __version__, jobs, machine, naming
from edgeagent.core.backoff import Pace
from edgeagent.core.delivery import Row
from edgeagent.core.eviction import MIB, SpoolLimits
from edgeagent.core.outgoing import Finished, entries
from edgeagent.core.window import Limits
from edgeagent.errors import BusyError, ConfigError, UnreachableError, UsageError
from edgeagent.publish.link import Broker, PahoLink
from edgeagent.publish.pump import Around, Manner, Pump
from edgeagent.publish.spool import Spool, SpoolFull
from edgeagent.publish.status import About, LinkState
from edgeagent.publish.tls import TlsFiles
from edgeagent.publish.topics import Identity, Topics, topics
from edgeagent.publish.wire import Command
from edgeagent.settings import Settings
from edgeagent.wallclock import WallClock

SYSTEM_STATE = Path("/var/lib/edgeagent")
_HANDED_OVER = "run."
_LAST_STAMP = "last_stamp_ms"


@dataclass(frozen=True)
class Office:
    """Spool, name and clock of this box, for whoever hands something over."""

    settings: Settings
    spool: Spool
    identity: Identity
    clock: WallClock

    @property
    def topics(self) -> Topics:
        """Where this box speaks."""
        return topics(self.settings.topic_template, self.identity)

    def hand_over(self, run: Finished) -> list[Row]:
        """Put a run into the spool, once; return the rows, none when it was there already.

        On the disk when this returns. Raises SpoolFull, SpoolUnavailable.
        """
        mark = f"{_HANDED_OVER}{run.document['run_id']}"
        if self.spool.get(mark) == run.sha256:
            return []
        stamp = self.clock.stamp()
        # Rows and mark in one transaction: a kill between them would deliver the run twice.
        keeping = {mark: run.sha256, _LAST_STAMP: str(stamp.ts_ms)}
        return self.spool.commit_all(entries(run, stamp, self.settings.mqtt.max_payload_b), keeping)

    def keep_time(self) -> None:
        """Remember the latest stamp, so that time never runs backwards over a start."""
        stamp = self.clock.stamp()
        if stamp.clk == "sync":
            self.spool.put(_LAST_STAMP, str(stamp.ts_ms))

    def handed_over(self, run: Finished) -> bool:
        """Whether this result has been put into the spool."""
        return self.spool.get(f"{_HANDED_OVER}{run.document['run_id']}") == run.sha256

    def close(self) -> None:
        """Write what waits and let go of the spool."""
        self.spool.close()


def open_office(
    settings: Settings, shared: Path = SYSTEM_STATE, clock: WallClock | None = None
) -> Office:
    """Open the box's spool. Raises ConfigError, SpoolUnavailable, SpoolFull.

    An ordinary user of the group that owns the service's spool uses that one.
    """
    path = spool_path(settings, shared)
    belongs = naming.belonging(path.parent, machine.marks())
    configured = settings.agent.node if settings.origin("agent", "node") != "default" else ""
    node = naming.node_of(configured, settings.agent.node, belongs)
    identity = Identity(settings.agent.site, node)
    clock = clock or WallClock()
    spool = Spool.open(path, _limits(settings), belongs.key, clock.stamp)
    clock.not_before(int(spool.get(_LAST_STAMP) or 0))
    return Office(settings.as_node(node), spool, identity, clock)


def spool_path(settings: Settings, shared: Path) -> Path:
    """Return where this user's results wait."""
    own = settings.mqtt.spool.path
    if settings.scope == "system" or settings.origin("mqtt", "spool", "path") != "default":
        return own
    common = shared / own.name
    return common if os.access(common, os.R_OK | os.W_OK) else own


def _limits(settings: Settings) -> SpoolLimits:
    keys = settings.mqtt.spool
    return SpoolLimits(
        max_bytes=keys.max_mb * MIB,
        reserve_results_bytes=keys.reserve_results_mb * MIB,
        min_free_bytes=keys.min_free_mb * MIB,
    )


# ------------------------------------------------------------------------------------ delivery


@dataclass(frozen=True)
class Ears:
    """Who is told what comes back. All are called in the pump's thread and have to be quick."""

    command: Callable[[Command], None] = lambda _command: None
    note: Callable[[str, Mapping[str, object]], None] = lambda _event, _fields: None
    about: Callable[[], About] = field(default=lambda: About(__version__))


def broker_of(settings: Settings) -> Broker:
    """Return the broker that the settings name. Raises ConfigError."""
    mqtt = settings.mqtt
    if not mqtt.enabled:
        raise ConfigError(
            "mqtt.enabled is false, so nothing goes to a broker: set it, and mqtt.host"
        )
    username = None
    if mqtt.username_file is not None:
        try:
            username = mqtt.username_file.read_text().splitlines()[0].strip()
        except (OSError, IndexError, ValueError) as error:
            raise ConfigError(
                f"mqtt.username_file {mqtt.username_file} holds no name in its first line"
            ) from error
    tls = mqtt.tls
    files = TlsFiles(
        ca_file=tls.ca_file,
        cert_file=tls.cert_file,
        key_file=None if tls.key_file is None else str(tls.key_file),
        min_version=tls.min_version,
        ciphers=tls.ciphers,
        crl_file=tls.crl_file,
    )
    return Broker(
        host=str(mqtt.unix_socket) if mqtt.transport == "unix" else mqtt.host,
        port=mqtt.port,
        client_id=mqtt.client_id,
        transport=mqtt.transport,
        path=mqtt.websocket_path,
        protocol=mqtt.protocol,
        keepalive_s=mqtt.keepalive_s,
        username=username,
        password_file=None if mqtt.password_file is None else str(mqtt.password_file),
        tls_files=files if settings.encrypted() else None,
        plaintext="allowed" if mqtt.allow_plaintext else "refused",
        commands="heard" if mqtt.commands.enabled else "ignored",
    )


def pump_of(office: Office, ears: Ears, pace: Pace, random: Random | None = None) -> Pump:
    """Return the pump that delivers what is in the spool. Raises ConfigError."""
    settings = office.settings
    mqtt = settings.mqtt
    drawn = random or SystemRandom()
    link = PahoLink(broker_of(settings), office.topics, drawn, pace)
    manner = Manner(
        setting=mqtt.delivery,
        limits=Limits(
            window=mqtt.window,
            unreceipted=mqtt.unreceipted,
            max_payload_bytes=mqtt.max_payload_b,
            backfill_per_s=mqtt.backfill_rate,
        ),
        status_every_s=settings.telemetry.status_interval_s,
        figures_every_s=5.0,
        backfill_jitter_s=12 * pace.first_s,
        live_expiry_s=max(1, round(2 * mqtt.live_interval_s)),
    )
    around = Around(
        now_s=time.monotonic,
        stamp=office.clock.stamp,
        about=ears.about,
        command=ears.command,
        note=ears.note,
        random=drawn,
    )
    return Pump(office.spool, link, office.topics, office.identity, manner, around)


AT_ONCE = Pace(first_s=0.0, return_s=1.0, most_s=5.0, refused_s=5.0, taken_over_s=5.0)
"""For somebody who waits at a terminal: one box and no fleet."""


@dataclass(frozen=True)
class Left:
    """What a flush could not deliver."""

    rows: int
    why: str | None = None
    """What is known of the reason, as the rest of a sentence."""


def flush(office: Office, patience_s: float, told: Callable[[int], None]) -> Left:
    """Deliver what is in the spool; return what was left, after `patience_s` at most.

    `told` hears how many wait, once a second. Where a daemon delivers already, it is waited for.
    Raises UnreachableError when the broker was never reached, ConfigError.
    """
    pump = pump_of(office, Ears(), AT_ONCE)
    pump.start()
    try:
        return _wait(office, patience_s, told, pump.state)
    finally:
        pump.stop("shutdown", 10.0)


def _wait(
    office: Office,
    patience_s: float,
    told: Callable[[int], None],
    state: Callable[[], LinkState],
) -> Left:
    begun = time.monotonic()
    pause = threading.Event()
    why: str | None = None
    while True:
        left = office.spool.stats().rows
        told(left)
        if not left:
            return Left(0)
        now = state()
        why = _why_left(now) or why  # a topic that is tried again is in no state for a moment
        if time.monotonic() - begun >= patience_s:
            if now.generation == 0 and now.last_error:
                raise UnreachableError(f"{now.last_error}; {left} messages stay in the spool")
            return Left(left, why)
        pause.wait(0.5)


def _why_left(state: LinkState) -> str | None:
    if state.unheard:
        return (
            f"nobody subscribes to {', '.join(f'{topic}/#' for topic in state.unheard)}: start the "
            "collector (edgeagent fleet collect), or whoever is to have them, and flush again"
        )
    if state.unreceipted:
        return (
            f"the broker has {state.unreceipted} of them, and no collector has confirmed them: see "
            "whether it runs (edgeagent fleet collect)"
        )
    return state.troubles[0] if state.troubles else None


def hand_over_folder(office: Office, folder: Path) -> list[Row]:
    """Put a run folder's result into the spool. Raises UsageError when it has none."""
    run = jobs.finished(folder)
    if run is None:
        raise UsageError(
            f"{folder} has no result.json: give the folder that a sweep named at its end"
        )
    try:
        return office.hand_over(run)
    except SpoolFull as error:
        raise BusyError(f"the result stays in {folder} and is not published: {error}") from error
