"""A command comes out of the spool as it went in, and the documented way to sign one works."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeagent.core.commands import (
    Accepted,
    Note,
    Rejected,
    Sweep,
    advance,
    begin,
    recovered,
    repeated,
)
from edgeagent.errors import ConfigError
from edgeagent.publish import command_rows
from edgeagent.publish.command_rows import Said
from edgeagent.publish.commands import Arrived, Refused, Request, received
from edgeagent.publish.signature import Key, read_key, signed, verify

ID = "0b2f6a5e-1111-4222-8333-444455556666"
DOCUMENT = {
    "schema": "edgeagent.cmd.sweep/1",
    "id": ID,
    "issued_at": 1_796_006_000_000,
    "expires_at": 1_796_009_600_000,
    "issuer": "plant-operator",
    "profile": "nightly-llama",
    "override": {"concurrency": [1, 2], "seconds": 30},
}
GUIDE = Path(__file__).parents[2] / "docs" / "commands.md"


def request() -> Request:
    outcome = received(Arrived(f"cmd/sweep/{ID}", json.dumps(DOCUMENT).encode(), "live"), None)
    assert isinstance(outcome, Request)
    return outcome


# -------------------------------------------------------------------------------------- the spool


def test_a_command_and_its_state_come_back_as_they_were() -> None:
    asked = request()
    first = begin(asked.command, Accepted("start", "nightly-llama", 60), 5)
    running = advance(first, "start", 6, Note(run="r1", done=0, total=8))
    assert running is not None
    row = command_rows.stored(running, Said(asked.fingerprint, asked.document, 5))
    row = replace(row, detail=json.loads(json.dumps(row.detail)))  # as the spool keeps it
    assert command_rows.command(row) == asked.command
    assert command_rows.state(row) == running
    assert command_rows.said(row) == Said(asked.fingerprint, asked.document, 5)
    assert repeated(command_rows.seen(row), asked.fingerprint) == running
    assert (row.at_ms, row.changed_ms) == (5, 6)


def test_a_refusal_comes_back_with_its_code() -> None:
    asked = request()
    refusal = begin(asked.command, Rejected("window", "not now"), 5)
    row = command_rows.stored(refusal, Said(asked.fingerprint, asked.document, 5))
    assert command_rows.state(row) == refusal


def test_who_asked_on_the_box_itself_is_remembered() -> None:
    asked = request()
    row = command_rows.stored(
        begin(asked.command, Accepted("wait"), 5),
        Said(asked.fingerprint, asked.document, 5, "box"),
    )
    again = command_rows.command(row)
    assert isinstance(again, Sweep)
    assert again.head.origin == "box"


def test_a_row_that_follows_the_schema_no_more_is_no_command_but_keeps_its_state() -> None:
    asked = request()
    row = command_rows.stored(begin(asked.command, Accepted("wait"), 5), Said("f", {"id": 1}, 5))
    outcome = command_rows.command(row)
    assert isinstance(outcome, Rejected)
    assert command_rows.state(row).state == "accepted"
    with pytest.raises(ValueError, match="unknown state"):
        command_rows.state(replace(row, state="dancing"))
    with pytest.raises(ValueError, match="unknown operation"):
        command_rows.command(replace(row, op="reboot"))


def test_an_id_that_is_new_was_not_seen() -> None:
    assert command_rows.seen(None) is None


def test_after_a_restart_the_stored_command_that_ran_is_interrupted() -> None:
    asked = request()
    running = advance(begin(asked.command, Accepted("start"), 5), "start", 6)
    assert running is not None
    row = command_rows.stored(running, Said(asked.fingerprint, asked.document, 5))
    (changed,) = recovered([command_rows.state(row)], 9)
    assert (changed.state, changed.reason) == (
        "interrupted",
        "the agent ended while the sweep ran",
    )


# -------------------------------------------------------------------------------------- the signing


def key_file(folder: Path, text: bytes, mode: int = 0o400) -> Path:
    path = folder / "key"
    path.write_bytes(text)
    path.chmod(mode)
    return path


def test_the_way_to_sign_that_the_guide_shows_is_understood(tmp_path: Path) -> None:
    (script,) = re.findall(r"```sh\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    path = key_file(tmp_path, b"0123456789abcdef0123456789abcdef\n")
    subprocess.run(
        ["sh", "-eu", "-c", script],
        cwd=tmp_path,
        env={**os.environ, "KEY": str(path)},
        check=True,
        timeout=120,
    )
    payload = (tmp_path / "signed.json").read_bytes()
    topic = f"cmd/sweep/{json.loads(payload)['id']}"
    key = read_key(str(path))
    outcome = received(Arrived(topic, payload, "live"), key)
    assert isinstance(outcome, Request), outcome
    changed = received(Arrived(topic, payload.replace(b"nightly", b"weekly-"), "live"), key)
    assert isinstance(changed, Refused)
    assert changed.rejected.code == "bad_sig"


def test_the_request_that_the_guide_shows_is_understood() -> None:
    (text,) = re.findall(r"```json\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    topic = f"cmd/sweep/{json.loads(text)['id']}"
    outcome = received(Arrived(topic, text.encode(), "live"), None)
    assert isinstance(outcome, Request), outcome


def test_a_signature_worked_out_by_another_program_is_the_same() -> None:
    """Of openssl: printf '{"a":[1,2],"b":"é"}' | openssl dgst -sha256 -hmac KEY."""
    key = Key(b"0123456789abcdef0123456789abcdef")
    done = subprocess.run(
        ["openssl", "dgst", "-sha256", "-hmac", key.secret.decode()],
        input='{"a":[1,2],"b":"é"}'.encode(),
        capture_output=True,
        check=True,
    )
    wanted = done.stdout.decode().split()[-1]
    assert signed({"b": "é", "sig": "…", "a": [1, 2]}, key) == f"hmac-sha256:{wanted}"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), JSON, max_size=5), JSON)
def test_verifying_never_raises_and_only_the_right_signature_is_good(
    document: dict[str, object], sig: object
) -> None:
    key = Key(b"k" * 32)
    assert verify({**document, "sig": sig}, key) in ("missing", "wrong")


@pytest.mark.parametrize("mode", [0o440, 0o404, 0o420, 0o402, 0o644])
def test_a_key_that_others_may_read_is_not_used(tmp_path: Path, mode: int) -> None:
    path = key_file(tmp_path, b"k" * 32, mode)
    assert stat.S_IMODE(path.stat().st_mode) == mode
    with pytest.raises(ConfigError, match=r"hmac_key_file .*chmod 0400"):
        read_key(str(path))


def test_a_short_key_is_not_used_and_a_key_is_never_shown(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"holds 5 bytes.*openssl rand"):
        read_key(str(key_file(tmp_path, b" short \n")))
    assert "secret-part" not in repr(Key(b"secret-part" * 4))


def test_a_key_that_is_not_there_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"hmac_key_file .*cannot be read"):
        read_key(str(tmp_path / "none"))
