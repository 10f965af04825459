"""What does a run folder hold, and how is it written so that nothing measured is lost?

`RunReader` reads a folder, needs no lock and writes nothing: it works on a read-only disk and
beside a running sweep. `RunFolder` is a reader that also writes; there is one per folder at a time.

Rules
- Raw records (`requests.jsonl`, `memory.jsonl`) are appended as they happen, one write a line.
- A finished cell is one line in `cells.jsonl`, on the disk before `append_cell` returns, and its
  raw records before it.
- Documents are replaced as a whole or not at all.
- A line that is not JSON was torn by a crash; it is counted in `torn_lines` and passed over.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from edgeagent.core.model import MemorySample, RequestTrace
from edgeagent.errors import BusyError, UsageError
from edgeagent.store.journal import Index, Journal, key, whole_lines, write_failed
from edgeagent.store.records import RecordError, sample_from, sample_line, trace_from, trace_line

T = TypeVar("T")

REQUESTS = "requests.jsonl"
SAMPLES = "memory.jsonl"
CELLS = "cells.jsonl"
INVALIDATED = "cells-invalidated.jsonl"
LOCK = ".lock"
DEFAULT_PARENT = Path("edgeagent-runs")


class RunReader:
    """A run as it lies on disk."""

    def __init__(self, path: Path) -> None:
        """Look at `path`. Raises UsageError when it is no run folder or cannot be read."""
        self.path = path
        self.torn_lines = 0
        """Lines passed over because a crash had torn them, in what was read so far."""
        try:
            names = {entry.name for entry in path.iterdir()}
        except OSError as error:
            raise UsageError(
                f"could not read the run folder {path}: {error.strerror}; give the folder that a "
                "sweep named at its end"
            ) from error
        if not names & {"plan.json", "result.json", CELLS}:
            raise UsageError(
                f"{path} is not a run folder: it has no plan.json; give the folder that a sweep "
                "named at its end"
            )
        self._requests = Index(path / REQUESTS)
        self._samples = Index(path / SAMPLES)

    def read_document(self, name: str) -> object:
        """Return a document's value, None when it was never written. Raises UsageError."""
        path = self.path / name
        try:
            text = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise UsageError(f"could not read {path}: {error.strerror}") from error
        try:
            value: object = json.loads(text)
        except ValueError as error:
            raise UsageError(f"{path} is not JSON ({error}); was it edited?") from error
        return value

    def traces(self, cell_id: str, attempt: str) -> Iterator[RequestTrace]:
        """Yield the requests of one attempt at a cell, in the order in which they ended."""
        wanted = key(_json(cell_id), _json(attempt))
        yield from self._parsed(REQUESTS, self._requests.lines(wanted), trace_from)

    def samples(
        self, cell_id: str | None, from_ns: int | None = None, to_ns: int | None = None
    ) -> Iterator[MemorySample]:
        """Yield the samples taken in a cell (None: outside of any), both ends included."""
        low = from_ns if from_ns is not None else 0
        lines = self._samples.lines(key(_json(cell_id)))
        for sample in self._parsed(SAMPLES, lines, sample_from):
            if low <= sample.at_ns and (to_ns is None or sample.at_ns <= to_ns):
                yield sample

    def all_samples(self) -> Iterator[MemorySample]:
        """Yield every sample of the run, in the order in which they were taken."""
        yield from self._parsed(SAMPLES, whole_lines(self.path / SAMPLES), sample_from)

    def cells(self) -> tuple[Mapping[str, object], ...]:
        """Return the finished cells; of two lines for one cell, the later."""
        kept: dict[object, Mapping[str, object]] = {}
        for document in self._parsed(CELLS, whole_lines(self.path / CELLS), _cell_from):
            kept.pop(document["cell_id"], None)
            kept[document["cell_id"]] = document
        return tuple(kept.values())

    def hashes(self, names: Iterable[str]) -> dict[str, str]:
        """Return the SHA-256 of each named file that exists, as hexadecimal."""
        found = {}
        for name in names:
            with suppress(FileNotFoundError):
                found[name] = _sha256(self.path / name)
        return found

    def _parsed(
        self, name: str, lines: Iterable[bytes], parse: Callable[[object], T]
    ) -> Iterator[T]:
        """Yield each line's record. A torn line is counted; one that was changed is refused."""
        for line in lines:
            try:
                value: object = json.loads(line)
            except ValueError:
                self.torn_lines += 1
                continue
            try:
                record = parse(value)
            except RecordError as error:
                raise UsageError(
                    f"{self.path / name} has a line that is no record of this version ({error}): "
                    "it was edited, or written by a newer edgeagent"
                ) from error
            yield record


