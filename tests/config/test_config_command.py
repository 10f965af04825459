"""`edgeagent config`, and `--config` and `--set` on any command."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from boxes import SYSTEM, Box

from edgeagent.cli.config import add_config_option, add_to, load
from edgeagent.settings import SettingsError

SCRIPT = """
import argparse, sys
from edgeagent.cli.config import add_to
from edgeagent.errors import EdgeAgentError
top = argparse.ArgumentParser()
add_to(top.add_subparsers())
options = top.parse_args()
try:
    status = options.run(options)
except EdgeAgentError as error:
    print(error, file=sys.stderr)
    status = error.exit_status
sys.exit(status)
"""


def config(box: Box, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """The command as a process of its own, in a box of its own."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("EDGEAGENT_")}
    where = () if arguments[0] == "schema" else ("--root", str(box.root), "--system")
    return subprocess.run(
        [sys.executable, "-c", SCRIPT, "config", *arguments, *where],
        capture_output=True, text=True, check=False, timeout=120,
        cwd=Path(__file__).parents[2], env={**clean, **variables},
    )  # fmt: skip


def test_a_sound_box_is_told_so_with_the_files_that_were_read(box: Box) -> None:
    path = box.write(SYSTEM, "[mqtt]\nwindow = 5\n")
    done = config(box, "check")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"the configuration is sound ({path})\n"


def test_a_box_without_files_is_sound(box: Box) -> None:
    done = config(box, "check")
    assert (done.returncode, done.stderr) == (0, "")
    assert "no file: everything is at its default" in done.stdout


def test_every_mistake_is_told_and_the_status_is_78(box: Box) -> None:
    box.write(SYSTEM, "[mqtt]\nprot = 1\n[signing]\nkey_file = 'gone'\n")
    done = config(box, "check", EDGEAGENT_MQTT__WINDOW="0")
    assert done.returncode == 78
    assert done.stdout == ""
    first, *faults = done.stderr.splitlines()
    assert first == "the configuration has 3 faults:"
    keys = ("mqtt.prot", "mqtt.window", "signing.key_file")
    assert [key in fault for key, fault in zip(keys, faults, strict=True)] == [True] * 3


def test_programs_get_the_faults_as_json(box: Box) -> None:
    box.write(SYSTEM, "[mqtt]\nprot = 1\n")
    done = config(box, "check", "--json", EDGEAGENT_MQTT_HOST="x")
    assert (done.returncode, done.stderr) == (78, "")
    document = json.loads(done.stdout)
    assert not document["sound"]
    assert [(fault["key"], fault["severity"]) for fault in document["faults"]] == [
        ("mqtt.prot", "error"),
        ("", "warning"),
    ]


def test_one_file_is_checked_by_itself(box: Box) -> None:
    box.write(SYSTEM, "[mqtt]\nprot = 1\n")
    path = box.write("own.toml", "[mqtt]\nwindow = 5\n")
    assert config(box, "check", str(path)).returncode == 0
    assert config(box, "check", str(box.root / "gone.toml")).returncode == 78


def test_what_is_in_force_is_shown_with_its_origin(box: Box) -> None:
    path = box.write(SYSTEM, "[mqtt]\nwindow = 5\n")
    done = config(box, "show", "--origin", EDGEAGENT_MQTT__KEEPALIVE_S="60")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert f"window = 5  # {path}:2" in lines
    assert "keepalive_s = 60  # EDGEAGENT_MQTT__KEEPALIVE_S" in lines


def test_a_warning_does_not_spoil_what_is_shown(box: Box) -> None:
    done = config(box, "show", "--json", EDGEAGENT_MQTT_HOST="x")
    assert (done.returncode, done.stderr) == (0, "")
    assert "EDGEAGENT_MQTT__HOST" in json.loads(done.stdout)["warnings"][0]
    assert "EDGEAGENT_MQTT__HOST" in config(box, "show", EDGEAGENT_MQTT_HOST="x").stderr


def test_a_secrets_path_is_shown_and_never_its_content(box: Box) -> None:
    box.write("etc/edgeagent/pw", "hunter2", 0o600)
    box.write(SYSTEM, "[mqtt]\nusername_file = 'pw'\npassword_file = 'pw'\n")
    done = config(box, "show", "--origin")
    assert f'password_file = "{box.root}/etc/edgeagent/pw"' in done.stdout
    assert "hunter2" not in done.stdout


@pytest.mark.parametrize(
    ("form", "begins"), [("json", "{"), ("toml", "# Configuration"), ("markdown", "### `[agent]`")]
)
def test_what_may_be_written_is_printed(box: Box, form: str, begins: str) -> None:
    done = config(box, "schema", "--format", form)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(begins)


def test_the_options_may_stand_before_and_behind_a_command(box: Box) -> None:
    path = box.write("own.toml", "[mqtt]\nwindow = 5\n")
    top = argparse.ArgumentParser()
    add_config_option(top)
    command = top.add_subparsers().add_parser("sweep")
    add_config_option(command)
    for words in (
        ["--config", str(path), "--set", "agent.site=plant7", "sweep"],
        ["sweep", "--config", str(path), "--set", "agent.site=plant7"],
        ["--set", "agent.site=plant7", "sweep", "--config", str(path), "--set", "mqtt.port=9"],
        [
            "--config=gone",
            "--set=agent.site=x",
            "sweep",
            f"--config={path}",
            "--set=agent.site=plant7",
        ],
    ):
        settings = load(top.parse_args(words))
        assert (settings.mqtt.window, settings.agent.site) == (5, "plant7")


def test_a_command_without_the_options_reads_the_chain() -> None:
    options = argparse.Namespace(root="/nonexistent", scope="system")
    assert load(options).files == ()


def test_a_wrong_file_stops_any_command(box: Box) -> None:
    path = box.write("own.toml", "[mqtt]\nprot = 5\n")
    with pytest.raises(SettingsError, match="did you mean"):
        load(argparse.Namespace(config=str(path)))


def test_the_option_names_are_documented(capsys: pytest.CaptureFixture[str]) -> None:
    top = argparse.ArgumentParser()
    add_to(top.add_subparsers())
    with pytest.raises(SystemExit):
        top.parse_args(["config", "check", "--help"])
    said = capsys.readouterr().out
    assert all(name in said for name in ("--config", "--set", "--root", "--system", "--user"))
