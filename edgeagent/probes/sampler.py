"""How is the box watched beside the load, without the watching getting in the way?

One thread reads every probe at a fixed rate and hands each sample on. Its schedule is absolute:
sample k is due at start + k / rate. A sample that comes late says by how much, and moments that
were missed altogether are skipped, never made up for in a burst.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from edgeagent.core.model import MemorySample, SamplePhase
from edgeagent.errors import EdgeAgentError
from edgeagent.ports import Clock, Probe

NS_PER_S = 1_000_000_000

DEFAULT_HZ = 4.0


@dataclass(frozen=True)
class Schedule:
    """Moments at a fixed distance, from `start_ns` on."""

    start_ns: int
    period_ns: int

    def next_due_ns(self, now_ns: int) -> int:
        """Return the first moment of the schedule after now."""
        passed = (now_ns - self.start_ns) // self.period_ns
        return self.start_ns + (passed + 1) * self.period_ns


class Sampler:
    """Reads `probes` at `hz` from `start` until `stop` and gives each sample to `sink`.

    `pids` tells the engine's process tree at the moment of asking; `mark` may be called at any
    time and says what the samples taken from then on belong to. Why a value is None stands in the
    first sample of a cell that lacks it, and again when the reason changes.

    `full` probes are too expensive for every sample; `take_full` reads them, too.
    """

    def __init__(
        self,
        probes: Sequence[Probe],
        clock: Clock,
        sink: Callable[[MemorySample], None],
        pids: Callable[[], Sequence[int]] = tuple,
        hz: float = DEFAULT_HZ,
        full: Sequence[Probe] = (),
    ) -> None:
        self._cell_id: str | None = None
        self._phase: SamplePhase | None = None
        self._full = tuple(full)
        self._taking = threading.Lock()
        self.latest: MemorySample | None = None
        """The last sample, with every reason in it; None before the first."""
        self.failure: EdgeAgentError | None = None
        """Why samples are no longer kept: the sink could not take one. None while all is well."""
        self._probes = tuple(probes)
        self._clock = clock
        self._sink = sink
        self._pids = pids
        self._period_ns = round(NS_PER_S / hz)
        self._told: dict[str, str] = {}
        self._told_cell: str | None = None
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def cell_id(self) -> str | None:
        """The cell that samples belong to. Once it is set, the one before gets no more of them."""
        return self._cell_id

    def mark(self, cell_id: str | None, phase: SamplePhase | None = None) -> None:
        """Let samples from now on belong to this cell and phase."""
        with self._taking:  # a sample that is being taken is kept first
            self._cell_id, self._phase = cell_id, phase

    def start(self) -> None:
        """Begin to sample; the first sample is due at once."""
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Return when the thread has ended and the probes are closed; safe to call twice."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        for probe in (*self._probes, *self._full):
            probe.close()

    def take_full(self, phase: SamplePhase) -> None:
        """Take one sample of every probe now, the expensive ones too, as the one of this phase."""
        with self._taking:
            self._take(self._clock.now_ns(), (*self._probes, *self._full), phase)

    def keep(self, values: Mapping[str, float | int | None]) -> None:
        """Keep values that were read elsewhere, as a sample of this moment."""
        with self._taking:
            self._keep(
                MemorySample(self._clock.now_ns(), 0, self._cell_id, dict(values), {}, self._phase)
            )

    def take(self, due_ns: int) -> None:
        """Take the sample that was due at `due_ns` and hand it on."""
        with self._taking:
            self._take(due_ns, self._probes, self._phase)

    def _take(self, due_ns: int, probes: Sequence[Probe], phase: SamplePhase | None) -> None:
        now_ns = self._clock.now_ns()
        cell_id = self.cell_id
        values, absent = self._read_all(probes)
        late_ns = max(0, now_ns - due_ns)
        self.latest = MemorySample(now_ns, late_ns, cell_id, values, absent, phase)
        news = self._news(cell_id, absent)
        self._keep(MemorySample(now_ns, late_ns, cell_id, values, news, phase))

    def _news(self, cell_id: str | None, absent: Mapping[str, str]) -> Mapping[str, str]:
        """Return the reasons that this cell's samples have not told yet."""
        if cell_id != self._told_cell:
            self._told_cell, self._told = cell_id, {}
        news = {name: why for name, why in absent.items() if self._told.get(name) != why}
        self._told.update(news)
        return news

    def _keep(self, sample: MemorySample) -> None:
        if self.failure is not None:
            return
        try:
            self._sink(sample)
        except EdgeAgentError as error:
            self.failure = error

    def _run(self) -> None:
        schedule = Schedule(self._clock.now_ns(), self._period_ns)
        due_ns = schedule.start_ns
        while not self._ended.is_set():
            self.take(due_ns)
            due_ns = schedule.next_due_ns(self._clock.now_ns())
            self._ended.wait(max(0, due_ns - self._clock.now_ns()) / NS_PER_S)

    def _read_all(
        self, probes: Sequence[Probe]
    ) -> tuple[dict[str, float | int | None], dict[str, str]]:
        values: dict[str, float | int | None] = {}
        absent: dict[str, str] = {}
        pids = self._living()
        for probe in probes:
            try:
                read, reasons = probe.read(pids)
            except Exception as error:  # noqa: BLE001  # because a bug in one probe may cost its values, not the samples
                values[probe.name] = None
                absent[probe.name] = f"{type(error).__name__}: {error}"
                continue
            values.update(read)
            absent.update(reasons)
        return values, absent

    def _living(self) -> Sequence[int]:
        try:
            return self._pids()
        except Exception:  # noqa: BLE001  # because an engine that goes away while asked has no processes
            return ()
