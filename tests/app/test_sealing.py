"""A run folder that was touched anywhere does not verify, and verify says where."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from agent import ROOT, edgeagent, fake, lines, measured_well, result, sentence, sweep

from edgeagent import archive, sealing, signing
from edgeagent.core.result import plain
from edgeagent.errors import UsageError
from edgeagent.store.runfolder import RunFolder, RunReader

KEY = "signing.pem"


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small real run that was interrupted once, so that it has every file that a run may have."""
    folder = tmp_path_factory.mktemp("sealed") / "run"
    measured_well(sweep(folder, fake(), "--prefix-cache=on", "--memory-repeats=1"), folder)
    failed = lines(folder, "cells.jsonl")[0]
    failed["status"] = "failed"
    rest = (folder / "cells.jsonl").read_text().splitlines()[1:]
    (folder / "cells.jsonl").write_text("\n".join([json.dumps(failed), *rest]) + "\n")
    measured_well(edgeagent("sweep", "--resume", folder, "--quiet"), folder)
    return folder


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> signing.KeyPair:
    return signing.new_pair(tmp_path_factory.mktemp("keys") / KEY)


@pytest.fixture(scope="module")
def signed(measured: Path, keys: signing.KeyPair, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("signed") / "run"
    shutil.copytree(measured, folder)
    sealing.sign(folder, keys.private)
    return folder


@pytest.fixture
def unsigned(measured: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(measured, tmp_path / "run"))


@pytest.fixture
def copied(signed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(signed, tmp_path / "run"))


RAW = (
    "plan.json", "environment.json", "requests.jsonl", "memory.jsonl", "cells.jsonl",
    "cells-invalidated.jsonl", "agent.log",
)  # fmt: skip
SEALS = ("result.json", "result.json.sha256", "result.json.sig")


def rewrite(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Edit the result as somebody would who knows of the checksum."""
    document = result(folder)
    change(document)
    text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    (folder / "result.json").write_text(text)
    digest = hashlib.sha256(text.encode()).hexdigest()
    (folder / "result.json.sha256").write_text(f"{digest}  result.json\n")


# ---------------------------------------------------------------------------------- untouched


def test_an_untouched_run_holds_together_and_what_was_looked_at_is_counted(
    signed: Path, keys: signing.KeyPair
) -> None:
    found = sealing.examine(signed, [keys.key])
    assert found.faults == ()
    assert found.notes == ()
    assert found.seal == sealing.Seal("good", True, keys.key.key_id, found.seal.signed_at)
    assert found.files == len(result(signed)["files"])
    assert found.cells == 2
    assert found.numbers > 500


def test_every_file_of_a_run_is_checked_but_for_the_lock(signed: Path) -> None:
    names = {path.name for path in signed.iterdir() if path.is_file()}
    assert names - {".lock"} == {*result(signed)["files"], *SEALS}
    assert {*RAW} <= names


def test_what_was_said_of_an_untouched_run_is_one_line(signed: Path, keys: signing.KeyPair) -> None:
    done = edgeagent("verify", signed, "--key", keys.public)
    assert (done.returncode, done.stdout.count("\n")) == (0, 1)
    assert done.stdout.startswith("ok: ")
    assert f"by {keys.key.key_id} (trusted)" in done.stdout


def test_the_verdict_as_json_has_the_faults_and_more(signed: Path) -> None:
    document = json.loads(edgeagent("verify", signed, "--json").stdout)
    assert (document["ok"], document["faults"]) == (True, [])
    assert document["signature"]["state"] == "good"
    assert document["signature"]["trusted"] is None


# ------------------------------------------------------------------------------- one flipped byte


def flips(data: bytes, seed: str) -> list[tuple[int, int]]:
    """Places and masks: both ends, and three between that are always the same."""
    chance = random.Random(seed)
    between = [chance.randrange(len(data)) for _ in range(3)]
    return list(zip([0, len(data) - 1, *between], (0x01, 0x01, 0x01, 0x20, 0xFF), strict=True))


def names_of(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_file())


def test_a_flipped_byte_in_any_file_is_found_and_named(copied: Path) -> None:
    for name in names_of(copied):
        if name == ".lock":  # holds a process id, and nothing of the run
            continue
        path = copied / name
        whole = path.read_bytes()
        for at, mask in flips(whole, name):
            path.write_bytes(bytes([*whole[:at], whole[at] ^ mask, *whole[at + 1 :]]))
            found = sealing.faults(copied)
            assert any(name in fault for fault in found), (name, at, mask, found)
        path.write_bytes(whole)
    assert sealing.faults(copied) == []


def test_a_flipped_byte_in_the_result_is_found_without_a_signature(unsigned: Path) -> None:
    whole = (unsigned / "result.json").read_bytes()
    for at, mask in flips(whole, "unsigned"):
        flipped = bytes([*whole[:at], whole[at] ^ mask, *whole[at + 1 :]])
        (unsigned / "result.json").write_bytes(flipped)
        assert any("result.json" in fault for fault in sealing.faults(unsigned)), (at, mask)


@pytest.mark.parametrize("name", [*RAW, "result.json.sha256"])
def test_a_file_that_was_taken_away_is_named(copied: Path, name: str) -> None:
    (copied / name).unlink()
    assert any(fault.startswith(f"{name}: is missing") for fault in sealing.faults(copied))


def test_a_cut_file_is_named(copied: Path) -> None:
    data = (copied / "requests.jsonl").read_bytes()
    (copied / "requests.jsonl").write_bytes(data[: len(data) // 2])
    assert any(fault.startswith("requests.jsonl: was changed") for fault in sealing.faults(copied))


def test_an_engine_log_that_was_added_is_named(copied: Path) -> None:
    (copied / "engine-more.log").write_text("ready\n")
    assert sealing.faults(copied) == ["engine-more.log: was added: result.json does not name it"]


def test_what_was_made_of_the_result_and_what_is_not_of_the_run_is_not_checked_and_said(
    copied: Path,
) -> None:
    (copied / "report.html").write_text("<p>anything</p>")
    (copied / "notes.txt").write_text("mine")
    found = sealing.examine(copied)
    assert found.faults == ()
    assert any("report.html is made of result.json" in note for note in found.notes)
    assert any("not part of the run, not checked: notes.txt" in note for note in found.notes)


def test_a_key_that_stands_twice_in_the_result_is_found(copied: Path) -> None:
    text = (copied / "result.json").read_text().replace("{", '{"run_id": "x",', 1)
    (copied / "result.json").write_text(text)
    assert sealing.faults(copied) == [
        "result.json: not JSON as edgeagent writes it (a key stands there twice)"
    ]


# ------------------------------------------------------------------------------------- edited


def test_an_edited_summary_fails_though_unsigned_and_with_a_fitting_checksum(
    unsigned: Path,
) -> None:
    def faster(document: dict[str, Any]) -> None:
        document["cells"][1]["output_tokens_per_s"] *= 1.01

    rewrite(unsigned, faster)
    (fault,) = sealing.faults(unsigned)
    assert fault.startswith("result.json.cells[1].output_tokens_per_s: stored")


@pytest.mark.parametrize("field", ["interference", "memory", "findings", "answers", "knee"])
def test_a_part_that_was_taken_out_of_the_summary_is_found(unsigned: Path, field: str) -> None:
    rewrite(unsigned, lambda document: document.pop(field))
    assert sealing.faults(unsigned)


def test_a_field_that_was_put_into_the_summary_is_found(unsigned: Path) -> None:
    rewrite(unsigned, lambda document: document["cells"][0].update(certified=True))
    assert any("cells[0].certified" in fault for fault in sealing.faults(unsigned))


def test_an_answer_that_was_reworded_is_found(unsigned: Path) -> None:
    rewrite(unsigned, lambda document: document["answers"]["6"].update(text="No problem at all."))
    assert any("result.json.answers.6.text" in fault for fault in sealing.faults(unsigned))


def test_records_that_do_not_fit_fail_though_every_hash_was_made_anew(unsigned: Path) -> None:
    records = lines(unsigned, "requests.jsonl")
    for record in records:
        if record["role"] == "measured":
            record["sent_ns"] += 1_000_000
    text = "".join(json.dumps(record, separators=(",", ":")) + "\n" for record in records)
    (unsigned / "requests.jsonl").write_text(text)
    named = archive.file_hashes(RunReader(unsigned))
    rewrite(unsigned, lambda document: document["files"].update(named))
    found = sealing.faults(unsigned)
    assert any("ttft_s" in fault and fault.startswith("result.json") for fault in found)
    assert any("ttft_s" in fault and fault.startswith("cells.jsonl") for fault in found)


def forge(folder: Path) -> None:
    """Make records, cells, result and every hash anew so that all of it fits."""
    records = lines(folder, "requests.jsonl")
    for record in records:
        if record["role"] == "measured":
            record["sent_ns"] += 1_000_000  # the first token comes a millisecond sooner
    text = "".join(json.dumps(record, separators=(",", ":")) + "\n" for record in records)
    (folder / "requests.jsonl").write_text(text)
    run = archive.recall(RunReader(folder))
    metrics = {cell.cell.cell_id: plain(cell.metrics) for cell in run.measured.cells}
    cells = [
        {**line, **({"metrics": metrics[line["cell_id"]]} if line["cell_id"] in metrics else {})}
        for line in lines(folder, "cells.jsonl")
    ]
    (folder / "cells.jsonl").write_text("".join(json.dumps(cell) + "\n" for cell in cells))
    with RunFolder.resume(folder) as writing:
        found = archive.result_of(
            archive.recall(writing), result(folder)["finished_at"], archive.file_hashes(writing)
        )
        (folder / "result.json").write_text(json.dumps(plain(found), indent=2) + "\n")
    rewrite(folder, lambda _: None)


def test_a_wholly_consistent_forgery_passes_unsigned_and_verify_says_that_it_could(
    unsigned: Path,
) -> None:
    before = result(unsigned)["cells"][0]["ttft_s"]["p50"]
    forge(unsigned)
    assert result(unsigned)["cells"][0]["ttft_s"]["p50"] == pytest.approx(before - 0.001)
    done = edgeagent("verify", unsigned)
    assert done.returncode == 0
    said = " ".join(done.stdout.split())
    assert "unsigned: damage and edits show, but who can write this folder could have" in said


def test_a_wholly_consistent_forgery_of_a_signed_run_fails(copied: Path) -> None:
    forge(copied)
    assert sealing.faults(copied) == [
        "result.json.sig: the result is not the one that was signed: it was changed afterwards"
    ]


def test_a_forger_who_takes_the_signature_away_fails_where_a_key_is_asked_for(
    copied: Path, keys: signing.KeyPair
) -> None:
    forge(copied)
    (copied / "result.json.sig").unlink()
    done = edgeagent("verify", copied, "--key", keys.public)
    assert done.returncode == 1
    assert "result.json.sig: is missing" in done.stdout


def test_a_forger_who_signs_with_a_key_of_their_own_fails_where_a_key_is_asked_for(
    copied: Path, keys: signing.KeyPair, tmp_path: Path
) -> None:
    forge(copied)
    other = signing.new_pair(tmp_path / "other.pem")
    sealing.sign(copied, other.private)
    assert sealing.faults(copied) == []
    found = sealing.examine(copied, [keys.key])
    assert (found.seal.state, found.seal.trusted) == ("good", False)
    (fault,) = found.faults
    assert other.key.key_id in fault
    assert keys.key.key_id in fault


def test_one_of_several_trusted_keys_is_enough(
    copied: Path, keys: signing.KeyPair, tmp_path: Path
) -> None:
    other = signing.new_pair(tmp_path / "other.pem")
    done = edgeagent("verify", copied, "--key", other.public, "--key", keys.public)
    assert done.returncode == 0, done.stdout


# ------------------------------------------------------------------------------------- sealing


def test_a_run_that_is_resumed_loses_the_signature_of_the_result_that_it_replaces(
    copied: Path,
) -> None:
    assert edgeagent("sweep", "--resume", copied, "--quiet").returncode in (0, 1)
    assert not (copied / "result.json.sig").exists()
    assert sealing.faults(copied) == []


def test_a_finished_run_is_signed_by_the_command(unsigned: Path, keys: signing.KeyPair) -> None:
    done = edgeagent("sign", unsigned, "--key", keys.private)
    assert (done.returncode, keys.key.key_id in done.stdout) == (0, True)
    assert edgeagent("verify", unsigned, "--key", keys.public).returncode == 0


def test_a_run_that_does_not_hold_together_is_not_signed(
    unsigned: Path, keys: signing.KeyPair
) -> None:
    (unsigned / "requests.jsonl").write_text("")
    done = edgeagent("sign", unsigned, "--key", keys.private)
    assert done.returncode == 2
    assert "requests.jsonl: was changed" in sentence(done)
    assert not (unsigned / "result.json.sig").exists()


def test_a_signature_whose_place_cannot_be_written_is_told(
    unsigned: Path, keys: signing.KeyPair
) -> None:
    (unsigned / "result.json.sig").mkdir()
    with pytest.raises(UsageError, match=r"result\.json\.sig could not be written"):
        sealing.sign(unsigned, keys.private)
    assert not (unsigned / ".result.json.sig.tmp").exists()


def test_a_run_without_a_result_says_how_to_go_on(unsigned: Path) -> None:
    (unsigned / "result.json").unlink()
    done = edgeagent("verify", unsigned)
    assert done.returncode == 2
    assert "edgeagent sweep --resume" in sentence(done)


# ----------------------------------------------------------------------------- other versions


def test_a_newer_result_with_fields_that_nobody_knows_yet_is_accepted_and_they_are_named(
    unsigned: Path,
) -> None:
    def newer(document: dict[str, Any]) -> None:
        document["schema"] = "edgeagent.result/1.7"
        document["agent"] = {"version": "9.1", "result_fields": "0123456789abcdef"}
        document["forecast"] = [{"engine": "fake", "seconds": 3.0}]
        document["cells"] = [{**cell, "dreams": 1} for cell in document["cells"]]

    environment = json.loads((unsigned / "environment.json").read_text())
    environment["agent"] = {"version": "9.1", "result_fields": "0123456789abcdef"}
    (unsigned / "environment.json").write_text(json.dumps(environment))
    rewrite(unsigned, newer)
    named = archive.file_hashes(RunReader(unsigned))
    rewrite(unsigned, lambda document: document["files"].update(named))
    found = sealing.examine(unsigned)
    assert found.faults == ()
    assert any("not checked: cells[].dreams, forecast" in note for note in found.notes)
    assert found.agent_version == "9.1"


def test_a_number_that_another_version_computed_otherwise_is_told_as_such(unsigned: Path) -> None:
    environment = json.loads((unsigned / "environment.json").read_text())
    environment["agent"] = {"version": "0.0.1"}
    (unsigned / "environment.json").write_text(json.dumps(environment))

    def older(document: dict[str, Any]) -> None:
        document["agent"] = {"version": "0.0.1"}
        document["files"] = archive.file_hashes(RunReader(unsigned))
        document["levels"][0]["metrics"]["ttft_s.mean"]["mean"] *= 2

    rewrite(unsigned, older)
    first, second = sealing.faults(unsigned)
    assert first.startswith("written by edgeagent 0.0.1: metrics recompute differently")
    assert "ttft_s.mean" in second


def test_another_major_version_is_refused_in_one_sentence(unsigned: Path) -> None:
    rewrite(unsigned, lambda document: document.update(schema="edgeagent.result/2"))
    done = edgeagent("verify", unsigned)
    assert done.returncode == 2
    assert "has the schema 'edgeagent.result/2', and this version reads" in sentence(done)


# --------------------------------------------------------------------------------- other tools


def shell_of(page: str, first_word: str) -> str:
    """The block of a documentation page that begins with a word."""
    blocks = (ROOT / "docs" / page).read_text().split("```")
    (block,) = (block for block in blocks if block.startswith(f"sh\n{first_word}"))
    return block.removeprefix("sh\n")


def by_hand(folder: Path, key: Path, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    script = shell_of("signing.md", "# RUN")
    places = {"PATH": "/usr/bin:/bin", "RUN": str(folder), "KEY": str(key)}
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        cwd=tmp_path,
        env=places,
    )


def test_the_documented_check_without_edgeagent_passes_an_untouched_run(
    copied: Path, keys: signing.KeyPair, tmp_path: Path
) -> None:
    done = by_hand(copied, keys.public, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Signature Verified Successfully" in done.stdout


@pytest.mark.parametrize("name", ["requests.jsonl", "result.json", "result.json.sig"])
def test_the_documented_check_without_edgeagent_finds_a_changed_file(
    copied: Path, keys: signing.KeyPair, tmp_path: Path, name: str
) -> None:
    text = (copied / name).read_text()
    at = len(text) - 30
    changed = "1" if text[at] != "1" else "2"
    (copied / name).write_text(text[:at] + changed + text[at + 1 :])
    assert by_hand(copied, keys.public, tmp_path).returncode != 0


def test_the_documented_check_without_edgeagent_finds_a_foreign_key(
    copied: Path, tmp_path: Path
) -> None:
    other = signing.new_pair(tmp_path / "other.pem")
    assert by_hand(copied, other.public, tmp_path).returncode != 0
