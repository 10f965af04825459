"""The daemon from its start to its end: reload, stop, watchdog, and the plant's own service."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from agent import processes_of
from broker_places import mosquitto, observer, retained_at, until
from daemon_places import PREFIX, Plant, plant, service, write_config, write_policy
from stand_in_systemctl import Manager

from edgeagent.naming import FILE

# ------------------------------------------------------------------------------------- the reload


def test_a_reload_takes_over_what_it_can_and_names_what_needs_a_restart(tmp_path: Path) -> None:
    with plant(tmp_path) as place:
        box = place.box
        box.start()
        place.online()
        write_config(
            tmp_path,
            place.port,
            ('site = "plant7"', 'site = "plant8"'),
            ("idle_for_s = 0.5", "idle_for_s = 4000"),
            ("sample_interval_s = 0.2", "sample_interval_s = 0.1"),
        )
        box.signal(signal.SIGHUP)
        box.wait(lambda: "reloaded" in box.log(), "the reload")
        assert "agent.site" in box.log()
        (trouble,) = box.status()["troubles"]
        assert "a restart is needed for agent.site" in trouble
        box.wait(lambda: box.status()["unwatched"], "the other span counts")
        assert box.status()["site"] == "plant7"
        done = box.cli("trigger", "quick")
        assert done.returncode == 75, done.stderr
        assert "of the 4000 s" in done.stderr


def test_a_reload_to_another_broker_keeps_what_is_retained_true(tmp_path: Path) -> None:
    with plant(tmp_path) as place, mosquitto(tmp_path / "other") as other:
        box = place.box
        box.start()
        place.online()
        asked = place.ask("ping")
        place.answered("ping", asked, "succeeded")
        write_config(tmp_path, other.port)
        box.signal(signal.SIGHUP)
        with observer(other.port, (f"{PREFIX}/#",)) as sees:
            there = Plant(box, other.port, sees)
            there.online()
            there.box.wait(lambda: there.acks("ping", asked), "the ack is there as well")
            there.box.wait(lambda: there.documents("meta/node"), "so is what the box is")
        place.box.wait(lambda: place.states()[-1] == "offline", "the old one knows that it left")


def test_a_broken_configuration_is_refused_and_the_old_one_counts(tmp_path: Path) -> None:
    with plant(tmp_path) as place:
        box = place.box
        box.start()
        place.online()
        good = box.config.read_text()
        box.config.write_text(good.replace("port =", "prot ="))
        box.signal(signal.SIGHUP)
        box.wait(lambda: "reload_refused" in box.log(), "the refusal")
        (trouble,) = box.status()["troubles"]
        assert "mqtt.prot" in trouble
        place.answered("ping", place.ask("ping"), "succeeded")
        box.config.write_text(good)
        box.signal(signal.SIGHUP)
        box.wait(lambda: not box.status()["troubles"], "all is well again")


# --------------------------------------------------------------------------------------- the end


def test_it_ends_in_order_with_a_sweep_under_way(tmp_path: Path) -> None:
    with plant(tmp_path) as place:
        box = place.box
        box.start()
        place.online()
        asked = place.ask("sweep", profile="long")
        run = place.answered("sweep", asked, "running")["run"]
        box.measures(run)
        assert box.stop() == 0
        until(lambda: not processes_of(box.runs / run), "its engines are gone")
        assert place.answered("sweep", asked, "interrupted")["run"] == run
        until(lambda: place.states()[-1] == "offline", "it said goodbye")
        assert place.documents("status")[-1]["reason"] == "shutdown"
        until(lambda: place.documents(f"r/run/{run}"), "what was measured is delivered")
        assert not box.socket.exists()


def test_a_daemon_that_is_killed_leaves_no_engine_and_the_next_one_hands_over(
    tmp_path: Path,
) -> None:
    with plant(tmp_path) as place:
        box = place.box
        box.start()
        place.online()
        asked = place.ask("sweep", profile="long")
        run = place.answered("sweep", asked, "running")["run"]
        box.measures(run)
        box.end()
        box.start()
        assert place.answered("sweep", asked, "interrupted")["run"] == run
        box.wait(lambda: not processes_of(box.runs / run), "its engines are gone")
        box.wait(lambda: place.documents(f"r/run/{run}"), "what was measured is delivered")


def test_somebody_who_waits_at_a_terminal_is_told_of_the_end(tmp_path: Path) -> None:
    with service(tmp_path) as box:
        write_config(tmp_path, None)
        box.start()
        box.watched()
        waiting = subprocess.Popen(
            [sys.executable, "-m", "edgeagent", "trigger", "long", "--wait",
             "--config", str(box.config)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        box.wait(lambda: box.status()["running"], "the sweep runs")
        assert box.stop() == 0
        said, _ = waiting.communicate(timeout=60)
        assert waiting.returncode == 1, said
        assert "interrupted" in said


# ------------------------------------------------------------------------------- service manager


@contextmanager
def manager(folder: Path) -> Iterator[list[str]]:
    """Somebody who hears what systemd would."""
    heard: list[str] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bound:
        bound.bind(str(folder / "notify"))
        bound.settimeout(0.1)
        ended = threading.Event()

        def listen() -> None:
            while not ended.is_set():
                try:
                    heard.append(bound.recv(4096).decode())
                except TimeoutError:
                    continue

        thread = threading.Thread(target=listen)
        thread.start()
        try:
            yield heard
        finally:
            ended.set()
            thread.join()


def test_the_manager_hears_of_start_reload_and_end(tmp_path: Path) -> None:
    environ = {"NOTIFY_SOCKET": str(tmp_path / "notify")}
    with manager(tmp_path) as heard, plant(tmp_path, environ=environ) as place:
        place.box.start()
        place.online()
        place.box.wait(lambda: any(text.startswith("READY=1") for text in heard), "ready")
        place.box.wait(lambda: any("idle; 0 messages wait" in text for text in heard), "status")
        place.box.signal(signal.SIGHUP)
        place.box.wait(lambda: any(text.startswith("RELOADING=1") for text in heard), "reloading")
        place.box.wait(lambda: heard[-1].startswith("READY=1"), "ready again")
        place.box.stop()
        until(lambda: heard[-1].startswith("STOPPING=1"), "stopping")


def fed(heard: list[str]) -> int:
    return heard.count("WATCHDOG=1")


def test_the_watchdog_is_fed_while_the_broker_hangs_and_not_while_the_sampler_does(
    tmp_path: Path,
) -> None:
    root = tmp_path / "root"
    (root / "proc").mkdir(parents=True)
    (root / "proc/meminfo").write_bytes(Path("/proc/meminfo").read_bytes())
    environ = {
        "NOTIFY_SOCKET": str(tmp_path / "notify"),
        "WATCHDOG_USEC": "4000000",
        "EDGEAGENT_SYSROOT": str(root),
    }
    with (
        manager(tmp_path) as heard,
        mosquitto(tmp_path / "broker") as broker,
        service(tmp_path, environ=environ) as box,
    ):
        write_config(tmp_path, broker.port)
        box.start()
        broker.send(signal.SIGSTOP)
        before = fed(heard)
        box.wait(lambda: fed(heard) >= before + 6, "it is fed while the broker hangs")
        broker.send(signal.SIGCONT)
        os.mkfifo(root / "proc/stuck")
        (root / "proc/stuck").replace(root / "proc/meminfo")
        box.wait(lambda: "not_well" in box.log(), "it notices")
        counted = fed(heard)
        noticed = box.log().count("not_well")
        box.wait(lambda: box.log().count("not_well") >= noticed + 3, "it goes on noticing")
        assert fed(heard) == counted
        assert box.stop() == 0


# ------------------------------------------------------------------------ the plant's own service


@pytest.fixture
def producing(tmp_path: Path) -> Iterator[tuple[Plant, Manager]]:
    """A box that stops the plant's service for its sweeps."""
    (tmp_path / "systemd").mkdir()
    runs = Manager(tmp_path / "systemd", "active")
    change = ("[schedule]", '[schedule]\nproduction_unit = "vllm.service"')
    with plant(tmp_path, change, systemctl=runs.command) as place:
        write_policy(
            tmp_path, ("cooldown_s = 0", 'cooldown_s = 0\nproduction_units = ["vllm.service"]')
        )
        yield place, runs


