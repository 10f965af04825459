"""What systemd is given: commands that exist, and units that it accepts."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from edgeagent.cli.main import parser

UNITS = Path(__file__).parents[2] / "systemd"


def test_every_command_of_a_unit_is_one_of_ours() -> None:
    commands = [
        line.partition("=")[2].split()
        for path in UNITS.glob("*.service")
        for line in path.read_text().splitlines()
        if line.startswith("Exec") and "/usr/bin/edgeagent" in line
    ]
    assert len(commands) >= 3
    for command in commands:
        parser().parse_args([word.replace("%I", "nightly") for word in command[1:]])


def test_a_busy_box_is_no_failed_unit_and_a_wrong_configuration_is_not_tried_again() -> None:
    assert "SuccessExitStatus=75" in (UNITS / "edgeagent-sweep@.service").read_text()
    assert "RestartPreventExitStatus=78" in (UNITS / "edgeagent.service").read_text()


def test_the_polkit_rule_is_shipped_disabled_and_allows_two_verbs_on_one_service() -> None:
    (rule,) = UNITS.glob("*.rules*")
    assert rule.name.endswith(".disabled")
    assert re.findall(r'lookup\("verb"\) === "(\w+)"', rule.read_text()) == ["stop", "start"]


def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("no systemd-analyze: apt-get install systemd")
    for path in (*UNITS.glob("*.service"), *UNITS.glob("*.timer")):
        # because the program is not installed while it is tested
        text = path.read_text().replace("/usr/bin/edgeagent", "/bin/true")
        (tmp_path / path.name.replace("@.", "@nightly.")).write_text(text)
    names = [str(path) for path in sorted(tmp_path.iterdir())]
    done = subprocess.run(
        [analyze, "verify", "--man=no", *names], capture_output=True, text=True, check=False
    )
    ours = [line for line in done.stderr.splitlines() if str(tmp_path) in line]
    assert (done.returncode, ours) == (0, []), done.stderr
