"""A whole sweep, as a user sees it: its result, its interruptions, its faults."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pytest
from agent import (
    SMALL,
    begun,
    edgeagent,
    fake,
    lines,
    measured_well,
    processes_of,
    result,
    sentence,
    sweep,
    until,
)
from trees import unpack


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    measured_well(sweep(folder, fake()), folder)
    return folder


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "copy"))


# ------------------------------------------------------------------------------- what it gives


def test_every_request_is_served_and_the_result_keeps_to_its_published_schema(
    finished: Path,
) -> None:
    document = result(finished)
    schema = json.loads(edgeagent("schema", "result").stdout)
    jsonschema.validate(document, schema)
    assert document["status"] == "complete"
    assert [cell["requests"]["ok"] for cell in document["cells"]] == [4] * 4


def test_the_cache_is_proved_cold_and_warm(finished: Path) -> None:
    fractions = {
        (cell["prefix_cache"], cell["concurrency"]): cell["cached_prompt_fraction"]
        for cell in result(finished)["cells"]
    }
    # 48 of 64 prompt tokens are shared
    assert fractions == {("off", 1): 0.0, ("off", 2): 0.0, ("on", 1): 0.75, ("on", 2): 0.75}


def test_a_finished_run_verifies(finished: Path) -> None:
    done = edgeagent("verify", finished)
    assert (done.returncode, done.stdout[:3]) == (0, "ok:")


def test_no_two_requests_of_a_run_share_a_prompt_by_accident(finished: Path) -> None:
    # Cold: every request cold. Warm: exactly the shared opening, so neither another cell nor the
    # warm-up has left anything longer that matched.
    for trace in lines(finished, "requests.jsonl"):
        assert trace.get("cached_tokens") in (0, 48)


def test_json_is_all_there_is_on_standard_output(tmp_path: Path) -> None:
    done = edgeagent(
        "sweep", *fake(), *SMALL, "--prefix-cache=off", "--out", tmp_path / "r", "--json"
    )
    assert json.loads(done.stdout)["schema"] == "edgeagent.result/1"


def test_the_table_and_the_progress_appear_without_colour_in_a_pipe(tmp_path: Path) -> None:
    done = edgeagent("sweep", *fake(), *SMALL, "--prefix-cache=off", "--out", tmp_path / "r")
    assert "tokens/s" in done.stdout
    assert "measuring" in done.stderr
    assert "\x1b" not in done.stdout + done.stderr


def test_own_traffic_may_stop_by_itself(tmp_path: Path) -> None:
    traffic = tmp_path / "traffic.jsonl"
    chat = '{"messages": [{"role": "user", "content": "hi"}]}'
    traffic.write_text(f'{{"prompt": "check the press"}}\n{chat}\n')
    folder = tmp_path / "r"
    measured_well(sweep(folder, fake(), "--prompts", traffic, "--prefix-cache=off"), folder)


# --------------------------------------------------------------------------------- verification


@pytest.mark.parametrize(
    "name", ["plan.json", "environment.json", "requests.jsonl", "memory.jsonl", "cells.jsonl"]
)
def test_one_changed_byte_in_a_raw_file_is_found_and_named(copied: Path, name: str) -> None:
    path = copied / name
    data = bytearray(path.read_bytes())
    at = data.index(b"1", len(data) // 2)
    data[at : at + 1] = b"2"
    path.write_bytes(bytes(data))
    done = edgeagent("verify", copied)
    assert done.returncode == 1
    assert name in done.stdout


def test_an_edited_summary_is_found_and_named(copied: Path) -> None:
    document = result(copied)
    document["cells"][1]["output_tokens_per_s"] *= 1.01
    (copied / "result.json").write_text(json.dumps(document))
    done = edgeagent("verify", copied)
    assert done.returncode == 1
    assert "cells[1].output_tokens_per_s" in done.stdout


def test_a_run_on_a_read_only_copy_verifies_without_writing(copied: Path) -> None:
    before = {path.name: path.stat().st_mtime_ns for path in copied.iterdir()}
    assert edgeagent("verify", copied).returncode == 0
    assert before == {path.name: path.stat().st_mtime_ns for path in copied.iterdir()}


# -------------------------------------------------------------------------- ends before its end

SLOW = fake(ttft_ms=100, itl_ms=150)


def measuring(folder: Path) -> bool:
    """Whether the first cell is finished and another one has requests."""
    cells = folder / "cells.jsonl"
    if not cells.exists() or not cells.read_text():
        return False
    done = {line["cell_id"] for line in lines(folder, "cells.jsonl")}
    seen = lines(folder, "requests.jsonl")
    return any(t["cell_id"] not in done for t in seen if t["role"] in ("measured", "lead_in"))


def test_after_a_kill_nothing_is_left_and_only_what_is_missing_is_measured(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = begun("sweep", *SLOW, *SMALL, "--prefix-cache=off", "--out", folder, "--quiet")
    until(lambda: folder.exists() and measuring(folder), "the second cell")
    process.kill()
    process.communicate()
    until(lambda: not processes_of(folder), "the end of the engine")
    kept = lines(folder, "cells.jsonl")
    assert len(kept) == 1
    measured_well(edgeagent("sweep", "--resume", folder, "--quiet"), folder)
    after = lines(folder, "cells.jsonl")
    assert after[0] == kept[0]
    assert len({line["cell_id"] for line in after}) == len(after) == 2
    seen = lines(folder, "requests.jsonl")
    of_first = [t for t in seen if t["cell_id"] == kept[0]["cell_id"] and t["role"] == "measured"]
    assert {trace["attempt"] for trace in of_first} == {kept[0]["attempt"]}
    assert len({t["attempt"] for t in seen if t["role"] == "warmup"}) == 2
    assert edgeagent("verify", folder).returncode == 0


def test_a_signal_that_the_kernel_repeats_still_ends_the_run_in_order(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    process = begun("sweep", *SLOW, *SMALL, "--prefix-cache=off", "--out", folder, "--quiet")
    until(lambda: (folder / "requests.jsonl").exists() and processes_of(folder), "the engine")
    until((folder / "requests.jsonl").read_text, "the first answer")
    for _ in range(20):
        process.send_signal(signal.SIGTERM)
        time.sleep(0.1)  # so that each is seen apart from the one before
    process.communicate()
    assert process.returncode in (143, -signal.SIGTERM)  # one may come when all is done
    assert result(folder)["status"] in ("failed", "partial")


@pytest.mark.parametrize(("name", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_keeps_what_was_measured_and_says_how_to_go_on(
    tmp_path: Path, name: signal.Signals, status: int
) -> None:
    folder = tmp_path / "run"
    process = begun("sweep", *SLOW, *SMALL, "--prefix-cache=off", "--out", folder, "--quiet")
    until(lambda: folder.exists() and measuring(folder), "the second cell")
    process.send_signal(name)
    _, told = process.communicate(timeout=30)
    assert process.returncode == status
    assert f"--resume {folder}" in told
    assert "Traceback" not in told
    assert not processes_of(folder)
    document = result(folder)
    assert document["status"] == "partial"
    assert len(document["cells"]) == 1
    cut = [t for t in lines(folder, "requests.jsonl") if t.get("error") == "interrupted"]
    assert cut


def test_a_sweep_that_is_over_its_time_ends_in_order(tmp_path: Path) -> None:
    done = sweep(tmp_path / "r", SLOW, "--sweep-timeout=2", "--prefix-cache=off")
    assert done.returncode in (1, 3)
    assert "2 s were over" in done.stderr
    assert not processes_of(tmp_path)


def wrapper(path: Path, text: str) -> Path:
    path.write_text(
        f'#!/bin/sh\n{text}\nexec {sys.executable} -m edgeagent.engines.scripted "$@"\n'
    )
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_a_changed_binary_invalidates_its_cells(tmp_path: Path) -> None:
    binary = wrapper(tmp_path / "engine", "# one")
    folder = tmp_path / "run"
    flags = [part.replace("fake=", "llamacpp=") for part in fake()[1:]]
    model = tiny_model(tmp_path / "m.gguf")
    done = edgeagent(
        "sweep", "--engine=llamacpp", "--binary", binary, "--model", model, *flags, *SMALL,
        "--prefix-cache=off", "--out", folder, "--quiet",
    )  # fmt: skip
    measured_well(done, folder)
    old = {line["cell_id"] for line in lines(folder, "cells.jsonl")}
    wrapper(binary, "# two")
    measured_well(edgeagent("sweep", "--resume", folder, "--quiet"), folder)
    new = {line["cell_id"] for line in lines(folder, "cells.jsonl")}
    assert len(new) == 2
    assert not old & new
    assert {line["cell_id"] for line in lines(folder, "cells-invalidated.jsonl")} == old


def tiny_model(path: Path) -> Path:
    """The smallest whole GGUF file: a header without tensors."""
    path.write_bytes(b"GGUF" + (3).to_bytes(4, "little") + bytes(24))
    return path


# ---------------------------------------------------------------------------------------- faults


def test_failed_requests_are_counted_by_kind_and_doubt_their_cell(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    engine = fake("--fault=in_band_error", "--fault-every=3")
    done = sweep(folder, engine, "--prefix-cache=off", "--requests=6")
    assert done.returncode == 1
    cell = result(folder)["cells"][0]
    assert cell["status"] == "suspect"
    assert cell["requests"]["failed"] >= 1
    assert set(cell["requests"]["errors"]) == {"in_band"}
    assert cell["requests"]["ok"] + cell["requests"]["failed"] == 6
    assert "failed_requests" in cell["findings"]


def test_an_engine_that_dies_mid_cell_fails_it_and_is_measured_again_on_resume(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "run"
    engine = fake("--fault=die", "--fault-every=5")
    done = sweep(folder, engine, "--prefix-cache=off")
    assert done.returncode == 1
    document = result(folder)
    assert any(finding["code"] == "engine_died" for finding in document["findings"])
    failed = [c["cell_id"] for c in document["cells"] if c["status"] == "failed"]
    assert failed
    edgeagent("sweep", "--resume", folder, "--quiet")
    ids = [line["cell_id"] for line in lines(folder, "cells.jsonl")]
    assert len(ids) == len(set(ids))
    assert {line["cell_id"] for line in lines(folder, "cells-invalidated.jsonl")} >= set(failed)


def test_a_stream_that_never_ends_costs_a_request_and_not_the_sweep(tmp_path: Path) -> None:
    engine = fake("--fault=never_end", "--fault-every=4")
    done = sweep(tmp_path / "r", engine, "--prefix-cache=off", "--timeout=2")
    assert done.returncode == 1
    errors = [cell["requests"]["errors"] for cell in result(tmp_path / "r")["cells"]]
    assert any("deadline" in kinds or "idle" in kinds for kinds in errors), errors


def test_strict_counts_a_suspect_cell_as_failed(tmp_path: Path) -> None:
    engine = fake("--fault=short", "--fault-every=3")
    # A recorded box: a strict sweep refuses one on which other programs are busy.
    environ = {"EDGEAGENT_SYSROOT": str(unpack("cpu", tmp_path))}
    done = sweep(tmp_path / "r", engine, "--prefix-cache=off", "--strict", environ=environ)
    assert done.returncode == 1, done.stderr
    assert "failed" in {cell["status"] for cell in result(tmp_path / "r")["cells"]}


def test_two_agents_do_not_share_a_run_folder(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = begun("sweep", *SLOW, *SMALL, "--prefix-cache=off", "--out", folder, "--quiet")
    until((folder / "requests.jsonl").exists, "the first run")
    second = edgeagent("sweep", "--resume", folder, "--quiet")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert second.returncode == 75
    assert "another edgeagent" in sentence(second)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    path = tmp_path / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=112k", "none", str(path)]
    if subprocess.run(mount, check=False).returncode:
        pytest.skip("mounting is not allowed here")
    yield path
    subprocess.run(["umount", str(path)], check=True)


def test_a_full_disk_ends_the_sweep_in_one_sentence_and_keeps_what_was_written(
    small_disk: Path,
) -> None:
    folder = small_disk / "run"
    quick = fake(ttft_ms=1, itl_ms=1)
    done = sweep(folder, quick, "--requests=2000", "--output-tokens=60", "--prefix-cache=off")
    assert done.returncode == 2
    assert "no space left" in sentence(done).lower()
    assert (folder / "requests.jsonl").stat().st_size > 0
    assert not processes_of(small_disk)
