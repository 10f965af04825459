"""The policy file: believed only from its owner, and every fault named at once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edgeagent.core.policy import DAYS, KNOBS, Bounds, Guards, Policy, Window
from edgeagent.errors import ConfigError
from edgeagent.policy_file import read_policy

EXAMPLE = Path(__file__).parents[2] / "configs" / "commands.toml"
ME = (os.geteuid(),)


def written(folder: Path, text: str, mode: int = 0o644) -> Path:
    path = folder / "commands.toml"
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)
    return path


def policy(folder: Path, text: str) -> Policy:
    return read_policy(written(folder, text), ME).policy


def faults(folder: Path, text: str) -> list[str]:
    """What is wrong with it, without the file's name."""
    path = written(folder, text)
    with pytest.raises(ConfigError) as caught:
        read_policy(path, ME)
    lines = str(caught.value).split("\n")
    assert all(line.startswith(f"{path}: ") for line in lines)
    return [line.removeprefix(f"{path}: ") for line in lines]


# ------------------------------------------------------------------------------------- its contents


def test_the_example_is_read_and_has_every_key(tmp_path: Path) -> None:
    text = EXAMPLE.read_text(encoding="utf-8")
    example = policy(tmp_path, text)
    assert example.operations == ("sweep", "cancel", "resync", "ping", "meta")
    assert example.profiles == ("nightly-llama",)
    assert example.issuers == ("plant-operator",)
    assert set(example.bounds) == set(KNOBS)
    assert example.bounds["concurrency"] == Bounds(1, 16, 6)
    assert example.windows == (
        Window(("mon", "tue", "wed", "thu", "fri"), 22 * 60, 5 * 60 + 30),
        Window(("sat", "sun"), 0, 24 * 60),
    )
    assert (example.max_runs_per_day, example.cooldown_s, example.max_duration_s) == (
        2,
        3600,
        14_400,
    )
    assert example.when_busy == "wait"
    assert example.guards == Guards(0.05, 0.25, 0, 80.0, 2_000_000_000)
    for key in Policy.__dataclass_fields__:
        assert f"{key} = " in text or f"[{key}]" in text or f"[[{key}]]" in text


def test_an_empty_file_allows_nothing(tmp_path: Path) -> None:
    assert policy(tmp_path, "") == Policy()


def test_a_window_without_days_is_open_every_day(tmp_path: Path) -> None:
    text = '[[windows]]\nfrom = "08:00"\nto = "09:30"\n'
    assert policy(tmp_path, text).windows == (Window(DAYS, 480, 570),)


def test_services_that_may_be_stopped_are_named_as_systemd_names_them(tmp_path: Path) -> None:
    text = 'production_units = ["vllm@0.service"]'
    assert policy(tmp_path, text).production_units == ("vllm@0.service",)
    for wrong in ("vllm", "../x.service", "-x.service", "a b.service"):
        assert "production_units[1]" in faults(tmp_path, f'production_units = ["{wrong}"]')[0]


def test_the_status_can_name_the_file_that_holds(tmp_path: Path) -> None:
    first = read_policy(written(tmp_path, ""), ME).sha256
    second = read_policy(written(tmp_path, "# other\n"), ME).sha256
    assert len(first) == 64
    assert first != second


# --------------------------------------------------------------------------------------- its faults


