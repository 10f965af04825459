"""What does a box go through in a day, pressed together?

A cycle: the broker is killed and comes back, the plant asks something, the configuration is read
again (each second time with another connection to follow), and now and then a sweep runs.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from pathlib import Path

import psutil
from broker_places import Mosquitto, mosquitto, observer, until
from daemon_places import PREFIX, Plant, service, write_config


@dataclass(frozen=True)
class Held:
    """What a process holds."""

    rss_mb: float
    threads: int
    descriptors: int


def held(pid: int) -> Held:
    process = psutil.Process(pid)
    return Held(process.memory_info().rss / 1e6, process.num_threads(), process.num_fds())


def cycle(place: Plant, broker: Mosquitto, number: int, sweeps_every: int) -> None:
    """Go through it once."""
    box = place.box
    met = box.status()["link"]["reconnects"]
    broker.restart(signal.SIGKILL)
    box.wait(lambda: _is_back(place, met), "it is back")
    keepalive = 30 + number % 2
    write_config(
        box.folder, place.port, ("[mqtt.commands]", f"keepalive_s = {keepalive}\n[mqtt.commands]")
    )
    reloads = box.log().count("reloaded")
    box.signal(signal.SIGHUP)
    box.wait(lambda: box.log().count("reloaded") > reloads, "it has read its configuration")
    box.wait(lambda: box.status()["link"]["connection"] == "up", "it is connected")
    box.hands(ahead_s=11)
    with observer(place.port, (f"{PREFIX}/#",)) as sees:
        there = Plant(box, place.port, sees)
        there.answered("ping", there.ask("ping"), "succeeded")
        if number % sweeps_every == 0:
            box.watched()
            there.answered("sweep", there.ask("sweep", profile="quick"), "succeeded")


def _is_back(place: Plant, met: int) -> bool:
    link = place.box.status()["link"]
    return bool(link["connection"] == "up" and link["reconnects"] > met)


def soak(folder: Path, cycles: int, sweeps_every: int, settled: int) -> list[Held]:
    """Go through so many; return what was held after each, from the settled one on."""
    found = []
    with (
        mosquitto(folder / "broker") as broker,
        service(folder) as box,
        observer(broker.port, ()) as sees,
    ):
        write_config(folder, broker.port)
        box.start()
        place = Plant(box, broker.port, sees)
        until(lambda: box.status()["link"]["connection"] == "up", "it is connected")
        assert box.process is not None
        for number in range(cycles):
            cycle(place, broker, number, sweeps_every)
            if number >= settled:
                found.append(held(box.process.pid))
    return found
