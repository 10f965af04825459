"""A request of the fleet's command line, and a box as it really is."""

from __future__ import annotations

from pathlib import Path

from daemon_places import plant
from many_boxes import Station, stages


def test_a_box_measures_because_the_plant_asked_it_to(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("c" * 64)
    key.chmod(0o400)
    listens = ("[mqtt.commands]\n", f'[mqtt.commands]\nhmac_key_file = "{key}"\n')
    with plant(tmp_path, listens) as at:
        at.box.start()
        at.online()
        station = Station(tmp_path / "station", at.port)
        status, said = station.asks("--profile", "quick", "--dry-run", "--key", key)
        assert status == 0, said
        status, said = station.asks(
            "--profile", "quick", "--override", "concurrency=2", "--key", key
        )
        assert status == 0, said
        assert stages(said) == {"edge-0001": "succeeded"}
        result = at.documents("r/run/#")[-1]["v"]["result"]
        assert {cell["concurrency"] for cell in result.get("cells", ())} <= {2}
        assert said["boxes"][0]["run"] == result["run_id"]

        status, said = station.asks("--profile", "quick")
        assert status == 1
        assert said["boxes"][0]["code"] == "bad_sig"

        assert at.box.stop() == 0
        status, said = station.asks("--profile", "quick", "--key", key)
        assert status == 1
        assert said["boxes"][0]["reason"] == "offline"


def test_what_a_rollout_began_is_taken_back(tmp_path: Path) -> None:
    with plant(tmp_path) as at:
        at.box.start()
        at.online()
        station = Station(tmp_path / "station", at.port)
        status, said = station.asks("--profile", "long", "--timeout", "3")
        assert status == 1
        assert stages(said) == {"edge-0001": "overdue"}
        status, taken_back = station.asks("--cancel", said["rollout"])
        assert status == 0, taken_back
        assert at.answered("sweep", said["boxes"][0]["id"], "cancelled")
