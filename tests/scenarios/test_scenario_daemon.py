"""The whole daemon on a disk that dies: it goes on measuring, says what is wrong, ends cleanly."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from broker_places import until
from collector import Store
from daemon_places import plant
from disks import failing_disk
from scenario_places import collecting

pytestmark = pytest.mark.scenario


def test_a_daemon_whose_disk_goes_read_only_goes_on_measuring(tmp_path: Path) -> None:
    database = tmp_path / "plant.db"
    with failing_disk(tmp_path / "flash") as disk:
        changes = (
            (f'state_dir = "{tmp_path}/state"', f'state_dir = "{disk.place}/state"'),
            ("[mqtt.commands]", "[mqtt.spool]\nmin_free_mb = 0\n[mqtt.commands]"),
        )
        with plant(tmp_path, *changes) as site, collecting(site.port, database):
            site.box.start()
            site.box.wait(lambda: site.documents("m/mem_1m"), "telemetry is kept and sent")
            disk.fail()
            site.box.wait(
                lambda: site.documents("status")[-1].get("health") == "degraded",
                "the status tells of the disk",
            )
            assert "read" in " ".join(site.documents("status")[-1]["troubles"]).lower()
            seen = len(site.documents("m/mem"))
            site.box.wait(lambda: len(site.documents("m/mem")) > seen + 3, "live readings go on")
            assert site.box.stop() == 0
            disk.umount()
            disk.mount()
            before = len(site.documents("m/mem_1m"))
            site.box.start()
            site.box.wait(lambda: len(site.documents("m/mem_1m")) > before, "and all is well")
            until(lambda: nothing_is_missing(database), "all that was numbered is here")


def nothing_is_missing(database: Path) -> bool:
    with closing(Store(database)) as store:
        return all(
            store.numbers(lane) == set(range(1, wm + 1)) for lane, wm in store.marks().items()
        )
