"""How does a program of somebody else's measure, and read what was measured?

Five functions and two nouns, re-exported by `edgeagent`: `plan` looks at what was asked for, `run`
(or `run_async`) carries it out, `read` opens a run folder, `summarise` computes its result anew
from its raw records. It is the way of the command line, `edgeagent/app.py`, with nothing printed
and no signal taken.

Units. Names carry them: `_s` seconds, `_ns` nanoseconds on the box's monotonic clock, `_bytes`
bytes, `_per_s` a second, `_fraction` 0 to 1, `_j` joules, `_tokens` tokens. None is "not known",
zero is a measurement. docs/metrics.md defines every number.

Errors are those of `edgeagent/errors.py`, one sentence each, which speaks of options as the command
line has them: its `--output-tokens` is `output_tokens` here.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar

from pydantic import TypeAdapter, ValidationError

from edgeagent import app, archive, config, reporting
from edgeagent.core.model import Cell, EngineKind, MemorySample, RequestTrace
from edgeagent.core.result import Result
from edgeagent.errors import UsageError
from edgeagent.load.drive import Halt
from edgeagent.report.progress import ProgressState
from edgeagent.store.runfolder import CELLS, REQUESTS, SAMPLES, RunReader

if TYPE_CHECKING:
    from typing_extensions import Unpack  # because typing has it from 3.11 on

T = TypeVar("T")

# ------------------------------------------------------------------------------------ the question


class SloOptions(TypedDict, total=False):
    """Limits that a good request keeps, in seconds."""

    ttft: float
    """To the first token."""
    tpot: float
    """Per further output token, the mean of a request."""
    e2e: float
    """To the last token."""


class SweepOptions(TypedDict, total=False):
    """`[sweep]` of a plan. None, or leaving a key out, is the default."""

    concurrency: Sequence[int] | None
    """Levels of simultaneous requests, each at most 1024 ([1, 4, 8, 16])."""
    context: int | None
    """Tokens a slot can hold (what a request needs, rounded up to 256)."""
    prefix_tokens: int | None
    """Tokens that open every prompt alike (256)."""
    prompt_tokens: int | None
    """Tokens of each prompt's own (64)."""
    output_tokens: int | None
    """Tokens to generate a request (64)."""
    prompts: str | os.PathLike[str] | None
    """A JSONL file of own traffic instead of generated prompts."""
    chat: bool | None
    """Use the chat endpoint (False)."""
    requests: int | None
    """Measured requests a cell (20, or 4 for each simultaneous one)."""
    seconds: float | None
    """Measure each cell for so long instead."""
    shape: Literal["sustained", "fanout"] | None
    """N always in flight, or waves of N that start together ("sustained")."""
    repeats: int | None
    """Repeats, each on a fresh start of the engine (3)."""
    warmup: int | None
    """Warm-up requests a start (one for each simultaneous one)."""
    prefix_cache: Literal["on", "off", "both"] | None
    """Reuse of prompt prefixes ("both")."""
    speculation: Sequence[str] | None
    """Settings of speculative decoding: "off", "ngram", "draft:PATH" (["off"])."""
    slo: SloOptions | None
    """Limits of a good request; without any, every served request is good."""
    timeout: float | None
    """Seconds until a request is given up (300)."""
    idle_timeout: float | None
    """Seconds of silence until it is (120)."""
    cell_timeout: float | None
    """Seconds until a cell is (derived from its requests)."""
    sweep_timeout: float | None
    """Seconds until the sweep ends with what it has (none)."""
    start_timeout: float | None
    """Seconds until a start is (600)."""
    cooldown: float | None
    """Seconds between cells (1)."""
    seed: int | None
    """Of the generated traffic (20260101)."""
    device: Literal["auto", "cpu", "gpu"] | None
    """Where the model must run ("auto")."""
    strict: bool | None
    """Whether a suspect cell counts as failed, and a tainted box is refused (False)."""
    memory_slots: Sequence[int] | None
    """Slot counts to start with for memory (chosen by the concurrencies, four at most)."""
    memory_repeats: int | None
    """Starts at each of them (2); 0 leaves memory out."""
    settle: float | None
    """Seconds that memory must hold still (3)."""
    canary: int | None
    """Requests that open and close the sweep alike (5); 0 leaves them out."""
    second_operator: bool | None
    """Whether a second operator's long prompt is sent into a running fan-out (False)."""
    capacity: bool | None
    """Whether to look for the most requests that keep `slo` (False)."""


