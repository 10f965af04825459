"""Keys are made and shown by commands that never print the private half."""

from __future__ import annotations

import json
from pathlib import Path

from agent import edgeagent, sentence


def test_a_new_pair_says_where_it_is_and_what_its_fingerprint_is(tmp_path: Path) -> None:
    done = edgeagent("keys", "new", "--out", tmp_path / "k.pem")
    assert done.returncode == 0
    assert str(tmp_path / "k.pem.pub") in done.stdout
    assert "sha256:" in done.stdout
    assert "PRIVATE" not in done.stdout + done.stderr


def test_without_a_file_it_goes_where_sign_looks_for_it(tmp_path: Path) -> None:
    home = {"XDG_CONFIG_HOME": str(tmp_path)}
    made = json.loads(edgeagent("keys", "new", "--json", environ=home).stdout)
    assert made["private"] == str(tmp_path / "edgeagent" / "signing.pem")
    shown = json.loads(edgeagent("keys", "show", "--json", environ=home).stdout)
    assert shown["key_id"] == made["key_id"]


def test_a_second_pair_needs_force_and_the_first_is_kept(tmp_path: Path) -> None:
    key = tmp_path / "k.pem"
    first = json.loads(edgeagent("keys", "new", "--out", key, "--json").stdout)
    refused = edgeagent("keys", "new", "--out", key)
    assert refused.returncode == 2
    assert "--force" in sentence(refused)
    second = json.loads(edgeagent("keys", "new", "--out", key, "--force", "--json").stdout)
    assert second["key_id"] != first["key_id"]
    assert second["kept"] == [f"{key}.old-1", f"{key}.pub.old-1"]
    shown = json.loads(edgeagent("keys", "show", f"{key}.pub.old-1", "--json").stdout)
    assert shown["key_id"] == first["key_id"]


def test_both_halves_show_the_same_and_only_the_public_one(tmp_path: Path) -> None:
    key = tmp_path / "k.pem"
    edgeagent("keys", "new", "--out", key)
    private, public = (edgeagent("keys", "show", f"{key}{end}") for end in ("", ".pub"))
    assert private.stdout == public.stdout
    assert "BEGIN PUBLIC KEY" in public.stdout
    assert "PRIVATE" not in private.stdout


def test_a_key_that_is_not_there_is_told(tmp_path: Path) -> None:
    done = edgeagent("keys", "show", tmp_path / "none.pem")
    assert done.returncode == 2
    assert "edgeagent keys new" in sentence(done)


def test_a_key_to_trust_that_is_none_is_told_before_anything_is_checked(tmp_path: Path) -> None:
    done = edgeagent("verify", tmp_path, "--key", tmp_path / "none.pub")
    assert done.returncode == 2
    assert "none.pub could not be read" in sentence(done)