def test_all_faults_are_named_at_once_with_their_keys_and_what_was_meant(tmp_path: Path) -> None:
    text = """
operation = ["sweep"]
operations = ["sweeep"]
profiles = ["A b"]
max_runs_per_day = "2"
when_busy = "queue"
cooldown_s = -1
[bounds]
concurency = { min = 1, max = 2 }
requests = { min = 3, max = 2 }
seconds = { min = 3, max = 20, cont = 3 }
[[windows]]
days = ["mon", "tues"]
from = "25:00"
to = "24:00"
[guards]
max_foreign_cpu = 3
max_forein_gpu = 1
"""
    assert sorted(faults(tmp_path, text)) == sorted(
        [
            "operation is not a known key, did you mean operations?",
            "operations[1]: 'sweeep' should be 'sweep', 'cancel', 'resync', 'ping' or 'meta', "
            "did you mean sweep?",
            "profiles[1]: 'A b' string should match pattern '^[a-z0-9][a-z0-9_-]{0,62}$'",
            "max_runs_per_day: '2' should be a valid integer",
            "when_busy: 'queue' should be 'wait' or 'refuse'",
            "cooldown_s: -1 should be greater than or equal to 0",
            "bounds.concurency is not a known key, did you mean concurrency?",
            "bounds.requests: max is less than min",
            "bounds.seconds.cont is not a known key, did you mean count?",
            "windows[1].days[2]: 'tues' should be 'mon', 'tue', 'wed', 'thu', 'fri', 'sat' or "
            "'sun', did you mean tue?",
            'windows[1].from: \'25:00\' write a time of day like "22:30", up to "24:00"',
            "guards.max_foreign_cpu: 3 should be less than or equal to 1",
            "guards.max_forein_gpu is not a known key, did you mean max_foreign_gpu?",
        ]
    )


def test_sweeps_without_a_word_about_when_are_a_fault(tmp_path: Path) -> None:
    (fault,) = faults(tmp_path, 'operations = ["sweep"]')
    assert "no [[windows]]" in fault


@pytest.mark.parametrize(
    "clock", ["7:00", "24:01", "23:60", "0700", "", "aa:bb", "07:00 ", "\u0660\u0667:00"]
)
def test_a_time_of_day_has_four_digits_and_a_colon(tmp_path: Path, clock: str) -> None:
    (fault,) = faults(tmp_path, f'[[windows]]\nfrom = "{clock}"\nto = "08:00"\n')
    assert fault.startswith("windows[1].from")


def test_what_is_no_toml_is_refused_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"commands\.toml is not TOML .*line 2"):
        read_policy(written(tmp_path, "profiles = []\noperations = ]\n"), ME)
    path = written(tmp_path, "")
    path.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="is not TOML"):
        read_policy(path, ME)


# ---------------------------------------------------------------------------------------- its owner


@pytest.mark.parametrize("mode", [0o664, 0o646, 0o666, 0o777])
def test_a_file_that_others_can_write_is_not_believed(tmp_path: Path, mode: int) -> None:
    path = written(tmp_path, "", mode)
    with pytest.raises(ConfigError, match=f"has mode {mode:04o}.*chmod 0644"):
        read_policy(path, ME)


def test_a_file_of_another_user_is_not_believed(tmp_path: Path) -> None:
    path = written(tmp_path, "")
    with pytest.raises(ConfigError, match=f"belongs to user {os.geteuid()}, .*chown root"):
        read_policy(path, (os.geteuid() + 1,))


def test_an_ordinary_users_file_is_not_believed_unless_asked_for(ordinary_folder: Path) -> None:
    if os.geteuid() == 0:
        pytest.fail("the folder's fixture did not give up root's rights")
    path = written(ordinary_folder, "")
    with pytest.raises(ConfigError, match="belongs to user"):
        read_policy(path)
    assert read_policy(path, (0, os.geteuid())).policy == Policy()


def test_a_link_counts_by_what_it_leads_to(tmp_path: Path) -> None:
    target = written(tmp_path, "", 0o666)
    link = tmp_path / "link.toml"
    link.symlink_to(target)
    with pytest.raises(ConfigError, match="has mode 0666"):
        read_policy(link, ME)


def test_a_file_that_is_not_there_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"does not exist.*configs/commands\.toml"):
        read_policy(tmp_path / "commands.toml", ME)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_policy(tmp_path, ME)


def test_a_file_without_end_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="longer than"):
        read_policy(written(tmp_path, "#" * 70_000), ME)