class EngineOptions(TypedDict, total=False):
    """`[engines.NAME]` of a plan: an engine to start, or with `url` a server that runs already."""

    kind: EngineKind
    """Needed but with `url`, where it is found out."""
    binary: str | os.PathLike[str]
    """The engine's program ("llama-server" or "vllm" from PATH)."""
    command: Sequence[str]
    """A launcher and its arguments instead of `binary`."""
    model: str | os.PathLike[str]
    """A GGUF file for llamacpp, a Hugging Face folder for vllm."""
    url: str
    args: Sequence[str]
    """Further arguments of the engine's own."""
    env: Mapping[str, str]
    kv_type: str
    """Type of the key-value cache ("f16")."""
    slots: int
    """Slots a start (the largest concurrency)."""
    api_key_file: str | os.PathLike[str]
    cacert: str | os.PathLike[str]


@dataclass(frozen=True)
class Plan:
    """A sweep that was looked at, with nothing started yet; `run` carries it out.

    `str(plan)` is what `edgeagent sweep --dry-run` prints.
    """

    cells: tuple[Cell, ...]
    """Everything that will be measured, in the order of the plan."""
    digest: str
    """SHA-256, as hex, over all that determines the cells: equal plans measure the same."""
    expected_s: tuple[float, float]
    """How long it may take, in seconds: a low and a high guess, by arithmetic."""
    preview: app.Preview = field(repr=False, compare=False)

    def document(self) -> dict[str, Any]:
        """Return it as JSON values: what `edgeagent sweep --dry-run --json` prints.

        `memory[]` has what arithmetic expects of each start, in bytes.
        """
        return self.preview.document()

    def __str__(self) -> str:
        return self.preview.text()


def plan(
    source: str | os.PathLike[str] | Mapping[str, object] | None = None,
    /,
    *,
    engines: Mapping[str, EngineOptions] | None = None,
    **sweep: Unpack[SweepOptions],
) -> Plan:
    """Look at binaries, models and servers, and return what would be done; nothing is started.

    `source` is a plan: a TOML file, or its tables as a mapping. Keywords are keys of its `[sweep]`
    and go over them; `engines` is its `[engines.NAME]` tables, and goes over them key by key. Takes
    as long as reading the models once (their hashes are kept for the next time).

    Raises UsageError for what cannot be measured as asked, EngineError for a binary that is none,
    UnreachableError for a server that does not answer.
    """
    tables, where = _tables(source)
    own = {name: _plainly(value) for name, value in sweep.items() if value is not None}
    if own or engines:
        where = f"{where} with keywords" if source is not None else "plan()"
        tables = _merged(tables, own, engines or {})
    request = config.plan_request(tables, where, {}, config.EngineOptions())
    preview = _alone(app.preview(app.Job(request)))
    expected = preview.document()["expected_s"]
    return Plan(
        cells=preview.parts.plan.every_cell,
        digest=preview.parts.plan.digest,
        expected_s=(expected["low"], expected["high"]),
        preview=preview,
    )


def _alone(work: Coroutine[Any, Any, T]) -> T:
    """Its result; from a thread of its own, since a loop may run in this one."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()


def _tables(source: str | os.PathLike[str] | Mapping[str, object] | None) -> tuple[Any, str]:
    if source is None:
        return {}, "plan()"
    if isinstance(source, Mapping):
        return _plainly(source), "plan()"
    return config.read_plan(Path(source)), os.fspath(source)


def _merged(
    tables: Mapping[str, Any], own: Mapping[str, Any], engines: Mapping[str, EngineOptions]
) -> dict[str, Any]:
    known = tables.get("engines")
    named = known if isinstance(known, Mapping) else {}
    added = {name: _over(named.get(name), _plainly(one)) for name, one in engines.items()}
    return {**tables, "sweep": _over(tables.get("sweep"), own), "engines": _over(known, added)}


def _over(table: object, own: object) -> object:
    """A table with other keys over its own; what is no table is left for the check to refuse."""
    if table is None or not isinstance(own, Mapping):
        return own
    return {**table, **own} if isinstance(table, Mapping) else table


def _plainly(value: object) -> Any:
    """As TOML would have said it: paths as text, any sequence as a list."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return {key: _plainly(inner) for key, inner in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return [_plainly(inner) for inner in value]
    return value


# -------------------------------------------------------------------------------------- the answer


