"""What does a Sparkplug host get to see of this box, and in which order?

The mirror shows a SCADA system the readings of the moment and the last run of each engine; the
system of record stays the JSON beside it, because Sparkplug carries no delivery guarantee. The box
is the edge node, each engine a device.

`Mirror` decides and sends nothing: each of its methods is told what happened and returns what is to
be done, in order. Its rules, after Sparkplug 3.0:

- The will is NDEATH with the bdSeq of this connection; the births of the connection carry the same.
- NBIRTH has seq 0 and every metric; then each message counts on, 255 is followed by 0. NDEATH has
  no seq.
- A value is sent again when it moved by more than 1 %, and at most once a second. A metric that the
  birth did not have makes a new birth.
- A host may ask for a new birth, at most every 5 s; it keeps the bdSeq. Nothing else can be asked.
- With a primary host nothing is born before that host is online. When it goes, so does the node,
  and what is read meanwhile is sent to it later as historical, up to 10,000 values.
"""

from __future__ import annotations

import json
import math
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Literal

from edgeagent.publish.sparkplug import Metric, Payload, decoded, encoded

NAMESPACE = "spBv1.0"
REBIRTH = "Node Control/Rebirth"
BDSEQ = "bdSeq"

DEADBAND = 0.01
DATA_EVERY_MS = 1000
REBIRTH_EVERY_MS = 5000
MOST_METRICS = 64
"""Of the node, and of each device."""
MOST_HISTORY = 10_000
_HISTORY_A_MESSAGE = 200
_MOST_COMMAND_BYTES = 8 * 1024
_NUMBERS = 256


@dataclass(frozen=True)
class Names:
    """Where the mirror stands; `primary_host` is None where nobody is waited for."""

    group: str
    node: str
    primary_host: str | None = None

    def topic(self, kind: str, device: str | None = None) -> str:
        """Such as spBv1.0/GROUP/DDATA/NODE/DEVICE."""
        levels = (NAMESPACE, sound(self.group), kind, sound(self.node))
        return "/".join(levels if device is None else (*levels, sound(device)))

    @property
    def commands(self) -> str:
        """What to subscribe to, at QoS 1."""
        return self.topic("NCMD")

    @property
    def host_state(self) -> str | None:
        """What to subscribe to, at QoS 1, where there is a primary host."""
        return (
            None if self.primary_host is None else f"{NAMESPACE}/STATE/{sound(self.primary_host)}"
        )


def sound(name: str) -> str:
    """An id without the characters that MQTT keeps for itself, and never empty."""
    return re.sub(r"[+/#\x00-\x1f]", "_", name) or "_"


@dataclass(frozen=True)
class Send:
    """Publish this, never retained."""

    topic: str
    payload: bytes
    qos: Literal[0, 1] = 0


@dataclass(frozen=True)
class HangUp:
    """Disconnect in good order, then connect again: a new session is wanted."""


Action = Send | HangUp


def next_bdseq(last: int | None) -> int:
    """The bdSeq of the next connection; stored before it is used, so that none comes twice."""
    return 0 if last is None else (last + 1) % _NUMBERS


def death(names: Names, bdseq: int, now_ms: int) -> Send:
    """NDEATH: the will of a connection, and what is sent before its orderly end."""
    payload = Payload(now_ms, (Metric(BDSEQ, "int64", bdseq, now_ms),), seq=None)
    return Send(names.topic("NDEATH"), encoded(payload), qos=1)


