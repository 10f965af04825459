"""What systemd is given: commands that exist, units that it accepts, a sandbox that is closed."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from edgeagent.cli.main import parser
from edgeagent.engines.cgroup_leaf import LIMIT_VARIABLE
from edgeagent.probes.nvmap import CLIENTS, HELPER
from edgeagent.settings_keys import DaemonKeys

UNITS = Path(__file__).parents[2] / "systemd"
DROP_INS = sorted((UNITS / "dropins").glob("*.conf"))
SERVICES = sorted(UNITS.glob("*.service"))
_YOUNGER = re.compile(r"Unknown key(?: name)? 'DelegateSubgroup'")
"""Of systemd 254; an older one says so and goes on, and the agent does it itself."""


@pytest.fixture
def analyze() -> str:
    found = shutil.which("systemd-analyze")
    assert found is not None, "no systemd-analyze: apt-get install systemd"
    return found


def installed(folder: Path) -> list[Path]:
    """The units as they are installed; templates for one instance, the program a stand-in."""
    paths = []
    for pattern in ("*.service", "*.timer", "*.socket"):
        for path in UNITS.glob(pattern):
            # because the program is not installed while it is tested
            text = path.read_text().replace("/usr/bin/edgeagent", "/bin/true")
            paths.append(folder / path.name.replace("@.", "@nightly."))
            paths[-1].write_text(text)
            if "@." in path.name:
                (folder / path.name).write_text(text)  # because sockets and timers name it so
    return sorted(paths)


def complaints(analyze: str, folder: Path, *units: Path) -> list[str]:
    """What systemd has against these units, and whether it takes them at all."""
    done = subprocess.run(
        [analyze, "verify", "--man=no", *units], capture_output=True, text=True, check=False
    )
    ours = [line for line in done.stderr.splitlines() if str(folder) in line]
    status = [] if done.returncode == 0 else [f"status {done.returncode}: {done.stderr}"]
    return [line for line in ours if not _YOUNGER.search(line)] + status


def lines(path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines() if line and not line.startswith("#")]


def test_every_command_of_a_unit_is_one_of_ours() -> None:
    commands = [
        line.partition("=")[2].split()
        for path in SERVICES
        for line in lines(path)
        if line.startswith("Exec") and "/usr/bin/edgeagent" in line
    ]
    assert len(commands) >= 3
    for command in commands:
        parser().parse_args([word.replace("%I", "nightly") for word in command[1:]])


def test_a_busy_box_is_no_failed_unit_and_a_wrong_configuration_is_not_tried_again() -> None:
    assert "SuccessExitStatus=75" in lines(UNITS / "edgeagent-sweep@.service")
    assert "RestartPreventExitStatus=78" in lines(UNITS / "edgeagent.service")


def test_the_polkit_rule_is_shipped_disabled_and_allows_two_verbs_on_one_service() -> None:
    (rule,) = UNITS.glob("*.rules*")
    assert rule.name.endswith(".disabled")
    assert re.findall(r'lookup\("verb"\) === "(\w+)"', rule.read_text()) == ["stop", "start"]


def test_systemd_accepts_the_units(analyze: str, tmp_path: Path) -> None:
    assert complaints(analyze, tmp_path, *installed(tmp_path)) == []


@pytest.mark.parametrize("drop_in", DROP_INS, ids=lambda path: path.name)
def test_systemd_accepts_the_service_with_each_drop_in(
    analyze: str, tmp_path: Path, drop_in: Path
) -> None:
    installed(tmp_path)
    folder = tmp_path / "edgeagent.service.d"
    folder.mkdir()
    shutil.copy(drop_in, folder)
    assert complaints(analyze, tmp_path, tmp_path / "edgeagent.service") == []
    # It was looked at: a word that systemd does not know is told.
    broken = drop_in.read_text().replace("[Service]", "[Service]\nNoSuchKey=1", 1)
    (folder / drop_in.name).write_text(broken)
    (told,) = complaints(analyze, tmp_path, tmp_path / "edgeagent.service")
    assert "NoSuchKey" in told


def test_every_drop_in_says_how_it_is_used_and_changes_one_thing() -> None:
    assert [path.name[:2] for path in DROP_INS] == ["10", "20", "30", "40", "50"]
    for path in DROP_INS:
        assert f"{path.name} -t /etc/systemd/system/edgeagent.service.d/" in path.read_text()
    assert any(line.startswith(f"Environment={LIMIT_VARIABLE}=") for line in lines(DROP_INS[3]))


@pytest.mark.parametrize("unit", SERVICES, ids=lambda path: path.name)
def test_the_exposure_of_each_service_is_at_most_2_5(
    analyze: str, tmp_path: Path, unit: Path
) -> None:
    # A template is judged as an instance, with the name of the file.
    copy = tmp_path / unit.name.replace("@.", "@nightly.")
    shutil.copy(unit, copy)
    done = subprocess.run(
        [analyze, "security", "--offline=yes", "--threshold=25", copy],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout.splitlines()[-1:] + done.stderr.splitlines()[-3:]
    assert "Overall exposure level" in done.stdout


def test_every_word_that_the_sandbox_leaves_out_is_explained() -> None:
    text = (UNITS / "edgeagent.service").read_text()
    for word in (
        "PrivateDevices", "DevicePolicy", "ProtectProc", "ProcSubset", "PrivateUsers",
        "MemoryDenyWriteExecute", "@resources", "ProtectControlGroups", "PrivateNetwork",
        "IPAddressDeny", "PrivateMounts", "RootDirectory", "MemoryMax",
    ):  # fmt: skip
        (comment,) = [line for line in text.splitlines() if line.startswith("#") and word in line]
        assert comment
        assert not any(line.startswith(f"{word}=") for line in lines(UNITS / "edgeagent.service"))


def test_the_nvmap_helper_is_where_the_agent_looks_and_outlives_the_service() -> None:
    socket = lines(UNITS / "edgeagent-nvmap.socket")
    assert f"ListenStream=/{HELPER}" in socket
    assert f"ConditionPathExists=/{CLIENTS}" in socket
    assert f"ExecStart=/bin/cat /{CLIENTS}" in lines(UNITS / "edgeagent-nvmap@.service")
    runtime = [line for line in lines(UNITS / "edgeagent.service") if "RuntimeDirectory=" in line]
    assert runtime == ["RuntimeDirectory=edgeagent"]
    assert not HELPER.startswith("run/edgeagent/")
    assert str(DaemonKeys().socket).startswith("/run/edgeagent/")


def test_the_users_and_groups_of_the_units_are_made(tmp_path: Path) -> None:
    program = shutil.which("systemd-sysusers")
    assert program is not None, "no systemd-sysusers: apt-get install systemd"
    snippet = UNITS / "sysusers.d/edgeagent.conf"
    (tmp_path / "etc").mkdir()
    subprocess.run([program, f"--root={tmp_path}", snippet], check=True, capture_output=True)
    users = {line.split(":")[0] for line in (tmp_path / "etc/passwd").read_text().splitlines()}
    rows = [line.split(":") for line in (tmp_path / "etc/group").read_text().splitlines()]
    members = {name: who.split(",") for name, _, _, who in rows}
    wanted = {
        line.partition("=")[2]
        for path in SERVICES
        for line in lines(path)
        if line.startswith("User=")
    }
    assert wanted == {"edgeagent", "edgeagent-fleet"}
    assert wanted <= users
    for line in lines(UNITS / "edgeagent.service"):
        if line.startswith("SupplementaryGroups="):
            for group in line.partition("=")[2].split():
                assert "edgeagent" in members[group]