def _cell_from(value: object) -> Mapping[str, object]:
    """Return the document of a finished cell. Raises RecordError."""
    if not isinstance(value, dict) or not isinstance(value.get("cell_id"), str):
        raise RecordError("a cell has a cell_id")
    return value


class RunFolder(RunReader):
    """A run that is being written. One writer per folder: the others get BusyError.

    `append_request` and `append_sample` may be called from any thread.
    """

    def __init__(self, path: Path, lock: int) -> None:
        """Use `create` or `resume`; `lock` is the descriptor that holds the folder."""
        self._lock = lock
        self._request_journal = Journal(path / REQUESTS)
        self._sample_journal = Journal(path / SAMPLES)
        self._cell_journal = Journal(path / CELLS)
        super().__init__(path)

    @classmethod
    def create(cls, path: Path | None = None) -> RunFolder:
        """Make a new run folder; None chooses a fresh name below ./edgeagent-runs.

        Raises UsageError when the folder has something in it or cannot be written, BusyError when
        another agent is at work in it. What could not be finished is taken away again.
        """
        path = path if path is not None else DEFAULT_PARENT / _fresh_name()
        made = _make_folders(path)
        try:
            lock = _take_lock(path, "create")
        except (UsageError, BusyError):
            _remove_folders(made)
            raise
        try:
            return cls(path, lock)
        except OSError as error:
            os.close(lock)
            for name in (LOCK, REQUESTS, SAMPLES, CELLS):
                (path / name).unlink(missing_ok=True)
            _remove_folders(made)
            raise _not_writable(path, error) from error

    @classmethod
    def resume(cls, path: Path) -> RunFolder:
        """Open a run folder to go on with it. Raises UsageError or BusyError."""
        RunReader(path)
        lock = _take_lock(path, "resume")
        try:
            return cls(path, lock)
        except OSError as error:
            os.close(lock)
            raise _not_writable(path, error) from error

    def append_request(self, trace: RequestTrace) -> None:
        """Keep one request. Raises UsageError when it cannot be written."""
        self._request_journal.append(trace_line(trace))

    def append_sample(self, sample: MemorySample) -> None:
        """Keep one sample. Raises UsageError when it cannot be written."""
        self._sample_journal.append(sample_line(sample))

    def append_cell(self, document: Mapping[str, object]) -> None:
        """Keep a finished cell by its `cell_id`; when this returns it has reached the disk.

        Its raw records have then, too. Raises UsageError when they cannot be written.
        """
        line = _compact(document)
        self._request_journal.sync()
        self._sample_journal.sync()
        self._cell_journal.append(line)
        self._cell_journal.sync()

    def drop_cells(self, cell_ids: Collection[str]) -> None:
        """Take cells out of `cells.jsonl`; their lines are kept in `cells-invalidated.jsonl`."""
        dropped: list[str] = []
        kept: list[str] = []
        for document in self._parsed(CELLS, whole_lines(self.path / CELLS), _cell_from):
            lines = dropped if document["cell_id"] in cell_ids else kept
            lines.append(_compact(document))
        if not dropped:
            return
        graveyard = self._open_journal(INVALIDATED)
        try:
            for line in dropped:
                graveyard.append(line)
            graveyard.sync()
        finally:
            graveyard.close()
        self._cell_journal.close()
        try:
            self._replace(CELLS, "".join(f"{line}\n" for line in kept).encode("ascii"))
        finally:
            self._cell_journal = self._open_journal(CELLS)

    def write_document(self, name: str, value: object) -> None:
        """Replace a document by `value` as JSON, wholly or not at all. Raises UsageError."""
        text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        # A path that is not UTF-8 holds lone surrogates; backslashreplace makes valid JSON of them.
        self._replace(name, text.encode("utf-8", "backslashreplace"))

    def write_file(self, name: str, content: bytes) -> None:
        """Replace a file, wholly or not at all. Raises UsageError."""
        self._replace(name, content)

    def remove(self, name: str) -> None:
        """Take a file away; it need not be there. Raises UsageError."""
        try:
            (self.path / name).unlink(missing_ok=True)
        except OSError as error:
            raise write_failed(self.path / name, error) from error

    def close(self) -> None:
        """Let go of the folder; safe to call twice."""
        self._request_journal.close()
        self._sample_journal.close()
        self._cell_journal.close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _open_journal(self, name: str) -> Journal:
        try:
            return Journal(self.path / name)
        except OSError as error:
            raise write_failed(self.path / name, error) from error

    def _replace(self, name: str, content: bytes) -> None:
        path, draft = self.path / name, self.path / f".{name}.tmp"
        try:
            with draft.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
            _sync_folder(self.path)
        except OSError as error:
            with suppress(OSError):
                draft.unlink(missing_ok=True)
            raise write_failed(path, error) from error


