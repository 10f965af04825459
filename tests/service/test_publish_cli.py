"""Results by the command line to the broker, with and without a daemon."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from agent import SMALL, fake, sweep
from broker_places import mosquitto, observer, until
from daemon_places import Plant, plant, service, write_config


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run."""
    folder = tmp_path_factory.mktemp("runs") / "first"
    done = sweep(folder, fake(), "--concurrency=1", "--prefix-cache=off")
    assert done.returncode in (0, 1), done.stderr
    return folder


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Plant]:
    with plant(tmp_path) as made:
        yield made


def results(place: Plant) -> list[str]:
    return [one["v"]["run_id"] for one in place.documents("r/run/#")]


def test_without_a_daemon_a_run_is_put_into_the_spool_once_and_delivered_by_hand(
    place: Plant, run: Path
) -> None:
    box = place.box
    first = box.cli("publish", run)
    assert (first.returncode, first.stdout) == (0, f"{run}: 2 messages in the spool\n")
    again = box.cli("publish", run)
    assert (again.returncode, again.stdout) == (0, f"{run}: was published before\n")
    assert results(place) == []
    flushed = box.cli("publish", "--flush")
    assert (flushed.returncode, flushed.stdout) == (0, "everything is delivered\n")
    until(lambda: results(place) == ["first"], "the result, once")


def test_with_a_daemon_it_delivers(place: Plant, run: Path) -> None:
    box = place.box
    box.start()
    done = box.cli("publish", run)
    assert done.returncode == 0, done.stderr
    box.wait(lambda: results(place) == ["first"], "the result")


def test_a_flush_beside_a_daemon_waits_for_it(place: Plant, run: Path) -> None:
    place.box.start()
    done = place.box.cli("publish", run, "--flush")
    assert done.returncode == 0, done.stderr
    assert "everything is delivered" in done.stdout
    place.box.wait(lambda: results(place) == ["first"], "the result")


def test_a_daemon_that_finds_somebody_flushing_waits_and_is_well(
    place: Plant, run: Path, tmp_path: Path
) -> None:
    from edgeagent.publish.spool_file import pump_lock

    place.box.cli("publish", run)
    lock = pump_lock(tmp_path / "state/spool.db")
    assert lock is not None
    place.box.start()
    place.box.watched()
    assert results(place) == []
    lock.release()
    place.box.wait(lambda: results(place) == ["first"], "the result")


def test_a_sweep_can_publish_itself(place: Plant, tmp_path: Path) -> None:
    box = place.box
    box.start()
    done = box.cli(
        "sweep", *fake(), *SMALL, "--concurrency=1", "--prefix-cache=off",
        "--out", tmp_path / "own", "--publish",
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stderr
    assert "the daemon delivers them" in done.stderr
    box.wait(lambda: results(place) == ["own"], "the result")


def test_a_broker_that_is_away_is_a_sentence_and_nothing_is_lost(tmp_path: Path, run: Path) -> None:
    with mosquitto(tmp_path / "broker") as broker, service(tmp_path) as box:
        write_config(tmp_path, broker.port)
        broker.end()
        done = box.cli("publish", run, "--flush", "--timeout", 2)
        assert done.returncode == 69
        assert done.stderr.count("\n") == 1
        assert "2 messages stay in the spool" in done.stderr
        broker.start()
        with observer(broker.port, ("#",)):  # a broker keeps for nobody what nobody listens to
            assert box.cli("publish", "--flush").returncode == 0


def test_where_nobody_subscribes_the_rest_is_explained(tmp_path: Path, run: Path) -> None:
    with mosquitto(tmp_path / "broker") as broker, service(tmp_path) as box:
        write_config(tmp_path, broker.port)
        done = box.cli("publish", run, "--flush", "--timeout", 3)
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1].startswith(
        "2 messages still wait in the spool; nobody subscribes to edgeagent/v1/plant7/edge-0001/r/"
    )


def test_without_a_broker_in_the_configuration_nothing_is_flushed(
    tmp_path: Path, run: Path
) -> None:
    with service(tmp_path) as box:
        write_config(tmp_path, None)
        done = box.cli("publish", run, "--flush")
        assert done.returncode == 78
        assert "mqtt.enabled is false" in done.stderr


def test_a_folder_without_a_result_is_refused(place: Plant, tmp_path: Path) -> None:
    done = place.box.cli("publish", tmp_path)
    assert done.returncode == 2
    assert "no result.json" in done.stderr
