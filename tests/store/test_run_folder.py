"""A run folder on a real disk: made, written, read back, resumed, refused."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from edgeagent.core.model import MemorySample, RequestTrace
from edgeagent.errors import BusyError, EdgeAgentError, UsageError
from edgeagent.store.runfolder import RunFolder, RunReader


def request(index: int, cell: str = "c1", attempt: str = "a1") -> RequestTrace:
    return RequestTrace(
        cell, attempt, index, "measured", index, event_ns=(1, 2), event_tokens=(1, 1)
    )


def sample(at_ns: int, cell: str | None = "c1") -> MemorySample:
    return MemorySample(at_ns, 0, cell, {"host.used_bytes": at_ns})


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[RunFolder]:
    with RunFolder.create(tmp_path / "run") as made:
        yield made


# ---------------------------------------------------------------------------------------- making


def test_without_a_name_a_fresh_folder_is_made_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the default is relative to where the operator stands
    with RunFolder.create() as first, RunFolder.create() as second:
        assert first.path.parent == Path("edgeagent-runs")
        assert first.path != second.path
        assert first.path.is_dir()


def test_a_folder_that_exists_and_is_empty_is_used(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path) as folder:
        assert folder.path == tmp_path


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")

    with pytest.raises(UsageError, match="has something in it"):
        RunFolder.create(tmp_path)

    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_finished_run_is_not_written_over(tmp_path: Path) -> None:
    RunFolder.create(tmp_path / "run").close()

    with pytest.raises(UsageError, match=r"--resume"):
        RunFolder.create(tmp_path / "run")


def test_a_second_agent_is_told_to_wait(folder: RunFolder) -> None:
    for enter in (RunFolder.create, RunFolder.resume):
        with pytest.raises(BusyError, match="another edgeagent is at work"):
            enter(folder.path)


def test_when_the_first_has_closed_the_next_may_go_on(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "run") as first:
        first.append_request(request(0))
    with RunFolder.resume(tmp_path / "run") as second:
        second.append_request(request(1))
        assert [trace.index for trace in second.traces("c1", "a1")] == [0, 1]


def test_what_cannot_be_made_is_one_sentence_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(UsageError, match="could not make the run folder"):
        RunFolder.create(tmp_path / "file" / "run")

    with pytest.raises(UsageError, match="could not make the run folder"):
        RunFolder.create(tmp_path / "new" / ("x" * 300))
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_folder_without_write_permission_is_refused(ordinary_folder: Path) -> None:
    ordinary_folder.chmod(0o555)
    with pytest.raises(UsageError, match="Permission denied"):
        RunFolder.create(ordinary_folder / "run")


@pytest.mark.parametrize("enter", [RunReader, RunFolder.resume])
def test_what_is_no_run_folder_is_not_read_as_one(tmp_path: Path, enter: type[RunReader]) -> None:
    with pytest.raises(UsageError, match="not a run folder"):
        enter(tmp_path)
    with pytest.raises(UsageError, match="could not read"):
        enter(tmp_path / "nothing")
    assert list(tmp_path.iterdir()) == []


# ----------------------------------------------------------------------------------- raw records


def test_requests_come_back_by_cell_and_attempt_in_the_order_they_ended(folder: RunFolder) -> None:
    for index, cell, attempt in [
        (2, "c1", "a1"),
        (0, "c1", "a1"),
        (0, "c2", "a1"),
        (1, "c1", "a1"),
        (0, "c1", "a2"),
    ]:
        folder.append_request(request(index, cell, attempt))

    assert [trace.index for trace in folder.traces("c1", "a1")] == [2, 0, 1]
    assert [trace.index for trace in folder.traces("c1", "a2")] == [0]
    assert list(folder.traces("c3", "a1")) == []


def test_records_written_after_a_reading_are_read_the_next_time(folder: RunFolder) -> None:
    folder.append_request(request(0))
    assert len(list(folder.traces("c1", "a1"))) == 1

    folder.append_request(request(1))
    assert len(list(folder.traces("c1", "a1"))) == 2


def test_a_cell_name_with_quotes_or_umlauts_is_found_again(folder: RunFolder) -> None:
    for cell in ('a"b\\c', "Schütz", ""):
        folder.append_request(request(0, cell))
        folder.append_sample(sample(5, cell))

        assert [trace.cell_id for trace in folder.traces(cell, "a1")] == [cell]
        assert [found.cell_id for found in folder.samples(cell)] == [cell]


def test_samples_come_back_by_cell_and_time_both_ends_included(folder: RunFolder) -> None:
    for at_ns in range(10):
        folder.append_sample(sample(at_ns, "c1" if at_ns < 8 else None))

    assert [found.at_ns for found in folder.samples("c1", 3, 5)] == [3, 4, 5]
    assert [found.at_ns for found in folder.samples("c1", 6)] == [6, 7]
    assert [found.at_ns for found in folder.samples(None)] == [8, 9]


def test_one_cell_is_read_without_reading_the_others(folder: RunFolder) -> None:
    for cell in range(200):
        folder.append_request(request(0, f"c{cell}"))
    list(folder.traces("c0", "a1"))  # every byte has been looked at once

    looked_at = folder._requests.seen
    spans = folder._requests.spans[b'"c150","a1"']
    assert looked_at == (folder.path / "requests.jsonl").stat().st_size
    assert len(spans) == 1
    assert spans[0].end - spans[0].start < looked_at / 100


def test_two_threads_may_append_at_once(folder: RunFolder) -> None:
    def work(cell: str) -> None:
        for index in range(300):
            folder.append_request(request(index, cell))
            folder.append_sample(sample(index, cell))

    threads = [threading.Thread(target=work, args=(cell,)) for cell in ("c1", "c2")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    for cell in ("c1", "c2"):
        assert [trace.index for trace in folder.traces(cell, "a1")] == list(range(300))
        assert [found.at_ns for found in folder.samples(cell)] == list(range(300))


@pytest.mark.parametrize("torn", [b'{"cell_id":"c1","attempt":"a1","ind', b"\0\0\0\0", b'"'])
def test_a_torn_last_line_costs_itself_alone(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "run"
    with RunFolder.create(path) as folder:
        folder.append_request(request(0))
        folder.append_sample(sample(0))
        folder.append_cell({"cell_id": "c1"})
    for name in ("requests.jsonl", "memory.jsonl", "cells.jsonl"):
        with (path / name).open("ab") as file:
            file.write(torn)

    reader = RunReader(path)
    assert len(list(reader.traces("c1", "a1"))) == 1
    assert len(list(reader.samples("c1"))) == 1
    assert reader.cells() == ({"cell_id": "c1"},)

    with RunFolder.resume(path) as folder:
        folder.append_request(request(1))
        folder.append_sample(sample(1))
        folder.append_cell({"cell_id": "c2"})
        assert [trace.index for trace in folder.traces("c1", "a1")] == [0, 1]
        assert [found.at_ns for found in folder.samples("c1")] == [0, 1]
        assert [cell["cell_id"] for cell in folder.cells()] == ["c1", "c2"]
        assert folder.torn_lines >= 1


def test_a_line_that_was_changed_is_refused_and_not_passed_over(folder: RunFolder) -> None:
    with (folder.path / "requests.jsonl").open("ab") as file:
        file.write(b'{"cell_id":"c1","attempt":"a1","index":"edited"}\n')

    with pytest.raises(UsageError, match="no record of this version"):
        list(folder.traces("c1", "a1"))


# --------------------------------------------------------------------------- cells and documents


def test_of_two_lines_for_one_cell_the_later_counts(folder: RunFolder) -> None:
    for repeat, cell in enumerate(("c1", "c2", "c1")):
        folder.append_cell({"cell_id": cell, "n": repeat})

    assert folder.cells() == ({"cell_id": "c2", "n": 1}, {"cell_id": "c1", "n": 2})


def test_dropped_cells_are_kept_aside_and_others_stay(folder: RunFolder) -> None:
    for cell in ("c1", "c2", "c3"):
        folder.append_cell({"cell_id": cell})

    folder.drop_cells({"c1", "c3", "unknown"})
    folder.append_cell({"cell_id": "c4"})

    assert [cell["cell_id"] for cell in folder.cells()] == ["c2", "c4"]
    aside = (folder.path / "cells-invalidated.jsonl").read_text().splitlines()
    assert [json.loads(line)["cell_id"] for line in aside] == ["c1", "c3"]


def test_dropping_nothing_writes_nothing(folder: RunFolder) -> None:
    folder.append_cell({"cell_id": "c1"})
    before = (folder.path / "cells.jsonl").stat().st_ino

    folder.drop_cells({"c9"})

    assert (folder.path / "cells.jsonl").stat().st_ino == before
    assert not (folder.path / "cells-invalidated.jsonl").exists()


def test_a_document_comes_back_and_an_unwritten_one_is_none(folder: RunFolder) -> None:
    value = {"path": "/models/\udce4.gguf", "text": "Schütz 5 °C", "n": None}

    folder.write_document("plan.json", value)

    assert folder.read_document("plan.json") == value
    assert folder.read_document("result.json") is None
    assert "Schütz 5 °C" in (folder.path / "plan.json").read_text("utf-8")


def test_a_document_is_replaced_wholly_or_not_at_all(folder: RunFolder) -> None:
    folder.write_document("plan.json", {"n": 1})

    with pytest.raises(ValueError, match="JSON"):
        folder.write_document("plan.json", {"n": float("nan")})

    assert folder.read_document("plan.json") == {"n": 1}
    assert not list(folder.path.glob("*.tmp"))
    assert not list(folder.path.glob(".*.tmp"))


def test_a_document_that_was_damaged_is_one_sentence(folder: RunFolder) -> None:
    (folder.path / "plan.json").write_text('{"n": 1')

    with pytest.raises(UsageError, match="is not JSON"):
        folder.read_document("plan.json")


def test_hashes_are_those_of_the_files_that_exist(folder: RunFolder) -> None:
    folder.append_cell({"cell_id": "c1"})
    content = (folder.path / "cells.jsonl").read_bytes()

    assert folder.hashes(["cells.jsonl", "absent.jsonl"]) == {
        "cells.jsonl": hashlib.sha256(content).hexdigest()
    }


# -------------------------------------------------------------------- read-only and full disks


def test_reading_needs_no_lock_and_writes_nothing(folder: RunFolder) -> None:
    folder.append_request(request(0))
    folder.append_sample(sample(0))
    folder.append_cell({"cell_id": "c1"})
    folder.write_document("plan.json", {"n": 1})
    before = {path.name: path.stat().st_mtime_ns for path in folder.path.iterdir()}

    reader = RunReader(folder.path)

    assert len(list(reader.traces("c1", "a1"))) == 1
    assert len(list(reader.samples("c1"))) == 1
    assert len(reader.cells()) == 1
    assert reader.read_document("plan.json") == {"n": 1}
    assert reader.hashes(["plan.json"])
    assert {path.name: path.stat().st_mtime_ns for path in folder.path.iterdir()} == before


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "disk"
    path.mkdir()
    mount, umount = shutil.which("mount"), shutil.which("umount")
    if mount is None or umount is None:
        pytest.skip("there is no mount")
    command = [mount, "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(path)]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("mounting a small disk needs root")
    try:
        yield path
    finally:
        subprocess.run([umount, str(path)], check=True)


def _fill(path: Path) -> None:
    """Write until the disk takes no more."""
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(b"x" * 4096)


def _append_until_refused(folder: RunFolder) -> tuple[int, EdgeAgentError]:
    for index in range(100_000):
        try:
            folder.append_request(request(index))
        except EdgeAgentError as error:
            return index, error
    raise AssertionError("the disk never became full")


def test_a_disk_that_becomes_full_keeps_what_was_written(small_disk: Path) -> None:
    with RunFolder.create(small_disk / "run") as folder:
        kept, error = _append_until_refused(folder)

        assert "No space left on device" in str(error)
        assert "--resume" in str(error)
        with pytest.raises(EdgeAgentError, match="No space left on device"):
            folder.write_document("result.json", {"text": "x" * 5000})
        assert folder.read_document("result.json") is None
        assert [trace.index for trace in folder.traces("c1", "a1")] == list(range(kept))
        assert folder.torn_lines == 0


def test_a_run_goes_on_once_the_disk_has_room_again(small_disk: Path) -> None:
    _fill(small_disk / "filler")
    os.truncate(small_disk / "filler", 32 * 1024)
    with RunFolder.create(small_disk / "run") as folder:
        kept, _ = _append_until_refused(folder)
        (small_disk / "filler").unlink()
        folder.append_request(request(kept))

        assert [trace.index for trace in folder.traces("c1", "a1")] == list(range(kept + 1))


def test_a_full_disk_is_found_when_the_folder_is_made_and_nothing_is_left(
    small_disk: Path,
) -> None:
    _fill(small_disk / "filler")

    with pytest.raises(UsageError, match="No space left on device"):
        RunFolder.create(small_disk / "run")

    assert [path.name for path in small_disk.iterdir()] == ["filler"]


def test_a_read_only_disk_can_be_read_and_not_resumed(small_disk: Path) -> None:
    path = small_disk / "run"
    with RunFolder.create(path) as folder:
        folder.append_request(request(0))
        folder.append_cell({"cell_id": "c1"})
        folder.write_document("result.json", {"n": 1})
    subprocess.run([shutil.which("mount") or "", "-o", "remount,ro", str(small_disk)], check=True)

    reader = RunReader(path)
    assert len(list(reader.traces("c1", "a1"))) == 1
    assert reader.read_document("result.json") == {"n": 1}
    assert reader.hashes(["cells.jsonl"])
    with pytest.raises(UsageError, match="Read-only file system"):
        RunFolder.resume(path)
    with pytest.raises(UsageError, match="Read-only file system"):
        RunFolder.create(small_disk / "other")


# ------------------------------------------------------------------------------------ kill -9

WRITER = """
import sys
from pathlib import Path
from edgeagent.core.model import RequestTrace
from edgeagent.store.runfolder import RunFolder

