"""How is the box watched while the daemon runs?

One sampler, whose rate can be changed; what is seen while no sweep of ours runs says whether the
box is idle. The production engine is asked in a thread, because it may not answer.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from edgeagent.core.model import MemorySample
from edgeagent.engines.requests_now import requests_now
from edgeagent.probes import catalogue, processes
from edgeagent.probes.sampler import Sampler
from edgeagent.service.telemetry import Pace, Telemetry
from edgeagent.settings import Settings

_PRODUCTION_S = 5.0
_PRODUCTION_PATIENCE_S = 3.0


class Observing:
    """See the module; calls come from the daemon's thread."""

    def __init__(
        self,
        environ: Mapping[str, str],
        settings: Callable[[], Settings],
        sink: Callable[[MemorySample], None],
        pid: Callable[[], int | None],
    ) -> None:
        """`sink` takes samples, in the sampler's thread; `pid` tells the sweep that runs."""
        self.root = catalogue.sysroot(environ)
        self.telemetry = Telemetry(_pace(settings()))
        self._environ, self._settings, self._sink, self._pid = environ, settings, sink, pid
        self._begun_s = time.monotonic()
        self._sampler = self._made()
        self._production = _Production()

    def _made(self) -> Sampler:
        root: Path = self.root
        return Sampler(
            catalogue.probes_for(root, self._environ),
            _Ticks(),
            self._sink,
            self._pids,
            hz=1 / self._settings().telemetry.sample_interval_s,
        )

    def _pids(self) -> tuple[int, ...]:
        """The processes of the sweep that runs; asked in the sampler's thread."""
        pid = self._pid()
        if pid is None:
            return ()
        return processes.tree(processes.scan(self.root / "proc"), pid)

    def start(self) -> None:
        """Begin to sample."""
        self._sampler.start()

    def keep_pace(self) -> None:
        """Go on as the settings say now."""
        self.telemetry.keep_pace(_pace(self._settings()))

    def sample_anew(self) -> None:
        """Go on at another rate. A sampler that hangs is left: the new one hangs too, and shows."""
        self.end(0.0)
        self._begun_s = time.monotonic()
        self._sampler = self._made()
        self._sampler.start()

    def end(self, wait_s: float) -> None:
        """End the sampler; a thread does it, because one that hangs in a probe never ends."""
        ending = threading.Thread(target=self._sampler.stop, name="sampler-end", daemon=True)
        ending.start()
        ending.join(wait_s)

    def look(self, sample: MemorySample) -> None:
        """Remember how busy others are; only while no sweep of ours runs."""
        self.telemetry.look(sample, self._production.count)
        if url := self._settings().schedule.production_url:
            self._production.ask(url)

    def has_sampled(self) -> bool:
        """Whether there was a sample yet."""
        return self._sampler.latest is not None

    def moves(self, patience_s: float) -> bool:
        """Whether samples come: late by so much at most, beside three intervals."""
        latest = self._sampler.latest
        sampled_s = self._begun_s if latest is None else latest.at_ns / 1e9
        allowed_s = patience_s + 3 * self._settings().telemetry.sample_interval_s
        return time.monotonic() - sampled_s < allowed_s


class _Ticks:
    """The monotonic clock for a sampler, without the event loop that the usual one brings."""

    def now_ns(self) -> int:
        """Nanoseconds since some fixed moment."""
        return time.monotonic_ns()

    async def sleep(self, seconds: float) -> None:
        """Nobody does."""
        raise NotImplementedError(f"sleeping for {seconds} s is for loops")


class _Production:
    """Asks the production engine how many requests it has."""

    def __init__(self) -> None:
        self.count: int | None = None
        self._asked_s = 0.0
        self._thread: threading.Thread | None = None

    def ask(self, url: str) -> None:
        """Ask, unless the last question is still open or was just put."""
        now_s = time.monotonic()
        busy = self._thread is not None and self._thread.is_alive()
        if busy or now_s - self._asked_s < _PRODUCTION_S:
            return
        self._asked_s = now_s
        self._thread = threading.Thread(
            target=self._ask, args=(url,), name="production", daemon=True
        )
        self._thread.start()

    def _ask(self, url: str) -> None:
        self.count = requests_now(url, _PRODUCTION_PATIENCE_S).count


def _pace(settings: Settings) -> Pace:
    return Pace(
        settings.mqtt.live_interval_s, settings.mqtt.aggregate_s, settings.schedule.idle_for_s
    )
