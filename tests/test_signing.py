"""Keys are kept safe, signatures fit one document by one key, and every edit shows."""

from __future__ import annotations

import base64
import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeagent import signing
from edgeagent.core.canonical import canonical, digest
from edgeagent.errors import UsageError
from edgeagent.signing import PublicKey, check, new_pair, read_public, signature

DOCUMENT: dict[str, Any] = {"schema": "edgeagent.result/1", "cells": [{"ttft_s": 0.25}], "é": "ü"}
WHEN = "2026-01-02T03:04:05Z"


@pytest.fixture
def pair(tmp_path: Path) -> signing.KeyPair:
    return new_pair(tmp_path / "signing.pem")


def openssl(*words: object, data: bytes | None = None) -> bytes:
    done = subprocess.run(
        ["openssl", *map(str, words)], input=data, capture_output=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


# ---------------------------------------------------------------------------------------- keys


def test_a_new_private_key_is_its_owners_alone(pair: signing.KeyPair) -> None:
    assert stat.S_IMODE(pair.private.stat().st_mode) == 0o600
    assert pair.public.name == "signing.pem.pub"
    assert "PRIVATE" not in pair.public.read_text()


def test_a_new_private_key_is_its_owners_alone_under_any_umask(tmp_path: Path) -> None:
    code = (
        "import os, pathlib; os.umask(0); from edgeagent.signing import new_pair; "
        f"new_pair(pathlib.Path({str(tmp_path / 'k.pem')!r}))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    assert stat.S_IMODE((tmp_path / "k.pem").stat().st_mode) == 0o600


def test_two_keys_are_never_the_same(tmp_path: Path) -> None:
    assert new_pair(tmp_path / "a").key != new_pair(tmp_path / "b").key


def test_a_key_that_exists_is_not_overwritten(pair: signing.KeyPair) -> None:
    before = pair.private.read_bytes()
    with pytest.raises(UsageError, match=r"exists.*--force"):
        new_pair(pair.private)
    assert pair.private.read_bytes() == before


def test_a_public_key_that_exists_is_not_overwritten_either(pair: signing.KeyPair) -> None:
    pair.private.unlink()
    with pytest.raises(UsageError, match=r"signing\.pem\.pub exists"):
        new_pair(pair.private)


def test_where_a_new_one_is_wanted_the_old_ones_are_kept(pair: signing.KeyPair) -> None:
    second = new_pair(pair.private, "keep_aside")
    third = new_pair(pair.private, "keep_aside")
    assert [path.name for path in second.kept] == ["signing.pem.old-1", "signing.pem.pub.old-1"]
    assert [path.name for path in third.kept] == ["signing.pem.old-2", "signing.pem.pub.old-2"]
    assert read_public(second.kept[1]) == pair.key
    assert read_public(third.kept[1]) == second.key
    assert stat.S_IMODE(second.kept[0].stat().st_mode) == 0o600


def test_a_link_is_not_written_through(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    (tmp_path / "k.pem").symlink_to(elsewhere)
    with pytest.raises(UsageError, match="exists"):
        new_pair(tmp_path / "k.pem")
    new_pair(tmp_path / "k.pem", "keep_aside")
    assert not elsewhere.exists()
    assert not (tmp_path / "k.pem").is_symlink()


def test_a_place_where_nothing_can_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="could not be written") as caught:
        new_pair(tmp_path / "file" / "k.pem")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644])
def test_a_key_that_others_can_read_is_refused(pair: signing.KeyPair, mode: int) -> None:
    pair.private.chmod(mode)
    with pytest.raises(UsageError, match=f"mode {mode:04o}.*chmod 600"):
        signature(DOCUMENT, pair.private, WHEN)


def test_a_systemd_credential_is_found_by_its_name_and_its_access_list_is_no_fault(
    pair: signing.KeyPair, tmp_path: Path
) -> None:
    folder = tmp_path / "credentials"
    folder.mkdir()
    (folder / "signing").write_bytes(pair.private.read_bytes())
    (folder / "signing").chmod(0o440)
    environ = {"CREDENTIALS_DIRECTORY": str(folder)}
    found = signing.find_key("signing", environ)
    assert found == folder / "signing"
    signing.check_private(found, environ)
    with pytest.raises(UsageError, match="read by others"):
        signing.check_private(found, {})


