"""Who builds, where and when does not show in what is built."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

import pytest


@pytest.mark.timeout(1800)  # a shared machine may take twenty times as long as an idle one
def test_somebody_else_builds_the_same_bytes_out_of_the_source_distribution(
    dist: Path, tmp_path: Path
) -> None:
    """Without git, in another folder, with other rights of new files, time zone and language.

    One architecture is enough here: packaging/twice does both, and fetches everything anew.
    """
    tree = unpacked_source(dist, tmp_path / "elsewhere")

    done = subprocess.run(
        ["sh", "-c", 'umask 077; exec "$@"', "sh", tree / "packaging/build", "--arch", "amd64",
         "--no-lintian", "--out", tmp_path / "second"],
        capture_output=True, encoding="utf-8", check=False, timeout=1700, cwd=tmp_path,
        env={**os.environ, "TZ": "Pacific/Chatham", "LC_ALL": "tr_TR.UTF-8", "LANG": "tr_TR.UTF-8"},
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    second = {path.name: digest(path) for path in (tmp_path / "second").iterdir()}
    del second["SHA256SUMS"]  # it has one package less
    assert len(second) == 4
    assert second == {name: digest(dist / name) for name in second}


def unpacked_source(dist: Path, folder: Path) -> Path:
    folder.mkdir()
    subprocess.run(["tar", "-x", "-C", folder, "-f", next(dist.glob("*.tar.gz"))], check=True)
    [tree] = folder.iterdir()
    return tree


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_version_without_an_entry_in_debians_changelog_is_refused_in_one_sentence(
    dist: Path, tmp_path: Path
) -> None:
    tree = unpacked_source(dist, tmp_path / "elsewhere")
    (tree / "edgeagent/__init__.py").write_text('__version__ = "7.0.0rc1"\n')

    done = subprocess.run(
        [tree / "packaging/build", "--no-lintian", "--out", tmp_path / "none"],
        capture_output=True, encoding="utf-8", check=False, timeout=300,
    )  # fmt: skip

    assert done.returncode == 2
    assert "add an entry for 7.0.0~rc1-1" in done.stderr.splitlines()[-1]
    assert not (tmp_path / "none").exists()
