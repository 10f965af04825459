"""What do stored runs look like to whoever has to decide: as a sheet, a table, or rows?

Everything shown stands in each run's result.json; nothing is computed here. A run that was killed
before its end has none: then its records are summed up as `sweep` would have done, nothing is
written into its folder, and the sheet says that the run is not finished.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from edgeagent import __version__, archive, signing
from edgeagent.core.result import SCHEMA, plain
from edgeagent.core.schemas import unreadable
from edgeagent.errors import UsageError
from edgeagent.itself import program
from edgeagent.report.sheet_run import SheetRun
from edgeagent.store.runfolder import RunReader

REPORT_SCHEMA = "edgeagent.report/1"

Form = Literal["html", "text", "csv", "csv-levels", "json"]

_SHEET_S = 300
"""Drawing takes seconds; this is for a box that is busy with something else."""

SIGNATURE = f"{archive.RESULT}.sig"

INSTALL = "pip install 'edgeagent[report]'"


@dataclass(frozen=True)
class StoredResult:
    """A result and where it lies."""

    path: Path
    document: Mapping[str, Any]
    finished: bool
    """Whether it was written by its sweep; else it was summed up now."""


def read_results(paths: Sequence[Path]) -> list[StoredResult]:
    """The results of run folders, or of result files. Raises UsageError."""
    found = [_read(path) for path in paths]
    twice = [name for name, n in Counter(one.path.resolve() for one in found).items() if n > 1]
    if twice:
        raise UsageError(f"{twice[0]} was given twice: name each run once")
    return found


def _read(path: Path) -> StoredResult:
    if path.is_file():
        return StoredResult(path.parent, _of_this_version(_json(path), path), finished=True)
    folder = RunReader(path)
    document = folder.read_document(archive.RESULT)
    if document is not None:
        return StoredResult(path, _of_this_version(document, path / archive.RESULT), finished=True)
    run = archive.recall(folder)
    summed_up = plain(archive.result_of(run, None, archive.file_hashes(folder)))
    return StoredResult(path, summed_up, finished=False)


def _json(path: Path) -> object:
    try:
        value: object = json.loads(path.read_bytes())
    except OSError as error:
        raise UsageError(f"could not read {path}: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(
            f"{path} is neither a run folder nor a result.json: {error}; give the folder that a "
            "sweep named at its end"
        ) from error
    return value


def _of_this_version(document: object, path: Path) -> Mapping[str, Any]:
    if not isinstance(document, dict):
        raise UsageError(f"{path} holds no result: give the folder that a sweep named at its end")
    if why := unreadable(document.get("schema"), SCHEMA):
        raise UsageError(f"{path} {why}")
    return document


# -------------------------------------------------------------------------------------- forms


def rendered(results: Sequence[StoredResult], form: Form, width: int) -> str:
    """The report in one form. Raises UsageError when a library that it needs is missing."""
    documents = [one.document for one in results]
    if form == "html":
        return _html(results)
    if form == "text":
        return "\n\n".join(_text(one, width) for one in results)
    if form == "json":
        runs = [
            {"label": run.label, "finished": one.finished, "result": run.document}
            for run, one in zip(labelled(results), results, strict=True)
        ]
        return json.dumps({"schema": REPORT_SCHEMA, "runs": runs}, indent=2) + "\n"
    from edgeagent.report import flat

    return flat.cells(documents) if form == "csv" else flat.levels(documents)


def _text(one: StoredResult, width: int) -> str:
    from edgeagent.report import answers
    from edgeagent.report.terminal import render

    tables = render(one.document, one.path, width)
    return f"{answers.render(one.document, width)}{tables}"


def _html(results: Sequence[StoredResult]) -> str:
    missing = [name for name in ("jinja2", "matplotlib") if find_spec(name) is None]
    if missing:
        raise UsageError(
            f"the sheet needs {' and '.join(missing)}, which is not installed: {INSTALL} (Debian: "
            "apt install python3-jinja2 python3-matplotlib); --text, --csv and --json work without"
        )
    # Imported here: drawing takes memory that the other forms can do without.
    from edgeagent.report.plots import plots
    from edgeagent.report.sheet import How, RunHow, sheet_html

    runs = labelled(results)
    how = tuple(RunHow(command=_command(one.document), finished=one.finished) for one in results)
    return sheet_html(runs, plots(runs), How(how, __version__))


def _signature(one: StoredResult) -> str:
    """What is known of the run's signature, in a sentence."""
    try:
        data = (one.path / SIGNATURE).read_bytes()
    except OSError:
        return "none: whoever has this file could have written it"
    try:
        found = signing.check(data, one.document)
    except UsageError as error:
        return f"there is one, and it was not checked: {error}"
    if found.faults:
        return f"there is one, and it is worth nothing: {'; '.join(found.faults)}"
    return (
        f"good, by the key {found.key_id}: compare it with the key that the box's owner names "
        "(edgeagent verify RUN --key FILE)"
    )


def _command(document: Mapping[str, Any]) -> str | None:
    """The words by which the run was asked for, as a shell takes them."""
    words = document.get("command")
    return shlex.join(map(str, words)) if isinstance(words, list) else None


def labelled(results: Sequence[StoredResult]) -> list[SheetRun]:
    """Each run with the shortest name that tells it from the others: box, then run."""
    hosts = [_host(one.document) for one in results]
    return [
        SheetRun(
            host if hosts.count(host) == 1 else f"{host} {one.document.get('run_id')}",
            one.document,
        )
        for host, one in zip(hosts, results, strict=True)
    ]


def _host(document: Mapping[str, Any]) -> str:
    host = document.get("host")
    name = host.get("hostname") if isinstance(host, Mapping) else None
    return str(name or "unknown box")


def write_beside(folder: Path) -> str | None:
    """Write a run's sheet into its folder; return why there is none, in a sentence, or None.

    In a process of its own: drawing takes memory that a measuring agent does not have to spare.
    """
    try:
        done = subprocess.run(
            [*program(), "report", str(folder.absolute())],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_SHEET_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"drawing took over {_SHEET_S} s; try again with: edgeagent report {folder}"
    if done.returncode == 0:
        return None
    last = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
    return last[0].removeprefix("edgeagent: ") if last else f"exit status {done.returncode}"


def write(text: str, path: Path) -> None:
    """Replace a file by `text`, wholly or not at all. Raises UsageError."""
    draft: str | None = None
    try:
        with tempfile.NamedTemporaryFile(
            "w", dir=path.parent, prefix=f".{path.name}.", delete=False, encoding="utf-8",
            newline="", errors="backslashreplace",
        ) as file:  # fmt: skip
            draft = file.name
            file.write(text)
            os.fchmod(file.fileno(), 0o666 & ~_umask())
        Path(draft).replace(path)
    except OSError as error:
        if draft is not None:
            with suppress(OSError):
                Path(draft).unlink()
        raise UsageError(
            f"could not write {path}: {error.strerror or error}; name a file in a folder that is "
            "writable and has room (-o FILE)"
        ) from error


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