def test_a_path_wins_and_an_unknown_name_stays_a_path(tmp_path: Path) -> None:
    environ = {"CREDENTIALS_DIRECTORY": str(tmp_path)}
    (tmp_path / "signing").touch()
    assert signing.find_key("./signing", environ) == Path("signing")
    assert signing.find_key("other", environ) == Path("other")
    assert signing.find_key("signing", {}) == Path("signing")


def test_the_default_key_lies_in_the_users_configuration() -> None:
    assert signing.default_key({"XDG_CONFIG_HOME": "/c"}) == Path("/c/edgeagent/signing.pem")
    assert signing.default_key({"HOME": "/h"}) == Path("/h/.config/edgeagent/signing.pem")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "no private key in PEM"),
        (b"-----BEGIN PRIVATE KEY-----\n", "no private key in PEM"),
        (b"-----BEGIN PRIVATE KEY-----\n!!!\n-----END PRIVATE KEY-----\n", "no private key in PEM"),
        (b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", "not of Ed25519"),
        (b"-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n", "is encrypted"),
        (b"\xff\xfe\x00", "no private key in PEM"),
    ],
)
def test_what_is_no_key_is_refused_in_one_sentence(
    tmp_path: Path, content: bytes, why: str
) -> None:
    path = tmp_path / "k.pem"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(UsageError, match=why) as caught:
        signing.check_private(path)
    assert "\n" not in str(caught.value)


def test_a_cut_key_is_refused(pair: signing.KeyPair) -> None:
    head, body, tail = pair.private.read_text().strip().splitlines()
    pair.private.write_text(f"{head}\n{body[:40]}\n{tail}\n")
    with pytest.raises(UsageError, match="damaged private key"):
        signature(DOCUMENT, pair.private, WHEN)


def test_a_key_that_is_not_there_is_told_with_what_makes_one(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"edgeagent keys new --out .*k\.pem"):
        signing.check_private(tmp_path / "k.pem")


def test_a_private_key_is_not_taken_for_a_public_one(pair: signing.KeyPair) -> None:
    with pytest.raises(UsageError, match="is a private key"):
        read_public(pair.private)
    assert signing.any_public(pair.private) == signing.any_public(pair.public) == pair.key


def test_a_key_of_another_kind_is_not_trusted(tmp_path: Path) -> None:
    key = openssl("genpkey", "-algorithm", "X25519")
    (tmp_path / "x.pub").write_bytes(openssl("pkey", "-pubout", data=key))
    with pytest.raises(UsageError, match="no Ed25519 public key"):
        read_public(tmp_path / "x.pub")
    (tmp_path / "x.pem").write_bytes(key)
    (tmp_path / "x.pem").chmod(0o600)
    with pytest.raises(UsageError, match="not of Ed25519"):
        signing.check_private(tmp_path / "x.pem")


@given(st.binary(max_size=300))
@settings(max_examples=50)
def test_no_bytes_make_reading_a_key_crash(data: bytes) -> None:
    import tempfile

    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        with pytest.raises(UsageError):
            read_public(Path(file.name))
        with pytest.raises(UsageError):
            signing.check_private(Path(file.name))


# ------------------------------------------------------------------------------ other tools


def test_a_key_made_by_openssl_signs(tmp_path: Path) -> None:
    path = tmp_path / "openssl.pem"
    path.write_bytes(openssl("genpkey", "-algorithm", "ed25519"))
    path.chmod(0o600)
    found = check(signature(DOCUMENT, path, WHEN), DOCUMENT)
    assert (found.faults, found.key_id) == ((), signing.public_of(path).key_id)


def test_the_fingerprint_is_what_openssl_and_sha256sum_give(pair: signing.KeyPair) -> None:
    import hashlib

    der = openssl("pkey", "-pubin", "-in", pair.public, "-outform", "DER")
    assert pair.key.key_id == f"sha256:{hashlib.sha256(der).hexdigest()}"
    assert PublicKey(der).pem == pair.public.read_text()


