"""Which machine is this, and which is a copy of its disk?"""

from __future__ import annotations

from pathlib import Path

from edgeagent.machine import marks, same, suffix, written


def card(root: Path, name: str, address: str, *, on_a_bus: bool = True) -> None:
    folder = root / "sys/class/net" / name
    folder.mkdir(parents=True)
    (folder / "address").write_text(f"{address}\n")
    if on_a_bus:
        (folder / "device").mkdir()


def test_a_board_is_known_by_its_serial_number(tmp_path: Path) -> None:
    (tmp_path / "proc/device-tree").mkdir(parents=True)
    (tmp_path / "proc/device-tree/serial-number").write_bytes(b"1420521012345\0")
    card(tmp_path, "eth0", "48:b0:2d:00:00:01")
    assert marks(tmp_path) == {"serial:1420521012345"}


def test_a_pc_is_known_by_its_cards_and_not_by_bridges(tmp_path: Path) -> None:
    card(tmp_path, "eth0", "48:b0:2d:00:00:01")
    card(tmp_path, "eth1", "48:b0:2d:00:00:02")
    card(tmp_path, "docker0", "02:42:00:00:00:01", on_a_bus=False)
    card(tmp_path, "dummy", "00:00:00:00:00:00")
    assert marks(tmp_path) == {"mac:48:b0:2d:00:00:01", "mac:48:b0:2d:00:00:02"}


def test_an_exchanged_card_makes_no_other_machine_and_a_copied_disk_does() -> None:
    kept = written(frozenset({"mac:1", "mac:2"}))
    assert same(kept, frozenset({"mac:2", "mac:3"}))
    assert not same(kept, frozenset({"mac:4"}))


def test_where_nothing_tells_machines_apart_nothing_is_claimed(tmp_path: Path) -> None:
    assert marks(tmp_path) == frozenset()
    assert same("", frozenset({"mac:1"}))
    assert same("mac:1", frozenset())


def test_two_copies_get_different_suffixes() -> None:
    assert suffix(frozenset({"mac:1"})) != suffix(frozenset({"mac:2"}))
    assert len(suffix(frozenset())) == 4