folder = RunFolder.create(Path(sys.argv[1]))
folder.write_document("plan.json", {"n": 0})
number = 0
while True:
    cell = f"c{number}"
    for index in range(20):
        folder.append_request(
            RequestTrace(cell, "a1", index, "measured", 1, event_ns=(1,) * 50)
        )
    folder.append_cell({"cell_id": cell, "requests": 20})
    folder.write_document("result.json", {"cells": number + 1, "padding": "x" * 20000})
    number += 1
    print(number, flush=True)
"""


@pytest.mark.parametrize("cells_before_the_kill", [1, 7])
def test_a_killed_writer_loses_no_finished_cell_and_the_folder_goes_on(
    tmp_path: Path, cells_before_the_kill: int
) -> None:
    path = tmp_path / "run"
    source = str(Path(__file__).parents[2])
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": source},
    )
    with writer:
        assert writer.stdout is not None
        for _ in range(cells_before_the_kill):
            writer.stdout.readline()
        writer.kill()

    with RunFolder.resume(path) as folder:
        finished = folder.cells()
        assert len(finished) >= cells_before_the_kill
        for cell in finished:
            assert len(list(folder.traces(str(cell["cell_id"]), "a1"))) == cell["requests"]
        assert folder.read_document("plan.json") == {"n": 0}
        result = folder.read_document("result.json")
        assert isinstance(result, dict)
        assert result["cells"] in {len(finished) - 1, len(finished)}
        folder.append_cell({"cell_id": "next", "requests": 0})
    assert RunReader(path).cells()[-1] == {"cell_id": "next", "requests": 0}
