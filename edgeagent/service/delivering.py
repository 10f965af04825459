"""Who takes what the daemon has to say to the plant, and how does that change under it?

The pump that is there now, and the Sparkplug mirror where one is wanted; without a broker, nobody.
Others hold on to this object while a reload puts another pump into it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from random import SystemRandom

from edgeagent import publishing
from edgeagent.core.backoff import Pace
from edgeagent.core.delivery import Entry, Stamp
from edgeagent.core.outgoing import Finished
from edgeagent.publish.pump import Pump
from edgeagent.publish.status import LinkState, Reason
from edgeagent.publish.wire import Command
from edgeagent.publishing import Ears, Office
from edgeagent.service.mirroring import Mirroring, Place
from edgeagent.settings import Settings

NEEDS_NO_NEW_CONNECTION = frozenset(
    {"mqtt.aggregate_s", "mqtt.commands.policy_file", "mqtt.commands.hmac_key_file"}
)
"""Keys of `mqtt` that take effect on the connection that stands."""
OF_THE_CONNECTION = frozenset({"telemetry.status_interval_s"})
"""Keys elsewhere that do not."""


@dataclass(frozen=True)
class Handed:
    """The rows of a run in the spool, the first and the last."""

    epoch: str
    first: int
    last: int


NOTHING_HANDED = Handed("", 1, 0)


@dataclass(frozen=True)
class _Parts:
    pump: Pump | None = None
    mirror: Mirroring | None = None


@dataclass
class Delivery:
    """See the module. Calls come from the daemon's thread, but for `live`, from any."""

    office: Office
    ears: Ears
    pace: Pace = field(default_factory=Pace)
    _parts: _Parts = field(default_factory=_Parts)
    _retained: dict[str, tuple[bytes, int | None]] = field(default_factory=dict)

    def start(self) -> None:
        """Begin to deliver. Raises ConfigError."""
        self._parts = self._made(self.office.settings)
        self._begin()

    def renew(self, settings: Settings) -> None:
        """Connect anew, as these settings say. Raises ConfigError: then all stays as it was."""
        made = self._made(settings)
        self.stop("update", 5.0)
        self.office = replace(self.office, settings=settings)
        self._parts = made
        self._begin()
        for below, (payload, expiry_s) in self._retained.items():
            self.announce(below, payload, expiry_s)

    def _made(self, settings: Settings) -> _Parts:
        if not settings.mqtt.enabled:
            return _Parts()
        office = replace(self.office, settings=settings)
        pump = publishing.pump_of(office, self.ears, self.pace)
        sparkplug = settings.mqtt.sparkplug
        if not sparkplug.enabled:
            return _Parts(pump)
        place = Place(
            publishing.broker_of(settings),
            sparkplug.group,
            office.identity.node,
            sparkplug.primary_host,
        )
        random = SystemRandom()
        clock = office.clock
        return _Parts(
            pump, Mirroring(place, office.spool, self.pace, random, lambda: clock.stamp().ts_ms)
        )

    def _begin(self) -> None:
        if self._parts.pump is not None:
            self._parts.pump.start()
        if self._parts.mirror is not None:
            self._parts.mirror.start()

    def stop(self, reason: Reason, seconds: float) -> None:
        """Say goodbye and disconnect, within about this time."""
        parts = self._parts
        if parts.pump is not None:
            parts.pump.stop(reason, seconds * (0.5 if parts.mirror is not None else 1.0))
        if parts.mirror is not None:
            parts.mirror.stop(seconds * 0.5)

    # ------------------------------------------------------------------------------ what is said

    @property
    def wanted(self) -> bool:
        """Whether there is a broker to deliver to."""
        return self._parts.pump is not None

    def announce(self, below: str, payload: bytes, expiry_s: int | None = None) -> None:
        """Publish a retained document, now and on every connection; empty bytes clear it."""
        if self._parts.pump is None:
            return
        if payload:
            self._retained[below] = (payload, expiry_s)
        else:
            self._retained.pop(below, None)
        self._parts.pump.announce(below, payload, expiry_s)

    def record(self, entry: Entry) -> None:
        """Put a result or event into the spool. Raises SpoolFull, SpoolUnavailable."""
        if self._parts.pump is not None:
            self.office.spool.commit(entry)
            self._parts.pump.wake()

    def hand_over(self, run: Finished) -> Handed:
        """Put a run into the spool. Raises SpoolFull, SpoolUnavailable.

        Without a broker results stay in their folders: `edgeagent publish` takes them later.
        """
        if self._parts.pump is None:
            return NOTHING_HANDED
        rows = self.office.hand_over(run)
        self._parts.pump.wake()
        if self._parts.mirror is not None:
            self._parts.mirror.run(run)
        return Handed(rows[0].epoch, rows[0].seq, rows[-1].seq) if rows else NOTHING_HANDED

    def arrived(self, handed: Handed) -> bool:
        """Whether the broker has these rows, or they cannot be waited for because it is away.

        Raises SpoolUnavailable.
        """
        state, spool = self.state(), self.office.spool
        if state is None or state.connection == "down" or spool.epoch != handed.epoch:
            return True
        rows = spool.due("R", handed.first - 1, 1)
        return not rows or rows[0].seq > handed.last

    def live(self, below: str, schema: str, value: Mapping[str, object], stamp: Stamp) -> bool:
        """Send a reading that is worth nothing later; False if it could not go now."""
        pump = self._parts.pump
        return pump is not None and pump.live(below, schema, value, stamp)

    def mirrored(self, status: str, figures: Mapping[str, float | int]) -> None:
        """Show the readings of the moment to a Sparkplug host."""
        if self._parts.mirror is not None:
            self._parts.mirror.node(status, figures)

    def stored(self, command: Command) -> None:
        """Say that a command is stored, so that the broker may forget it."""
        if self._parts.pump is not None:
            self._parts.pump.stored(command)

    def wake(self) -> None:
        """Say that the spool has something new."""
        if self._parts.pump is not None:
            self._parts.pump.wake()

    def again(self) -> None:
        """Say that rows of the spool are to go once more."""
        if self._parts.pump is not None:
            self._parts.pump.again()

    # -------------------------------------------------------------------------------- how it goes

    def state(self) -> LinkState | None:
        """Return how delivery stands; None without a broker."""
        return None if self._parts.pump is None else self._parts.pump.state()

    def moves(self, now_s: float, patience_s: float) -> bool:
        """Whether the threads live and go round; a broker that is away is another matter."""
        pump = self._parts.pump
        if pump is None:
            return True
        turned_s = pump.state().turned_s
        if not turned_s:
            return True  # it waits for another process to have sent what the spool holds
        return pump.alive() and now_s - turned_s < patience_s

    def mirror_moves(self) -> bool:
        """Whether the mirror's threads live, where there is one."""
        return self._parts.mirror is None or self._parts.mirror.alive()