class Mirror:
    """The node and its devices as a host knows them."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self._known: dict[str | None, dict[str, Metric]] = {None: {}}
        """The newest values, by device; None is the node itself."""
        self._shown: dict[str | None, dict[str, Metric]] = {}
        """What the host was sent last. Empty while there is no birth."""
        self._link: Literal["down", "waiting", "born"] = "down"
        self._bdseq = 0
        self._seq = 0
        self._data_ms: dict[str | None, int] = {}
        self._birth_ms: int | None = None
        self._rebirth: Literal["none", "due"] = "none"
        self._host_ts: int | None = None
        self._history: deque[tuple[str | None, Metric]] = deque(maxlen=MOST_HISTORY)
        self._kept: dict[tuple[str | None, str], Metric] = {}
        """What was kept last of each metric, for the deadband of the history."""

    # ------------------------------------------------------------------------- the connection

    def connected(self, bdseq: int, now_ms: int) -> list[Action]:
        """Connected and subscribed, with the will of this bdSeq: the births, if it is time."""
        self.lost()
        self._link, self._bdseq = "waiting", bdseq
        return [] if self.names.primary_host is not None else self._births(now_ms)

    def lost(self) -> None:
        """The connection is gone, and with it what the host knew."""
        self._link = "down"
        self._shown = {}
        self._rebirth = "none"

    def leaving(self, now_ms: int) -> list[Action]:
        """What to send before an orderly DISCONNECT, which sends no will."""
        actions: list[Action] = (
            [death(self.names, self._bdseq, now_ms)] if self._link == "born" else []
        )
        self.lost()
        return actions

    # --------------------------------------------------------------------------- the readings

    def readings(
        self, metrics: Iterable[Metric], now_ms: int, device: str | None = None
    ) -> list[Action]:
        """New values of the node or of a device, which begins to exist with its first ones.

        Raises ValueError for more than 64 metrics.
        """
        known = {**self._known.get(device, {}), **{metric.name: metric for metric in metrics}}
        if len(known) > MOST_METRICS:
            raise ValueError(f"{len(known)} metrics, and a mirror has at most {MOST_METRICS}")
        self._known[device] = known
        if self._link != "born":
            self._keep(device, now_ms)
            return []
        return self._rebirth_if_due(now_ms) or self._news(device, now_ms)

    def gone(self, device: str, now_ms: int) -> list[Action]:
        """A device is no more; one that comes under its name has none of its past."""
        self._known.pop(device, None)
        past = [kept for kept in self._history if kept[0] != device]
        self._history.clear()
        self._history.extend(past)
        self._kept = {key: metric for key, metric in self._kept.items() if key[0] != device}
        if self._shown.pop(device, None) is None:
            return []
        payload = Payload(now_ms, (), self._next_seq())
        return [Send(self.names.topic("DDEATH", device), encoded(payload))]

    # ----------------------------------------------------------------------------- the host

    def received(self, topic: str, payload: bytes, now_ms: int) -> list[Action]:
        """A message of the host's; what it may not say, or says wrongly, does nothing."""
        if topic == self.names.host_state:
            return self._host(payload, now_ms)
        if topic == self.names.commands and _wants_rebirth(payload) and self._link == "born":
            self._rebirth = "due"
            return self._rebirth_if_due(now_ms)
        return []

    def _host(self, payload: bytes, now_ms: int) -> list[Action]:
        state = _host_state(payload)
        if state is None or (self._host_ts is not None and state[1] < self._host_ts):
            return []
        online, self._host_ts = state
        if online == "online" and self._link == "waiting":
            return self._births(now_ms)
        if online == "offline" and self._link == "born":
            return [*self.leaving(now_ms), HangUp()]
        return []

    # ----------------------------------------------------------------------------- messages

    def _births(self, now_ms: int) -> list[Action]:
        self._link, self._seq, self._rebirth = "born", -1, "none"
        self._birth_ms, self._shown, self._data_ms = now_ms, {}, {}
        births = [self._birth(device, now_ms) for device in self._known]
        return [*births, *self._past(now_ms)]

    def _birth(self, device: str | None, now_ms: int) -> Action:
        self._shown[device] = dict(self._known[device])
        self._data_ms[device] = now_ms
        own = (
            Metric(BDSEQ, "int64", self._bdseq, now_ms),
            Metric(REBIRTH, "boolean", value=False, ts_ms=now_ms),
        )
        metrics = (
            *(own if device is None else ()),
            *(_stamped(metric, now_ms) for metric in self._known[device].values()),
        )
        kind = "NBIRTH" if device is None else "DBIRTH"
        return self._send(kind, device, metrics, now_ms)

    def _rebirth_if_due(self, now_ms: int) -> list[Action]:
        if self._rebirth == "none" or self._too_soon(self._birth_ms, REBIRTH_EVERY_MS, now_ms):
            return []
        return self._births(now_ms)

    def _news(self, device: str | None, now_ms: int) -> list[Action]:
        known, shown = self._known[device], self._shown.get(device)
        if shown is None:
            return [self._birth(device, now_ms)]
        if known.keys() - shown.keys():
            # A host knows only metrics that a birth has named.
            self._rebirth = "due"
            if actions := self._rebirth_if_due(now_ms):
                return actions
        if self._too_soon(self._data_ms.get(device), DATA_EVERY_MS, now_ms):
            return []
        moved = [known[name] for name, old in shown.items() if _moved(old, known[name])]
        if not moved:
            return []
        self._data_ms[device] = now_ms
        shown.update((metric.name, metric) for metric in moved)
        kind = "NDATA" if device is None else "DDATA"
        return [self._send(kind, device, tuple(_stamped(m, now_ms) for m in moved), now_ms)]

    def _past(self, now_ms: int) -> Iterator[Action]:
        """What was kept for the primary host, oldest first."""
        devices = dict.fromkeys(device for device, _ in self._history if device in self._known)
        for device in devices:
            kept = iter([metric for owner, metric in self._history if owner == device])
            kind = "NDATA" if device is None else "DDATA"
            while chunk := tuple(islice(kept, _HISTORY_A_MESSAGE)):
                yield self._send(kind, device, chunk, now_ms)
        self._history.clear()
        self._kept.clear()

    def _keep(self, device: str | None, now_ms: int) -> None:
        if self.names.primary_host is None:
            return
        for metric in self._known[device].values():
            last = self._kept.get((device, metric.name))
            stamped = _stamped(metric, now_ms)
            if last is None or (
                _moved(last, metric) and not self._too_soon(last.ts_ms, DATA_EVERY_MS, now_ms)
            ):
                self._kept[device, metric.name] = stamped
                self._history.append((device, replace(stamped, history="historical")))

    def _send(
        self, kind: str, device: str | None, metrics: tuple[Metric, ...], now_ms: int
    ) -> Send:
        payload = Payload(now_ms, metrics, self._next_seq())
        return Send(self.names.topic(kind, device), encoded(payload))

    def _next_seq(self) -> int:
        self._seq = (self._seq + 1) % _NUMBERS
        return self._seq

    @staticmethod
    def _too_soon(last_ms: int | None, every_ms: int, now_ms: int) -> bool:
        """A clock that was put back is no reason to be silent."""
        return last_ms is not None and 0 <= now_ms - last_ms < every_ms


