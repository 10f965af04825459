"""The plant's own service makes room and comes back, whatever happens in between."""

from __future__ import annotations

from pathlib import Path

import pytest
from stand_in_systemctl import Manager

from edgeagent.service.production import Production, ProductionError, owed, restore


def test_it_is_stopped_and_started_again(tmp_path: Path) -> None:
    manager = Manager(tmp_path, "active")
    assert manager.production().stop() is True
    assert (manager.state, owed(manager.state_file)) == ("inactive", "vllm.service")
    assert restore(manager.state_file, manager.command) == "vllm.service"
    assert (manager.state, owed(manager.state_file)) == ("active", None)
    assert manager.told == [
        "--no-ask-password stop vllm.service", "--no-ask-password start vllm.service",
    ]  # fmt: skip


def test_one_that_does_not_run_is_left_alone(tmp_path: Path) -> None:
    manager = Manager(tmp_path, "inactive")
    assert manager.production().stop() is False
    assert restore(manager.state_file, manager.command) is None
    assert manager.told == []


def test_what_is_owed_survives_whoever_owed_it(tmp_path: Path) -> None:
    manager = Manager(tmp_path, "active")
    manager.production().stop()  # and is killed here
    assert restore(manager.state_file, manager.command) == "vllm.service"
    assert manager.state == "active"


def test_a_stop_that_is_not_allowed_says_how_to_allow_it_and_leaves_it_running(
    tmp_path: Path,
) -> None:
    manager = Manager(tmp_path, "active")
    manager.refuses("stop")
    with pytest.raises(ProductionError, match=r"authentication required.*polkit"):
        manager.production().stop()
    assert (manager.state, owed(manager.state_file)) == ("active", None)


def test_a_start_that_fails_is_owed_until_it_succeeds(tmp_path: Path) -> None:
    manager = Manager(tmp_path, "active")
    manager.production().stop()
    manager.refuses("start")
    with pytest.raises(ProductionError):
        restore(manager.state_file, manager.command)
    assert owed(manager.state_file) == "vllm.service"
    manager.allows("start")
    assert restore(manager.state_file, manager.command) == "vllm.service"


def test_what_cannot_be_noted_is_not_stopped(tmp_path: Path) -> None:
    manager = Manager(tmp_path, "active")
    nowhere = Production("vllm.service", tmp_path / "no/such/place.json", manager.command)
    with pytest.raises(ProductionError, match="nothing was stopped"):
        nowhere.stop()
    assert manager.state == "active"


def test_without_systemd_the_sentence_says_so(tmp_path: Path) -> None:
    with pytest.raises(ProductionError, match="without systemd"):
        Production("vllm.service", tmp_path / "p.json", ("/no/systemctl",)).stop()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"unit": 5}'])
def test_a_file_that_is_none_of_ours_owes_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "p.json").write_text(text)
    assert owed(tmp_path / "p.json") is None
