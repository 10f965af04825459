"""A Jetson's own files, from recorded trees and from trees that change while they are read."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trees import names, unpack

from edgeagent.probes.host import NO_ENGINE
from edgeagent.probes.jetson import (
    JetsonProbe,
    Pace,
    clocks_locked,
    load_fraction,
    nvmap_used_bytes,
    power_mode,
    power_modes,
)
from edgeagent.probes.nvmap import CLIENTS
from edgeagent.probes.nvmap import Pace as ListPace
from edgeagent.probes.sysfs import Absent

DEVFREQ = "sys/class/devfreq/17000000.gpu"
ALIAS = "sys/devices/platform/gpu.0"
EMC = "sys/kernel/debug/bpmp/debug/clk/emc"
LIST = """\
CLIENT                        PROCESS      PID        SIZE
user                     llama-server     4312    1048576K
user                            Xorg      2001       2048K
total                                            1050624K
"""
NOBODY_HOLDS_ANYTHING = LIST.replace("1048576K", "0K").replace("2048K", "0K")


class Hands:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def _put(root: Path, path: str, text: str) -> Path:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


# ------------------------------------------------------------------------------- recorded boards


def test_an_orin_nano_on_jetpack_6(tmp_path: Path) -> None:
    values, absent = JetsonProbe(unpack("orin-jp6", tmp_path)).read([])

    assert values == {
        "nvmap.used_bytes": 1_623_040 * 1024,
        "jetson.gpu_load_fraction": 0.437,
        "jetson.gpu_frequency_hz": 612_000_000,
        "jetson.emc_frequency_hz": None,
        "jetson.clocks_locked": 0,
        "jetson.power_mode": 2,
        "jetson.overcurrent_count": 4,
        "nvmap.engine_bytes": None,
    }
    assert absent["nvmap.engine_bytes"] == NO_ENGINE
    assert absent["jetson.emc_frequency_hz"].startswith(f"/{EMC}/rate could not be read")


def test_an_agx_orin_on_jetpack_7_is_still_read_by_its_own_files(tmp_path: Path) -> None:
    values, absent = JetsonProbe(unpack("orin-jp7", tmp_path)).read([])

    assert values == {
        "nvmap.used_bytes": 6 * 1024**3,
        "jetson.gpu_load_fraction": 0.962,
        "jetson.gpu_frequency_hz": 1_300_500_000,
        "jetson.emc_frequency_hz": 3_200_000_000,
        "jetson.clocks_locked": 1,
        "jetson.power_mode": 0,
        "jetson.overcurrent_count": 0,
        "nvmap.engine_bytes": None,
    }
    assert absent == {"nvmap.engine_bytes": NO_ENGINE}


def test_a_thor_leaves_memory_and_utilisation_to_nvml(tmp_path: Path) -> None:
    values, absent = JetsonProbe(unpack("thor", tmp_path)).read([4312])

    assert values == {
        "nvmap.used_bytes": None,
        "jetson.gpu_load_fraction": None,
        "jetson.gpu_frequency_hz": 1_107_000_000,
        "jetson.emc_frequency_hz": 2_133_000_000,
        "jetson.clocks_locked": 0,
        "jetson.power_mode": 1,
        "jetson.overcurrent_count": None,
        "nvmap.engine_bytes": None,
    }
    assert "NVML" in absent["nvmap.used_bytes"]
    assert "NVML" in absent["nvmap.engine_bytes"]
    assert "NVML" in absent["jetson.gpu_load_fraction"]


@pytest.mark.parametrize("name", ["gb10", "amd-apu", "intel", "cpu"])
def test_any_other_box_has_one_value_that_says_so(tmp_path: Path, name: str) -> None:
    probe = JetsonProbe(unpack(name, tmp_path))

    values, absent = probe.read([1])

    assert values == {"jetson.board": None}
    assert "not a Jetson" in absent["jetson.board"]
    assert probe.facts() == {}


@pytest.mark.parametrize("name", names())
def test_whatever_is_none_has_a_reason_and_nothing_else_has(tmp_path: Path, name: str) -> None:
    probe = JetsonProbe(unpack(name, tmp_path))

    for pids in ([], [1], [4312, 4313]):
        values, absent = probe.read(pids)
        assert {key for key, value in values.items() if value is None} == set(absent)
        assert all(absent.values())


def test_an_empty_root_is_no_jetson_and_neither_is_a_missing_one(tmp_path: Path) -> None:
    assert JetsonProbe(tmp_path).read([])[0] == {"jetson.board": None}
    assert JetsonProbe(tmp_path / "nowhere").read([])[0] == {"jetson.board": None}


def test_a_mali_whose_node_is_called_gpu_as_well_makes_no_jetson(tmp_path: Path) -> None:
    node = "sys/class/devfreq/fb000000.gpu"
    _put(tmp_path, f"{node}/device/of_node/name", "gpu\0")
    _put(tmp_path, f"{node}/cur_freq", "300000000\n")

    assert JetsonProbe(tmp_path).read([])[0] == {"jetson.board": None}


def test_a_board_with_a_card_beside_its_own_gpu_is_read_as_well(tmp_path: Path) -> None:
    root = unpack("orin-jp7", tmp_path)
    card = "proc/driver/nvidia/gpus/0005:03:00.0/information"
    _put(root, card, "Model: \t\t NVIDIA RTX A6000\n")

    assert JetsonProbe(root).read([])[0]["jetson.gpu_load_fraction"] == 0.962


# --------------------------------------------------------------------------------- facts of a board


def test_the_facts_name_the_power_mode_and_where_everything_comes_from(tmp_path: Path) -> None:
    facts = dict(JetsonProbe(unpack("orin-jp6", tmp_path)).facts())

    assert "root may read it" in str(facts.pop("nvmap_reason"))
    assert facts == {
        "board": "NVIDIA Jetson Orin Nano Engineering Reference Developer Kit Super",
        "soc": "tegra234",
        "release": "L4T 36.4.4 (JetPack 6)",
        "power_mode_id": 2,
        "power_mode": "MAXN_SUPER",
        "power_modes": {"0": "15W", "1": "25W", "2": "MAXN_SUPER", "3": "7W"},
        "gpu_load_source": f"/{DEVFREQ}/device/load",
        "gpu_frequency_source": f"/{DEVFREQ}",
        "gpu_governor": "nvhost_podgov",
        "gpu_minimum_hz": 306_000_000,
        "gpu_maximum_hz": 1_020_000_000,
        "emc_source": f"/{EMC}/rate",
        "nvmap_source": "none",
    }


def test_on_thor_the_facts_leave_the_load_to_nvml(tmp_path: Path) -> None:
    facts = JetsonProbe(unpack("thor", tmp_path)).facts()

    assert facts["gpu_load_source"] == "NVML"
    assert facts["gpu_frequency_source"] == "/sys/class/devfreq/gpu-gpc-0"
    assert facts["power_mode"] == "120W"
    assert "NVML" in str(facts["nvmap_reason"])


# ----------------------------------------------------------------------- what changes, what is late


def test_what_costs_many_files_is_read_once_a_second(tmp_path: Path) -> None:
    hands = Hands()
    probe = JetsonProbe(unpack("orin-jp6", tmp_path), clock=hands)
    everything = set(probe.read([])[0])

    hands.now_s += 0.1
    quick = set(probe.read([])[0])
    hands.now_s += 0.9
    again = set(probe.read([])[0])

    assert quick == {
        "nvmap.used_bytes",
        "jetson.gpu_load_fraction",
        "jetson.gpu_frequency_hz",
    }
    assert again == everything


def test_a_devfreq_node_that_appears_after_the_start_is_found(tmp_path: Path) -> None:
    hands = Hands()
    root = unpack("orin-jp7", tmp_path)
    for link in (DEVFREQ, ALIAS):
        (root / link).rename(root / f"later-{link.replace('/', '-')}")
    probe = JetsonProbe(root, clock=hands)

    values, absent = probe.read([])
    assert values["jetson.gpu_load_fraction"] is None
    assert "comes late" in absent["jetson.gpu_load_fraction"]
    assert values["jetson.gpu_frequency_hz"] is None
    assert values["jetson.clocks_locked"] is None
    assert probe.facts()["gpu_load_source"] is None  # nor does NVML know, under nvgpu

    (root / f"later-{DEVFREQ.replace('/', '-')}").rename(root / DEVFREQ)
    hands.now_s += 5.0
    values, _ = probe.read([])
    assert values["jetson.gpu_load_fraction"] == 0.962
    assert values["jetson.gpu_frequency_hz"] == 1_300_500_000
    assert values["jetson.clocks_locked"] == 1


def test_without_a_node_the_alias_of_the_gpu_tells_its_load(tmp_path: Path) -> None:
    root = unpack("orin-jp6", tmp_path)
    (root / DEVFREQ).unlink()

    values, absent = JetsonProbe(root).read([])

    assert values["jetson.gpu_load_fraction"] == 0.437
    assert values["jetson.gpu_frequency_hz"] is None
    assert "devfreq node" in absent["jetson.gpu_frequency_hz"]


def test_a_gpu_that_is_switched_off_costs_its_own_values_only(tmp_path: Path) -> None:
    root = unpack("orin-jp6", tmp_path)
    load = root / DEVFREQ / "device/load"
    load.unlink()
    load.mkdir()

    values, absent = JetsonProbe(root).read([])

    assert values["jetson.gpu_load_fraction"] is None
    assert absent["jetson.gpu_load_fraction"].startswith(f"/{DEVFREQ}/device/load could not")
    assert values["jetson.gpu_frequency_hz"] == 612_000_000


@pytest.mark.parametrize("text", ["", "many\n", "4.5\n", "9" * 30])
def test_a_file_that_holds_no_number_gives_none(tmp_path: Path, text: str) -> None:
    root = unpack("orin-jp6", tmp_path)
    _put(root, f"{DEVFREQ}/device/load", text)

    values, absent = JetsonProbe(root).read([])

    assert values["jetson.gpu_load_fraction"] is None
    assert "holds no number" in absent["jetson.gpu_load_fraction"]


def test_one_counter_that_cannot_be_read_spoils_their_sum(tmp_path: Path) -> None:
    root = unpack("orin-jp6", tmp_path)
    counter = root / "sys/class/hwmon/hwmon2/oc3_event_cnt"
    counter.unlink()
    counter.mkdir()

    values, absent = JetsonProbe(root).read([])

    assert values["jetson.overcurrent_count"] is None
    assert "oc3_event_cnt" in absent["jetson.overcurrent_count"]


# ------------------------------------------------------------------------------------ locked clocks


def test_the_memory_clock_is_read_where_root_may_see_it(tmp_path: Path) -> None:
    root = unpack("orin-jp6", tmp_path)
    _put(root, f"{EMC}/rate", "2133000000\n")

    assert JetsonProbe(root).read([])[0]["jetson.emc_frequency_hz"] == 2_133_000_000


def test_a_file_for_root_alone_gives_none_and_says_who_may(ordinary_folder: Path) -> None:
    root = unpack("orin-jp6", ordinary_folder)
    _put(root, f"{EMC}/rate", "2133000000\n").chmod(0)

    values, absent = JetsonProbe(root).read([])

    assert values["jetson.emc_frequency_hz"] is None
    assert absent["jetson.emc_frequency_hz"].endswith("Permission denied; root may")


@pytest.mark.parametrize(("flag", "locked"), [("1\n", 1), ("0\n", 0)])
def test_a_memory_clock_that_is_free_means_that_clocks_are_not_locked(
    tmp_path: Path, flag: str, locked: int
) -> None:
    root = unpack("orin-jp7", tmp_path)
    (root / "sys/class/devfreq/bwmgr").unlink()
    _put(root, f"{EMC}/rate", "3200000000\n")
    _put(root, f"{EMC}/mrq_rate_locked", flag)

    assert JetsonProbe(root).read([])[0]["jetson.clocks_locked"] == locked


def test_clocks_are_locked_when_every_one_that_is_shown_is() -> None:
    assert clocks_locked(["locked", "locked"], "locked", "unknown") == 1
    assert clocks_locked(["locked", "locked"], "locked", "locked") == 1
    assert clocks_locked(["locked", "free"], "locked", "locked") == 0
    assert clocks_locked(["locked"], "unknown", "free") == 0
    assert isinstance(clocks_locked(["locked"], "unknown", "locked"), Absent)
    assert isinstance(clocks_locked(["locked", "unknown"], "locked", "locked"), Absent)
    assert isinstance(clocks_locked([], "locked", "locked"), Absent)


# ----------------------------------------------------------------- memory of the engine's processes


def test_the_engine_holds_what_the_list_says_of_its_processes(tmp_path: Path) -> None:
    root = unpack("orin-jp6", tmp_path)
    _put(root, CLIENTS, LIST)

    assert JetsonProbe(root).read([4312, 4313])[0]["nvmap.engine_bytes"] == 1024**3
    assert JetsonProbe(root).facts()["nvmap_source"] == "file"
    assert JetsonProbe(root).facts()["nvmap_reason"] is None


def test_an_engine_that_is_not_on_the_list_holds_nothing(tmp_path: Path) -> None:
    root = unpack("orin-jp6", tmp_path)
    _put(root, CLIENTS, LIST)

    assert JetsonProbe(root).read([77])[0]["nvmap.engine_bytes"] == 0


def test_on_thor_a_list_of_zeros_measures_nothing_and_on_orin_it_does(tmp_path: Path) -> None:
    thor, orin = unpack("thor", tmp_path), unpack("orin-jp7", tmp_path)
    for root in (thor, orin):
        _put(root, CLIENTS, NOBODY_HOLDS_ANYTHING)

    values, absent = JetsonProbe(thor).read([4312])
    assert values["nvmap.engine_bytes"] is None
    assert "NVML" in absent["nvmap.engine_bytes"]
    assert JetsonProbe(orin).read([4312])[0]["nvmap.engine_bytes"] == 0


def test_in_a_container_the_host_s_process_ids_are_not_taken_for_ours(tmp_path: Path) -> None:
    root = unpack("orin-jp6", tmp_path)
    _put(root, CLIENTS, LIST)
    (root / "proc/self/ns").mkdir(parents=True)
    os.symlink("pid:[4026532001]", root / "proc/self/ns/pid")  # noqa: PTH211  # because the link leads to no file

    values, absent = JetsonProbe(root).read([4312])

    assert values["nvmap.engine_bytes"] is None
    assert "container" in absent["nvmap.engine_bytes"]


def test_the_helper_s_socket_tells_what_the_file_keeps_for_root(tmp_path: Path) -> None:
    root = unpack("orin-jp6", tmp_path)
    path = tmp_path / "n.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(str(path))
        listening.listen()

        def answer() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.sendall(LIST.encode())

        helper = threading.Thread(target=answer)
        helper.start()
        probe = JetsonProbe(root, path, Pace(clients=ListPace(first_s=30.0)), Hands())
        values, _ = probe.read([4312])
        helper.join()

    assert values["nvmap.engine_bytes"] == 1024**3
    assert probe.facts()["nvmap_source"] == "helper"
    probe.close()
    probe.close()


# ---------------------------------------------------------------------------------------- parsing


@given(st.text())
def test_no_text_breaks_a_parser(text: str) -> None:
    power_mode(text)
    power_modes(text)
    nvmap_used_bytes(text)


@given(st.integers(0, 99), st.sampled_from(["", " fmode:cool", " fmode:quiet"]))
def test_a_power_mode_is_its_number_without_zeros(mode: int, rest: str) -> None:
    assert power_mode(f"pmode:{mode:04d}{rest}\n") == mode


@given(st.dictionaries(st.integers(0, 99), st.from_regex(r"[A-Z0-9_]{1,12}", fullmatch=True)))
def test_power_modes_are_found_among_other_lines(modes: dict[int, str]) -> None:
    lines = ["< PARAM TYPE=FILE NAME=CPU_ONLINE >", "< PM_CONFIG DEFAULT=1 >"]
    lines += [f"< POWER_MODEL ID={number} NAME={name} >" for number, name in modes.items()]

    assert power_modes("\n".join(lines)) == modes


@given(st.integers())
def test_a_load_outside_of_0_to_1000_is_none(per_mille: int) -> None:
    fraction = load_fraction(per_mille)

    if 0 <= per_mille <= 1000:
        assert fraction == per_mille / 1000
    else:
        assert isinstance(fraction, Absent)
