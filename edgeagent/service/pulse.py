"""What does the service manager hear of us, and when does it not?

It is told when we are ready and what we do. Its watchdog is fed while everything that should move
does, so that it ends and starts again what hangs; a broker that is away is no reason for that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from edgeagent.journal import Journal
from edgeagent.systemd import Notifier

_UNREADY_S = 20.0
"""Longest wait for the first sample until the service is called ready."""


@dataclass(frozen=True)
class Health:
    """Asked whether something moves, given for how many seconds it may stand still."""

    signs: Callable[[float], Mapping[str, bool]]
    has_sampled: Callable[[], bool]
    watchdog: Callable[[], Literal["auto", "off"]]


class Pulse:
    """See the module."""

    def __init__(
        self, to: Notifier, log: Journal, health: Health, sentence: Callable[[], str]
    ) -> None:
        self._to, self._log, self._health, self._sentence = to, log, health, sentence
        self._begun_s = time.monotonic()
        self._fed_s = 0.0
        self._ready: Literal["no", "yes"] = "no"
        self._told = ""

    def tell(self) -> None:
        """Say what we do, if that is news; that we are ready, once there is a sample."""
        waited_s = time.monotonic() - self._begun_s
        if self._ready == "no":
            if self._health.has_sampled() or waited_s >= _UNREADY_S:
                self.ready()
            return
        sentence = self._sentence()
        if sentence != self._told:
            self._told = sentence
            self._to.status(sentence)

    def ready(self) -> None:
        """The work is done from now on, or again after a reload."""
        self._ready, self._told = "yes", self._sentence()
        self._to.ready(self._told)

    def reloading(self) -> None:
        """The configuration is being read; `ready` ends it."""
        self._to.reloading(time.monotonic_ns())

    def stopping(self) -> None:
        """We are ending."""
        self._to.stopping("ending")

    def feed(self) -> None:
        """Feed the watchdog, if it is time for it and all is well."""
        wanted_s, now_s = self._to.watchdog_s, time.monotonic()
        if not wanted_s or self._health.watchdog() == "off" or now_s - self._fed_s < wanted_s / 4:
            return
        self._fed_s = now_s
        signs = self._health.signs(wanted_s / 2)
        if all(signs.values()):
            self._to.alive()
        else:
            self._log.error("not_well", signs)
