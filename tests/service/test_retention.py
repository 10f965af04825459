"""Run folders go by age and size, and never one that is still needed."""

from __future__ import annotations

import os
from pathlib import Path

from edgeagent.service.retention import Kept, surplus, tidy
from edgeagent.store.runfolder import RunFolder

DAY_S = 86_400


def kept(name: str, age_d: float, size: int = 10) -> Kept:
    return Kept(Path(name), -age_d * DAY_S, size)


def names(runs: tuple[Kept, ...]) -> list[str]:
    return [run.path.name for run in runs]


def test_what_is_past_its_age_goes() -> None:
    runs = [kept("new", 1), kept("old", 181), kept("older", 300)]
    assert names(surplus(runs, 0, 1000, 180 * DAY_S)) == ["older", "old"]


def test_of_too_much_the_oldest_go_until_the_rest_fits() -> None:
    runs = [kept("a", 4), kept("b", 3), kept("c", 2), kept("d", 1)]
    assert names(surplus(runs, 0, 25, 180 * DAY_S)) == ["a", "b"]


def test_one_run_alone_may_be_larger_than_all_may_be() -> None:
    assert surplus([kept("only", 1, 100)], 0, 25, 180 * DAY_S) == ()


def run_folder(path: Path, age_d: float) -> None:
    RunFolder.create(path).close()
    (path / "plan.json").write_text("{}")
    for file in path.iterdir():
        os.utime(file, (-age_d * DAY_S + 1e9, -age_d * DAY_S + 1e9))


def test_old_folders_are_removed_from_the_disk(tmp_path: Path) -> None:
    run_folder(tmp_path / "old", 200)
    run_folder(tmp_path / "new", 2)
    assert tidy(tmp_path, 1e9, (4096, 180), lambda _name: False) == ["old"]
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


def test_what_is_no_run_or_is_wanted_or_in_use_stays(tmp_path: Path) -> None:
    run_folder(tmp_path / "wanted", 200)
    run_folder(tmp_path / "in-use", 200)
    (tmp_path / "somebody-elses").mkdir()
    with RunFolder.resume(tmp_path / "in-use"):
        for file in (tmp_path / "in-use").iterdir():
            os.utime(file, (0, 0))
        assert tidy(tmp_path, 1e9, (4096, 180), lambda name: name == "wanted") == []
    assert len(list(tmp_path.iterdir())) == 3


def test_a_folder_that_is_not_there_has_nothing_to_remove(tmp_path: Path) -> None:
    assert tidy(tmp_path / "none", 0, (1, 1), lambda _name: False) == []