def _stamped(metric: Metric, now_ms: int) -> Metric:
    return metric if metric.ts_ms is not None else replace(metric, ts_ms=now_ms)


def _moved(old: Metric, new: Metric) -> bool:
    """Whether the host should hear of it: by more than 1 % for numbers, at all for the rest."""
    before, after = old.value, new.value
    if isinstance(before, bool | str | None) or isinstance(after, bool | str | None):
        return before != after
    return abs(after - before) > DEADBAND * abs(before)


def _wants_rebirth(payload: bytes) -> bool:
    if len(payload) > _MOST_COMMAND_BYTES:
        return False
    try:
        metrics = decoded(payload).metrics
    except ValueError:
        return False
    return any(metric.name == REBIRTH and metric.value is True for metric in metrics)


def _host_state(payload: bytes) -> tuple[Literal["online", "offline"], int] | None:
    """What a STATE message says, and its time stamp; None for one that is not as specified."""
    try:
        state = json.loads(payload) if len(payload) <= _MOST_COMMAND_BYTES else None
    except (ValueError, RecursionError):
        return None
    match state:
        case {"online": bool(online), "timestamp": int(ts)} if not isinstance(ts, bool):
            return ("online" if online else "offline"), ts
    return None


# ---------------------------------------------------------------------------- what is mirrored


def node_metrics(status: str, figures: Mapping[str, float | None]) -> list[Metric]:
    """The node's metrics: `status`, and each figure by its name (ram_used_bytes and the like)."""
    return [
        Metric("status", "string", status),
        *(_gauge(name, value) for name, value in sorted(figures.items())),
    ]


def run_metrics(summary: Mapping[str, float | str | None]) -> list[Metric]:
    """An engine's last run: words as text, numbers as doubles; the first 64 by name are kept."""
    return [
        Metric(f"last_run/{name}", "string", value)
        if isinstance(value, str)
        else _gauge(f"last_run/{name}", value)
        for name, value in sorted(summary.items())[:MOST_METRICS]
    ]


def _gauge(name: str, value: float | None) -> Metric:
    if value is None or not math.isfinite(value):
        return Metric(name, "double", None)
    return Metric(name, "double", float(value))