def test_the_plants_service_makes_room_and_comes_back(producing: tuple[Plant, Manager]) -> None:
    place, systemd = producing
    place.box.start()
    place.online()
    asked = place.ask("sweep", profile="quick")
    place.answered("sweep", asked, "running")
    place.box.wait(lambda: systemd.state == "inactive", "it makes room")
    place.answered("sweep", asked, "succeeded")
    place.box.wait(lambda: systemd.state == "active", "it is back")


def test_it_comes_back_when_the_sweep_is_taken_back(producing: tuple[Plant, Manager]) -> None:
    place, systemd = producing
    place.box.start()
    place.online()
    asked = place.ask("sweep", profile="long")
    place.answered("sweep", asked, "running")
    place.box.wait(lambda: systemd.state == "inactive", "it makes room")
    place.ask("cancel", target=asked)
    place.answered("sweep", asked, "cancelled")
    place.box.wait(lambda: systemd.state == "active", "it is back")


@pytest.mark.parametrize("helper", ["the next daemon", "systemd's ExecStopPost", "its own end"])
def test_it_comes_back_whatever_ends_the_daemon(
    producing: tuple[Plant, Manager], helper: str
) -> None:
    place, systemd = producing
    box = place.box
    box.start()
    place.online()
    place.answered("sweep", place.ask("sweep", profile="long"), "running")
    box.wait(lambda: systemd.state == "inactive", "it makes room")
    box.wait(lambda: any(box.runs.glob("*/requests.jsonl")), "it measures")
    if helper == "its own end":
        assert box.stop() == 0
    else:
        box.end()
    if helper == "the next daemon":
        box.start()
    elif helper == "systemd's ExecStopPost":
        path = f"{systemd.folder}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            [sys.executable, "-m", "edgeagent", "daemon", "--restore", "--config", str(box.config)],
            env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False,
            timeout=60,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert done.stdout == "started again: vllm.service\n"
    until(lambda: systemd.state == "active", "it is back")