# ------------------------------------------------------------------------------ making and locking


def _fresh_name() -> str:
    return f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{secrets.token_hex(3)}"


def _make_folders(path: Path) -> list[Path]:
    """Make `path` with its parents and return those made, innermost first. Raises UsageError."""
    made: list[Path] = []
    try:
        for folder in [*reversed(path.parents), path]:
            if not folder.is_dir():
                folder.mkdir()
                made.insert(0, folder)
    except OSError as error:
        _remove_folders(made)
        raise _not_writable(path, error) from error
    return made


def _remove_folders(folders: Iterable[Path]) -> None:
    with suppress(OSError):
        for folder in folders:
            folder.rmdir()


def _take_lock(path: Path, purpose: str) -> int:
    """Return a descriptor that holds the folder until it is closed or the process dies."""
    others = _contents(path) - {LOCK}
    ours = (path / LOCK).exists()
    if purpose == "create" and others and not ours:
        raise _not_empty(path)
    try:
        lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise _not_writable(path, error) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if purpose == "create" and others:
            raise _not_empty(path)
        # Written and synced so that a full disk is found here, not at the first measured cell.
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        os.fsync(lock)
    except BlockingIOError as error:
        os.close(lock)
        raise BusyError(
            f"another edgeagent is at work in {path}: wait for it, or name another folder"
        ) from error
    except OSError as error:
        os.close(lock)
        if not ours:
            (path / LOCK).unlink(missing_ok=True)
        raise _not_writable(path, error) from error
    except UsageError:
        os.close(lock)
        raise
    return lock


def _contents(path: Path) -> set[str]:
    try:
        return {entry.name for entry in path.iterdir()}
    except OSError as error:
        raise _not_writable(path, error) from error


def _not_empty(path: Path) -> UsageError:
    return UsageError(
        f"the run folder {path} has something in it: name a new folder, or go on with an "
        f"interrupted run by --resume {path}"
    )


def _not_writable(path: Path, error: OSError) -> UsageError:
    return UsageError(
        f"could not make the run folder {path}: {error.strerror or error}; name a folder on a disk "
        "that is writable and has room"
    )


def _sync_folder(path: Path) -> None:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _compact(document: Mapping[str, object]) -> str:
    return json.dumps(document, separators=(",", ":"), allow_nan=False)


def _json(value: str | None) -> bytes:
    return json.dumps(value).encode("ascii")


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