@dataclass(frozen=True)
class Run:
    """A run folder: the result, and the raw records that it follows from.

    Reading takes no lock and writes nothing; it works beside a running sweep.
    """

    path: Path
    document: Mapping[str, Any] = field(repr=False)
    """`result.json` as JSON values."""
    finished: bool = True
    """Whether its sweep wrote the result; else it was cut off, and summed up by `read`."""
    message: str | None = None
    """What `run` has to say of its end: cells that failed or are suspect, a time that was over."""

    @cached_property
    def result(self) -> Result:
        """The same as typed values. Raises UsageError when it is damaged."""
        try:
            return TypeAdapter(Result).validate_python(self.document)
        except ValidationError as error:
            first = ".".join(map(str, error.errors()[0]["loc"]))
            raise UsageError(
                f"{self.path / archive.RESULT} is not a result as edgeagent writes it "
                f"({error.error_count()} faults, first at {first}): was it edited? See edgeagent "
                f"verify {self.path}"
            ) from error

    def requests(self, cell_id: str | None = None) -> Iterator[RequestTrace]:
        """Return the requests of a cell, or of all finished cells, each as it happened.

        One at a time: a long run has millions. Of a cell that was begun more than once only the
        attempt that counts. Metrics are computed from those whose `role` is "measured".
        Raises UsageError when there is no such cell or no `requests.jsonl`, and while reading when
        a line was edited.
        """
        folder, lines = self._records(REQUESTS, cell_id)
        return (
            trace
            for line in lines
            for trace in folder.traces(str(line["cell_id"]), str(line["attempt"]))
        )

    def samples(self, cell_id: str | None = None) -> Iterator[MemorySample]:
        """Return what the probes saw during a cell, or during the whole run, in order of time.

        `values` are by the names of docs/metrics.md, with the unit in the name; a None has its
        reason in `absent`. Raises UsageError as `requests` does.
        """
        folder, lines = self._records(SAMPLES, cell_id)
        if cell_id is None:
            return folder.all_samples()
        (line,) = lines
        return folder.samples(cell_id, _stamp(line, "started_ns"), _stamp(line, "finished_ns"))

    def _records(
        self, name: str, cell_id: str | None
    ) -> tuple[RunReader, list[Mapping[str, object]]]:
        """The folder, and the lines of the finished cells that are meant. Raises UsageError."""
        folder = RunReader(self.path)
        if not (self.path / name).exists():
            raise UsageError(
                f"{self.path} has no {name}: its raw records were not kept; read the whole run "
                "folder, as the sweep left it"
            )
        lines = list(folder.cells())
        if cell_id is None:
            return folder, lines
        wanted = [line for line in lines if line["cell_id"] == cell_id]
        if not wanted:
            raise UsageError(
                f"{self.path / CELLS} has no finished cell {cell_id}: take one of result.cells"
            )
        return folder, wanted


def _stamp(line: Mapping[str, object], name: str) -> int | None:
    value = line.get(name)
    return value if isinstance(value, int) else None


def read(folder: str | os.PathLike[str]) -> Run:
    """Read a run folder, or a `result.json` alone.

    A run that was cut off has no result; then its records are summed up as the sweep would have
    done, and `finished` is False. Raises UsageError when it is no run, or of a later major version.
    """
    (stored,) = reporting.read_results([Path(folder)])
    return Run(stored.path, stored.document, stored.finished)


def summarise(run: Run | str | os.PathLike[str]) -> Result:
    """Compute a run's result anew, from its raw records alone; nothing is written.

    Equal to the stored result where this version computes as the one that wrote it did
    (`edgeagent verify` compares them). Takes a second per some ten thousand requests. Raises
    UsageError when the records are missing or damaged.
    """
    folder = RunReader(run.path if isinstance(run, Run) else Path(run))
    stored = folder.read_document(archive.RESULT)
    finished_at = stored.get("finished_at") if isinstance(stored, dict) else None
    return archive.result_of(archive.recall(folder), finished_at, archive.file_hashes(folder))


# ----------------------------------------------------------------------------------- carrying out


def run(
    source: Plan | Run | str | os.PathLike[str],
    *,
    out: str | os.PathLike[str] | None = None,
    on_progress: Callable[[ProgressState], None] | None = None,
    on_note: Callable[[str], None] | None = None,
) -> Run:
    """Carry a plan out, or measure what is missing in a run folder, and return what was measured.

    `out` is the new run folder (`./edgeagent-runs/<UTC>-<short id>`). The sweep runs in a thread of
    its own, with an event loop of its own, while this one waits: call it from wherever you like, a
    notebook included. From that thread come the calls of `on_progress`, some four a second, and of
    `on_note`, for each sentence that the command line would print; the load waits for them, so they
    should be quick. What they raise ends the sweep in order, and is raised here.

    KeyboardInterrupt ends the sweep in order: engines are stopped, what was measured is kept, the
    exception goes on, and `run(folder)` measures the rest. A second one does not wait for the sums.

    Returns also when cells failed or are suspect: see `message` and `result.findings`. Raises
    UsageError, UnreachableError and BusyError before anything is begun, EngineError when no engine
    could be measured at all (its run folder stays).
    """
    sweep = _begun(source, out, on_progress, on_note)
    try:
        outcome = sweep.ended.result()
    except BaseException:
        if not sweep.ended.done():  # not the sweep's own end: somebody wants us to stop waiting
            sweep.end()
        raise
    return sweep.concluded(outcome)


