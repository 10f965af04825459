"""A file's hash is right, remembered where possible, and never a stale one."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeagent.errors import UsageError
from edgeagent.models.hashing import cache_file, sha256


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "weights"
    path.write_bytes(b"weights")
    return path


def truth(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_it_is_the_sha256(file: Path) -> None:
    assert sha256(file) == truth(file)


def test_an_empty_file_has_one_too(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert sha256(tmp_path / "empty") == hashlib.sha256(b"").hexdigest()


def test_the_second_time_it_is_not_read_again(file: Path, tmp_path: Path) -> None:
    memory = tmp_path / "cache" / "hashes.json"
    seen: list[tuple[int, int]] = []
    for _ in range(2):
        assert sha256(file, memory, lambda done, whole: seen.append((done, whole))) == truth(file)
    assert seen == [(7, 7)]


def test_a_changed_file_is_read_again(file: Path, tmp_path: Path) -> None:
    memory = tmp_path / "hashes.json"
    sha256(file, memory)
    before = file.stat()
    file.write_bytes(b"WEIGHTS")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert sha256(file, memory) == truth(file)


def test_a_changed_file_whose_modification_time_was_put_back_is_read_again(
    file: Path, tmp_path: Path
) -> None:
    memory = tmp_path / "hashes.json"
    sha256(file, memory)
    before = file.stat()
    while file.stat().st_ctime_ns == before.st_ctime_ns:  # the kernel's clock ticks coarsely
        file.write_bytes(b"weighTs")
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = file.stat()
    assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert sha256(file, memory) == truth(file)


def test_a_file_that_is_written_while_it_is_read_is_not_remembered(
    file: Path, tmp_path: Path
) -> None:
    memory = tmp_path / "hashes.json"

    def written(done: int, whole: int) -> None:
        file.write_bytes(b"longer weights")

    sha256(file, memory, written)
    assert not memory.exists()
    assert sha256(file, memory) == truth(file)


def test_a_file_that_took_anothers_place_is_read(file: Path, tmp_path: Path) -> None:
    memory = tmp_path / "hashes.json"
    sha256(file, memory)
    other = tmp_path / "other"
    other.write_bytes(b"weighTs")
    os.utime(other, ns=(file.stat().st_atime_ns, file.stat().st_mtime_ns))
    other.replace(file)
    assert sha256(file, memory) == truth(file)


@pytest.mark.parametrize("broken", ["", "{", "[]", "null", '{"a": 1}', "\x00", "7"])
def test_a_broken_memory_is_forgotten_and_made_anew(
    file: Path, tmp_path: Path, broken: str
) -> None:
    memory = tmp_path / "hashes.json"
    memory.write_text(broken, encoding="utf-8")
    assert sha256(file, memory) == truth(file)
    assert truth(file) in json.loads(memory.read_text(encoding="utf-8")).values()


def test_a_memory_that_is_not_text_is_forgotten(file: Path, tmp_path: Path) -> None:
    memory = tmp_path / "hashes.json"
    memory.write_bytes(b"\xff\xfe\xff")
    assert sha256(file, memory) == truth(file)


@pytest.mark.parametrize("value", ["", "nonsense", "zz" * 32, "ab"])
def test_a_remembered_value_that_is_no_hash_is_not_believed(
    file: Path, tmp_path: Path, value: str
) -> None:
    memory = tmp_path / "hashes.json"
    sha256(file, memory)
    (key,) = json.loads(memory.read_text(encoding="utf-8"))
    memory.write_text(json.dumps({key: value}), encoding="utf-8")
    assert sha256(file, memory) == truth(file)


def test_a_memory_that_cannot_be_written_does_not_matter(file: Path, tmp_path: Path) -> None:
    # A file stands where the folder should be: this holds for root, too.
    (tmp_path / "cache").write_text("a file", encoding="utf-8")
    assert sha256(file, tmp_path / "cache" / "edgeagent" / "hashes.json") == truth(file)


def test_a_read_only_memory_folder_does_not_matter(ordinary_folder: Path) -> None:
    file = ordinary_folder / "model"
    file.write_bytes(b"weights")
    folder = ordinary_folder / "cache"
    folder.mkdir(mode=0o500)
    assert sha256(file, folder / "hashes.json") == truth(file)
    assert list(folder.iterdir()) == []


def test_a_memory_that_is_a_folder_does_not_matter_and_leaves_nothing(
    file: Path, tmp_path: Path
) -> None:
    memory = tmp_path / "cache" / "hashes.json"
    memory.mkdir(parents=True)
    (memory / "x").touch()
    assert sha256(file, memory) == truth(file)
    assert [path.name for path in memory.parent.iterdir()] == ["hashes.json"]


def test_the_memory_does_not_grow_without_end(file: Path, tmp_path: Path) -> None:
    memory = tmp_path / "hashes.json"
    memory.write_text(json.dumps({str(n): "a" * 64 for n in range(2000)}), encoding="utf-8")
    sha256(file, memory)
    known = json.loads(memory.read_text(encoding="utf-8"))
    assert len(known) == 500
    assert list(known.values())[-1] == truth(file)


@pytest.mark.parametrize(("name", "why"), [("none", "no such file"), (".", "is a directory")])
def test_a_file_that_cannot_be_read_is_told(tmp_path: Path, name: str, why: str) -> None:
    with pytest.raises(UsageError, match=f"cannot be read .*{why}") as caught:
        sha256(tmp_path / name)
    assert "\n" not in str(caught.value)


def test_the_memory_lies_in_the_users_cache_folder() -> None:
    assert cache_file({"XDG_CACHE_HOME": "/c"}) == Path("/c/edgeagent/hashes.json")
    assert cache_file({"HOME": "/h"}) == Path("/h/.cache/edgeagent/hashes.json")
    assert cache_file({}).parts[:2] == ("/", "nonexistent")


@given(st.binary(max_size=3000))
def test_it_is_the_sha256_of_any_content(content: bytes) -> None:
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        assert sha256(Path(file.name)) == hashlib.sha256(content).hexdigest()
