"""Under which name a box speaks, and a copy of it."""

from __future__ import annotations

from pathlib import Path

from edgeagent.naming import FILE, belonging, node_of

HERE = frozenset({"mac:48:b0:2d:00:00:01"})
ELSEWHERE = frozenset({"mac:48:b0:2d:00:00:02"})


def test_a_box_keeps_its_key(tmp_path: Path) -> None:
    first = belonging(tmp_path, HERE)
    assert belonging(tmp_path, HERE) == first
    assert node_of("", "box", first) == "box"


def test_a_copied_disk_gets_another_key_and_a_name_of_its_own(tmp_path: Path) -> None:
    first = belonging(tmp_path, HERE)
    copy = belonging(tmp_path, ELSEWHERE)
    assert copy.key != first.key
    assert node_of("", "box", copy).startswith("box-")
    assert belonging(tmp_path, ELSEWHERE) == copy  # and keeps them


def test_a_configured_name_is_kept_by_a_copy(tmp_path: Path) -> None:
    belonging(tmp_path, HERE)
    assert node_of("press-7", "box", belonging(tmp_path, ELSEWHERE)) == "press-7"


def test_an_added_card_belongs_to_the_box_from_then_on(tmp_path: Path) -> None:
    first = belonging(tmp_path, HERE)
    assert belonging(tmp_path, HERE | {"mac:new"}).key == first.key
    assert belonging(tmp_path, frozenset({"mac:new"})).key == first.key


def test_a_moment_without_cards_changes_nothing(tmp_path: Path) -> None:
    first = belonging(tmp_path, HERE)
    assert belonging(tmp_path, frozenset()) == first
    assert belonging(tmp_path, HERE) == first


def test_a_broken_file_is_written_anew(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("{")
    assert belonging(tmp_path, HERE) == belonging(tmp_path, HERE)


def test_a_long_name_stays_a_sound_id(tmp_path: Path) -> None:
    belonging(tmp_path, HERE)
    assert len(node_of("", "x" * 63, belonging(tmp_path, ELSEWHERE))) <= 63