def test_openssl_verifies_what_was_signed(pair: signing.KeyPair, tmp_path: Path) -> None:
    stated = json.loads(signature(DOCUMENT, pair.private, WHEN))
    signed = base64.b64decode(stated.pop("signature"))
    (tmp_path / "statement").write_bytes(canonical(stated))
    (tmp_path / "signature").write_bytes(signed)
    told = openssl(
        "pkeyutl", "-verify", "-pubin", "-inkey", pair.public, "-rawin",
        "-in", tmp_path / "statement", "-sigfile", tmp_path / "signature",
    )  # fmt: skip
    assert b"Verified Successfully" in told
    assert stated["digest"] == digest(DOCUMENT)


# ---------------------------------------------------------------------------------- signatures


def test_a_good_signature_says_who_and_when(pair: signing.KeyPair) -> None:
    found = check(signature(DOCUMENT, pair.private, WHEN), DOCUMENT)
    assert found == signing.Signature(pair.key.key_id, WHEN, ())


def test_a_document_laid_out_differently_is_the_same(pair: signing.KeyPair) -> None:
    again = json.loads(json.dumps(dict(reversed(DOCUMENT.items())), indent=7))
    assert check(signature(DOCUMENT, pair.private, WHEN), again).faults == ()


def test_another_document_is_not_what_was_signed(pair: signing.KeyPair) -> None:
    found = check(signature(DOCUMENT, pair.private, WHEN), {**DOCUMENT, "more": None})
    assert found.faults == ("the result is not the one that was signed: it was changed afterwards",)


def test_every_bit_of_a_signature_file_counts(pair: signing.KeyPair) -> None:
    data = signature(DOCUMENT, pair.private, WHEN)
    for at in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[at] ^= 1 << bit
            assert check(bytes(flipped), DOCUMENT).faults, (at, bit)


def test_spaces_and_line_ends_of_a_signature_file_count(pair: signing.KeyPair) -> None:
    data = signature(DOCUMENT, pair.private, WHEN)
    for other in (data + b"\n", data[:-1], data.replace(b"\n", b"\r\n"), b" " + data):
        assert check(other, DOCUMENT).faults


def test_a_fingerprint_of_another_key_is_found(pair: signing.KeyPair, tmp_path: Path) -> None:
    other = new_pair(tmp_path / "other").key
    data = signature(DOCUMENT, pair.private, WHEN)
    forged = data.replace(pair.key.key_id.encode(), other.key_id.encode())
    assert check(forged, DOCUMENT).faults == (
        "its fingerprint is not that of its public key: it was edited",
    )


@pytest.mark.parametrize(
    "data",
    [b"", b"{}", b"[]", b"null", b'{"schema": 1}', b"[" * 100_000, b'{"schema": "x"}', b"\xff"],
)
def test_what_is_no_signature_is_a_fault(data: bytes) -> None:
    assert check(data, DOCUMENT).faults


def test_a_newer_kind_of_signature_is_told() -> None:
    data = b'{"schema": "edgeagent.signature/2", "algorithm": "ml-dsa"}'
    (fault,) = check(data, DOCUMENT).faults
    assert "edgeagent.signature/2" in fault


# -------------------------------------------------------------------------- without the library


def without_the_library(tmp_path: Path, code: str) -> subprocess.CompletedProcess[str]:
    """Run code where `cryptography` cannot be found, as where it was never installed."""
    hide = tmp_path / "hide"
    hide.mkdir()
    (hide / "sitecustomize.py").write_text(
        "import sys\n"
        "class Nothing:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] == 'cryptography':\n"
        "            raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Nothing())\n"
    )
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60,
        env={**os.environ, "PYTHONPATH": f"{hide}{os.pathsep}{Path(__file__).parents[1]}"},
    )  # fmt: skip


def test_without_the_library_the_command_that_installs_it_is_told(
    pair: signing.KeyPair, tmp_path: Path
) -> None:
    code = (
        "import sys; from edgeagent.cli.main import main; "
        f"sys.exit(main(['keys', 'new', '--out', {str(tmp_path / 'n.pem')!r}]))"
    )
    done = without_the_library(tmp_path, code)
    assert done.returncode == 2
    assert "pip install 'edgeagent[sign]'" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "n.pem").exists()


def test_a_key_is_looked_at_without_loading_the_library(pair: signing.KeyPair) -> None:
    code = (
        "import sys, pathlib; from edgeagent import signing; "
        f"signing.check_private(pathlib.Path({str(pair.private)!r})); "
        "sys.exit('cryptography.hazmat' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