def test_a_service_that_the_policy_does_not_name_is_not_stopped(
    producing: tuple[Plant, Manager],
) -> None:
    place, systemd = producing
    write_policy(place.box.folder)
    place.box.start()
    place.online()
    failed = place.answered("sweep", place.ask("sweep", profile="quick"), "failed")
    assert "production_units" in failed["reason"]
    assert systemd.state == "active"


def test_a_service_that_does_not_stop_leaves_no_sweep(producing: tuple[Plant, Manager]) -> None:
    place, systemd = producing
    (systemd.folder / "refuse-stop").touch()
    place.box.start()
    place.online()
    failed = place.answered("sweep", place.ask("sweep", profile="quick"), "failed")
    assert "polkit" in failed["reason"]
    place.box.wait(lambda: systemd.state == "active", "it runs on")
    assert not place.box.runs.exists() or not list(place.box.runs.iterdir())


# --------------------------------------------------------------------------------- who and where


def test_busy_is_an_answer(tmp_path: Path) -> None:
    with service(tmp_path) as box:
        write_config(tmp_path, None)
        box.start()
        box.watched()
        first = box.cli("trigger", "long")
        assert first.returncode == 0, first.stderr
        assert "running" in first.stdout
        second = box.cli("trigger", "quick")
        assert (second.returncode, second.stdout.strip()) == (0, "accepted")
        third = box.cli("trigger", "quick")
        assert third.returncode == 75
        assert "only one may" in third.stderr
        wrong = box.cli("trigger", "nightly")
        assert wrong.returncode == 2
        assert "allowed are quick, long" in wrong.stderr


def test_outside_of_the_windows_nothing_begins(tmp_path: Path) -> None:
    with service(tmp_path) as box:
        write_config(tmp_path, None)
        text = box.config.read_text()
        import time

        hour = (time.localtime().tm_hour + 6) % 24
        window = f'windows = ["{hour:02}:00-{hour:02}:30"]'
        box.config.write_text(text.replace("[schedule]", f"[schedule]\n{window}"))
        box.start()
        box.watched()
        done = box.cli("trigger", "quick")
        assert done.returncode == 75
        assert "no window" in done.stderr