async def run_async(
    source: Plan | Run | str | os.PathLike[str],
    *,
    out: str | os.PathLike[str] | None = None,
    on_progress: Callable[[ProgressState], None] | None = None,
    on_note: Callable[[str], None] | None = None,
) -> Run:
    """Do the same without blocking the event loop; cancelling it ends the sweep in order.

    The sweep has a thread and a loop of its own here as well: what else this loop does delays no
    measurement but by the time that it keeps Python busy.
    """
    sweep = _begun(source, out, on_progress, on_note)
    ended = asyncio.wrap_future(sweep.ended)
    try:
        outcome = await asyncio.shield(ended)
    except asyncio.CancelledError:
        sweep.stop()
        await asyncio.wait({ended})
        raise
    return sweep.concluded(outcome)


def _begun(
    source: Plan | Run | str | os.PathLike[str],
    out: str | os.PathLike[str] | None,
    on_progress: Callable[[ProgressState], None] | None,
    on_note: Callable[[str], None] | None,
) -> _Sweep:
    sweep = _Sweep(_job(source, out), on_progress, on_note)
    threading.Thread(target=sweep.carry_out, name="edgeagent-sweep").start()
    return sweep


def _job(
    source: Plan | Run | str | os.PathLike[str], out: str | os.PathLike[str] | None
) -> app.Job:
    if isinstance(source, Plan):
        return app.Job(source.preview.parts.request, None if out is None else Path(out))
    folder = source.path if isinstance(source, Run) else Path(source)
    if out is not None:
        raise UsageError(
            f"the run in {folder} goes on in its own folder, so out={os.fspath(out)} cannot be "
            "given with it: leave it out, or run a plan"
        )
    return app.resume(folder)


class _Sweep:
    """A sweep in a thread of its own; it shows itself to its caller as `watching.View`."""

    def __init__(
        self,
        job: app.Job,
        on_progress: Callable[[ProgressState], None] | None,
        on_note: Callable[[str], None] | None,
    ) -> None:
        self.ended: Future[app.Outcome] = Future()
        self._job = job
        self._on_progress = on_progress
        self._on_note = on_note
        self._theirs: BaseException | None = None
        """What a call of theirs has raised."""
        self._asked = 0
        """How often it was asked to end."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._halt: Halt | None = None
        self._task: asyncio.Task[app.Outcome] | None = None

    # ------------------------------------------------------------------ in the sweep's thread

    def carry_out(self) -> None:
        """Run to the end; `ended` has the outcome then."""
        try:
            outcome = asyncio.run(self._sweep())
        except BaseException as error:  # noqa: BLE001  # because it is raised where somebody waits
            self.ended.set_exception(error)
        else:
            self.ended.set_result(outcome)

    async def _sweep(self) -> app.Outcome:
        self._halt = Halt()
        self._task = asyncio.ensure_future(app.sweep(self._job, self, self._halt))
        self._loop = asyncio.get_running_loop()
        if self._asked:  # before there was a loop to tell
            self._heed()
        return await self._task

    def _heed(self) -> None:
        """End it in order; asked twice, at once."""
        assert self._halt is not None  # noqa: S101  # because both are made before anybody can ask
        assert self._task is not None  # noqa: S101  # because both are made before anybody can ask
        self._halt.now("interrupted", "the sweep was stopped by the program that had begun it")
        if self._asked > 1:
            self._task.cancel()

    def update(self, state: ProgressState) -> None:
        """Tell the caller how far it is."""
        self._tell(self._on_progress, state)

    def note(self, text: str) -> None:
        """Tell the caller a sentence."""
        self._tell(self._on_note, text)

    def close(self) -> None:
        """Nothing to end."""

    def _tell(self, told: Callable[[T], None] | None, what: T) -> None:
        if told is None or self._theirs is not None:
            return
        try:
            told(what)
        except BaseException as error:  # noqa: BLE001  # because it is theirs, and raised to them
            self._theirs = error
            self.stop()

    # ------------------------------------------------------------------------ in any thread

    def stop(self) -> None:
        """Ask it to end; twice: at once."""
        self._asked += 1
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed: it has ended
                self._loop.call_soon_threadsafe(self._heed)

    def end(self) -> None:
        """Ask it to end and wait until it has, however often we are interrupted."""
        while not self.ended.done():
            self.stop()
            with suppress(BaseException):
                self.ended.exception()

    def concluded(self, outcome: app.Outcome) -> Run:
        """The run that has ended. Raises what a call of theirs raised, or EdgeAgentError."""
        for error in (self._theirs, outcome.error):
            if error is not None:
                raise error
        return Run(outcome.folder, outcome.document, message=outcome.message)