def test_without_a_daemon_the_way_to_start_one_is_said(tmp_path: Path) -> None:
    with service(tmp_path) as box:
        write_config(tmp_path, None)
        done = box.cli("trigger", "quick")
        assert done.returncode == 69
        assert "systemctl start edgeagent" in done.stderr


def test_a_second_daemon_is_refused(tmp_path: Path) -> None:
    with service(tmp_path) as box:
        write_config(tmp_path, None)
        box.start()
        done = box.cli("daemon")
        assert done.returncode == 78
        assert "another daemon listens" in done.stderr
        assert box.status()["running"] is None


def test_nobody_else_may_ask(tmp_path: Path) -> None:
    with service(tmp_path) as box:
        write_config(tmp_path, None)
        box.start()
        assert stat.S_IMODE(box.socket.stat().st_mode) == 0o600
        if os.geteuid() != 0:
            return  # only root can become somebody else
        for folder in (tmp_path, *tmp_path.parents):
            if folder.is_relative_to("/tmp") and folder != Path("/tmp"):  # noqa: S108  # because pytest puts its folders there
                folder.chmod(folder.stat().st_mode | 0o055)
        asking = "import socket,sys; s=socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])"
        done = subprocess.run(
            ["/usr/bin/setpriv", "--reuid=65534", "--regid=65534", "--clear-groups",
             "/usr/bin/python3", "-c", asking, str(box.socket)],
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        assert "PermissionError" in done.stderr


def test_a_copied_disk_speaks_under_a_name_and_an_epoch_of_its_own(tmp_path: Path) -> None:
    with service(tmp_path) as box:
        write_config(tmp_path, None)
        box.config.write_text(box.config.read_text().replace('node = "edge-0001"\n', ""))
        box.start()
        first = box.status()
        box.stop()
        card = tmp_path / "state" / FILE
        copied = {**json.loads(card.read_text()), "marks": "mac:02:00:00:00:00:99"}
        card.write_text(json.dumps(copied))
        box.start()
        second = box.status()
        if json.loads(card.read_text())["marks"] == copied["marks"]:
            assert second["node"] == first["node"]  # this box has nothing to be told by
            return
        assert second["node"].startswith(first["node"])
        assert second["node"] != first["node"]
        assert second["epoch"] != first["epoch"]


def test_old_runs_go_and_the_one_that_runs_stays(tmp_path: Path) -> None:
    with service(tmp_path) as box:
        write_config(tmp_path, None)
        old = box.runs / "20200101T000000Z-aaaaaa"
        old.mkdir(parents=True)
        for name in (".lock", "plan.json"):
            (old / name).write_text("{}")
            os.utime(old / name, (1e9, 1e9))
        box.start()
        box.wait(lambda: not old.exists(), "it goes")
        assert "runs_removed" in box.log()


def test_the_broker_knows_the_truth_after_a_kill(tmp_path: Path) -> None:
    with plant(tmp_path) as place:
        place.box.start()
        place.online()
        place.box.end()
        place.box.start()
        place.box.wait(lambda: place.states().count("online") >= 2, "it is back")
        document = json.loads(retained_at(place.port, f"{PREFIX}/status") or b"{}")
        assert (document["state"], document["session_n"]) == ("online", 2)


def test_a_scada_system_sees_the_box_where_that_is_wanted(tmp_path: Path) -> None:
    change = ("[daemon]", "[mqtt.sparkplug]\nenabled = true\n[daemon]")
    with plant(tmp_path, change) as place, observer(place.port, ("spBv1.0/#",)) as scada:
        place.box.start()
        place.online()
        place.box.wait(lambda: "spBv1.0/plant7/NBIRTH/edge-0001" in scada.topics(), "its birth")
        place.answered("sweep", place.ask("sweep", profile="quick"), "succeeded")
        place.box.wait(
            lambda: "spBv1.0/plant7/DBIRTH/edge-0001/fake" in scada.topics(), "its engine's birth"
        )
        place.box.stop()
        until(lambda: "spBv1.0/plant7/NDEATH/edge-0001" in scada.topics(), "its end")
