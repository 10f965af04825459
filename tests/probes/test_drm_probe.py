"""GPU memory of AMD and Intel graphics, from recorded trees."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trees import unpack

from edgeagent.probes.drm import DRIVERS, DrmProbe, Pace, engine_readings, parse_fdinfo

KIB = 1024
MIB = 1 << 20
ENGINE = (951,)
RENDER = "/dev/dri/renderD128"


@dataclass
class Hand:
    """A clock whose hand the test moves."""

    at_s: float = 0.0

    def now_s(self) -> float:
        return self.at_s


def _open(root: Path, pid: int, number: int, text: str, target: str = RENDER) -> None:
    folder = root / "proc" / str(pid)
    (folder / "fd").mkdir(parents=True, exist_ok=True)
    (folder / "fdinfo").mkdir(exist_ok=True)
    (folder / "fd" / str(number)).symlink_to(target)
    (folder / "fdinfo" / str(number)).write_text(text)


def _close(root: Path, pid: int, number: int) -> None:
    (root / "proc" / str(pid) / "fd" / str(number)).unlink()
    (root / "proc" / str(pid) / "fdinfo" / str(number)).unlink()


# ---------------------------------------------------------------------------------- recorded boxes


def test_an_apu_keeps_the_model_in_gtt_and_a_client_counts_once(tmp_path: Path) -> None:
    values, absent = DrmProbe(unpack("amd-apu", tmp_path)).read(ENGINE)

    # client 57 by two descriptors: 5,348 KiB of VRAM, 25,258,000 + 1,024 KiB of host memory;
    # client 58 without units: 2,097,152 bytes of host memory
    assert values["drm.engine_vram_bytes"] == 5348 * KIB
    assert values["drm.engine_gtt_bytes"] == (25_258_000 + 1024) * KIB + 2 * MIB
    assert values["drm.engine_bytes"] == 5348 * KIB + (25_258_000 + 1024) * KIB + 2 * MIB
    assert values["drm.engine_clients"] == 2
    assert absent == {}


def test_amds_driver_tells_what_the_device_has(tmp_path: Path) -> None:
    values, _ = DrmProbe(unpack("amd-apu", tmp_path)).read(ENGINE)

    assert values["drm.devices"] == 1
    assert values["drm.vram_total_bytes"] == 512 * MIB
    assert values["drm.vram_used_bytes"] == 192 * MIB
    assert values["drm.gtt_total_bytes"] == 66_899_464_192
    assert values["drm.gtt_used_bytes"] == 26_187_153_408


def test_intel_counts_duplicated_descriptors_once_and_has_no_totals(tmp_path: Path) -> None:
    values, absent = DrmProbe(unpack("intel", tmp_path)).read(ENGINE)

    # client 31 by three descriptors: 4,194,304 KiB; client 32: 64 MiB
    assert values["drm.engine_bytes"] == 4_194_304 * KIB + 64 * MIB
    assert values["drm.engine_vram_bytes"] == 0
    assert values["drm.vram_total_bytes"] is None
    assert "CAP_PERFMON" in absent["drm.vram_total_bytes"]
    assert set(absent) == {name for name, value in values.items() if value is None}


def test_a_box_without_such_a_card_says_so_in_one_value(tmp_path: Path) -> None:
    assert DrmProbe(unpack("cpu", tmp_path)).read(ENGINE) == ({"drm.devices": 0}, {})
    assert DrmProbe(tmp_path / "nothing at all").read(ENGINE) == ({"drm.devices": 0}, {})


def test_others_that_hold_memory_are_counted_and_those_that_only_opened_the_gpu_are_not(
    tmp_path: Path,
) -> None:
    values, _ = DrmProbe(unpack("amd-apu", tmp_path)).read(ENGINE)

    assert values["drm.foreign_processes"] == 1  # the compositor; Xwayland holds nothing
    assert values["drm.foreign_unreadable"] == 0


def test_the_cards_are_named(tmp_path: Path) -> None:
    facts = DrmProbe(unpack("amd-apu", tmp_path)).facts()

    assert facts["drm_cards"] == [{"card": "card1", "driver": "amdgpu", "pci": "0000:c2:00.0"}]


# ---------------------------------------------------------------------------------- an engine lives


def test_without_an_engine_its_memory_is_null_and_not_zero(tmp_path: Path) -> None:
    values, absent = DrmProbe(unpack("amd-apu", tmp_path)).read([])

    assert values["drm.engine_bytes"] is None
    assert absent["drm.engine_bytes"] == "no engine of ours is running"
    assert values["drm.gtt_used_bytes"] is not None


def test_an_engine_that_has_not_opened_the_gpu_holds_zero(tmp_path: Path) -> None:
    root = unpack("amd-apu", tmp_path)
    for number in (11, 12, 13):
        _close(root, 951, number)

    values, absent = DrmProbe(root).read(ENGINE)

    assert values["drm.engine_bytes"] == 0
    assert values["drm.engine_clients"] == 0
    assert absent == {}


def test_an_engine_that_has_ended_is_null(tmp_path: Path) -> None:
    root = unpack("amd-apu", tmp_path)
    probe = DrmProbe(root)
    probe.read(ENGINE)
    shutil.rmtree(root / "proc/951")

    values, absent = probe.read(ENGINE)

    assert values["drm.engine_bytes"] is None
    assert absent["drm.engine_bytes"] == "the engine's processes have ended"


def test_what_the_engine_takes_shows_at_once_and_a_new_client_when_they_are_listed_again(
    tmp_path: Path,
) -> None:
    root, hand = unpack("intel", tmp_path), Hand()
    probe = DrmProbe(root, pace=Pace(list_s=2.0, now_s=hand.now_s))
    probe.read(ENGINE)
    _open(root, 951, 20, _xe(77, resident_kib=1024))
    known = root / "proc/951/fdinfo"
    for number in (8, 9, 10):
        text = (known / str(number)).read_text()
        (known / str(number)).write_text(text.replace("4194304 KiB", "5242880 KiB"))

    at_once, _ = probe.read(ENGINE)
    hand.at_s = 2.0
    listed, _ = probe.read(ENGINE)

    assert at_once["drm.engine_bytes"] == 5_242_880 * KIB + 64 * MIB
    assert listed["drm.engine_bytes"] == 5_242_880 * KIB + 65 * MIB


def test_a_descriptor_that_is_closed_leaves_the_client_to_its_duplicates(tmp_path: Path) -> None:
    root = unpack("intel", tmp_path)
    probe = DrmProbe(root)
    before, _ = probe.read(ENGINE)
    for number in (8, 9):
        _close(root, 951, number)

    after, _ = probe.read(ENGINE)

    assert after["drm.engine_bytes"] == before["drm.engine_bytes"]


def test_a_descriptor_whose_number_went_to_another_file_is_not_counted(tmp_path: Path) -> None:
    root = unpack("intel", tmp_path)
    probe = DrmProbe(root)
    probe.read(ENGINE)
    for number in (8, 9, 10):
        _close(root, 951, number)
        _open(root, 951, number, "pos:\t0\nflags:\t02\n", target="/var/log/engine.log")

    values, _ = probe.read(ENGINE)

    assert values["drm.engine_bytes"] == 64 * MIB


def test_a_client_that_a_child_inherited_counts_once(tmp_path: Path) -> None:
    root = unpack("intel", tmp_path)
    shutil.copytree(root / "proc/951", root / "proc/952", symlinks=True)

    alone, _ = DrmProbe(root).read([951])
    both, _ = DrmProbe(root).read([951, 952])

    assert both["drm.engine_bytes"] == alone["drm.engine_bytes"]


def test_a_card_whose_driver_is_loaded_late_is_found(tmp_path: Path) -> None:
    root, hand = unpack("amd-apu", tmp_path), Hand()
    driver = root / "sys/class/drm/card1/device/driver"
    driver.unlink()
    probe = DrmProbe(root, pace=Pace(now_s=hand.now_s))

    before, _ = probe.read(ENGINE)
    driver.symlink_to("../../../../bus/pci/drivers/amdgpu")
    hand.at_s = 2.0
    after, _ = probe.read(ENGINE)

    assert before == {"drm.devices": 0}
    assert after["drm.devices"] == 1


def test_others_are_looked_through_at_their_own_slow_pace(tmp_path: Path) -> None:
    hand = Hand()
    probe = DrmProbe(unpack("amd-apu", tmp_path), pace=Pace(foreign_s=10.0, now_s=hand.now_s))

    counted = []
    for hand.at_s in (0.0, 9.9, 10.0):
        counted.append("drm.foreign_processes" in probe.read(ENGINE)[0])

    assert counted == [True, False, True]


def test_kfds_books_are_asked_when_drms_show_nothing(tmp_path: Path) -> None:
    root = unpack("amd-apu", tmp_path)
    for number in (11, 12, 13):
        _close(root, 951, number)
    kfd = root / "sys/class/kfd/kfd/proc/951"
    kfd.mkdir(parents=True)
    (kfd / "vram_52019").write_text("1073741824\n")
    (kfd / "sdma_52019").write_text("77\n")

    values, absent = DrmProbe(root).read(ENGINE)

    assert values["drm.engine_bytes"] == 1024 * MIB
    assert values["drm.engine_kfd_bytes"] == 1024 * MIB
    assert absent == {"drm.engine_gtt_bytes": "taken from KFD's books, which count VRAM only"}


def test_a_total_that_cannot_be_read_is_null(tmp_path: Path) -> None:
    root = unpack("amd-apu", tmp_path)
    (root / "sys/class/drm/card1/device/mem_info_gtt_used").unlink()

    values, absent = DrmProbe(root).read(ENGINE)

    assert values["drm.gtt_used_bytes"] is None
    assert set(absent) == {"drm.gtt_used_bytes"}


def test_descriptors_of_this_very_process_are_looked_through(tmp_path: Path) -> None:
    root = unpack("amd-apu", tmp_path)

    values, _ = DrmProbe(root, processes=Path("/proc")).read([os.getpid()])

    assert values["drm.engine_bytes"] == 0  # it has opened no GPU


# ------------------------------------------------------------------------------------------ parsing


def _xe(client: int, resident_kib: int) -> str:
    return (
        f"drm-driver:\txe\ndrm-client-id:\t{client}\ndrm-pdev:\t0000:03:00.0\n"
        f"drm-total-vram0:\t{2 * resident_kib} KiB\ndrm-resident-vram0:\t{resident_kib} KiB\n"
    )


@pytest.mark.parametrize(
    ("lines", "vram_bytes", "gtt_bytes"),
    [
        ("drm-memory-vram:\t3 KiB\ndrm-memory-gtt: \t5 KiB", 3 * KIB, 5 * KIB),
        ("drm-memory-vram:\t3000", 3000, 0),  # no unit: bytes
        ("drm-memory-vram:\t9 MiB\ndrm-resident-vram:\t7 MiB", 7 * MIB, 0),  # resident is better
        ("drm-resident-vram:\t7 MiB\ndrm-memory-vram:\t9 MiB", 7 * MIB, 0),  # in either order
        ("drm-memory-cpu:\t2 KiB\ndrm-memory-gds:\t1 KiB", 0, 2 * KIB),  # gds is on the chip
        ("drm-resident-system0:\t4 MiB\ndrm-resident-local0:\t1 MiB", MIB, 4 * MIB),
        ("drm-resident-stolen-system0:\t8 KiB\ndrm-resident-system0:\t0", 8 * KIB, 0),
        (
            "drm-resident-system:\t1 MiB\ndrm-resident-gtt:\t2 MiB\n"
            "drm-resident-vram0:\t3 MiB\ndrm-resident-vram1:\t4 MiB\ndrm-resident-stolen:\t0",
            7 * MIB,
            3 * MIB,
        ),
        ("drm-total-system0:\t4 MiB", None, None),  # a total is not what is held
        ("drm-resident-vram:\t4 pages", None, None),
        ("", None, None),
    ],
)
def test_what_a_client_holds(lines: str, vram_bytes: int | None, gtt_bytes: int | None) -> None:
    client = parse_fdinfo(f"pos:\t0\ndrm-driver:\txe\ndrm-client-id:\t7\n{lines}\n", 41)

    assert client is not None
    assert (client.vram_bytes, client.gtt_bytes) == (vram_bytes, gtt_bytes)


def test_a_driver_that_tells_no_memory_is_null_with_its_name() -> None:
    client = parse_fdinfo("drm-driver:\ti915\ndrm-client-id:\t7\ndrm-pdev:\t0000:00:02.0\n", 41)
    assert client is not None

    values, absent = engine_readings([client])

    assert values["drm.engine_bytes"] is None
    assert absent["drm.engine_bytes"] == "this kernel's i915 does not tell memory by client"
    assert values["drm.engine_clients"] == 1


def test_a_client_on_a_card_of_another_kind_is_none_of_ours() -> None:
    client = parse_fdinfo("drm-driver:\tnvidia-drm\ndrm-client-id:\t7\n", 41)
    assert client is not None

    values, _ = engine_readings([client])

    assert values["drm.engine_bytes"] == 0
    assert values["drm.engine_clients"] == 0


def test_clients_without_a_number_are_one_for_each_process() -> None:
    texts = ["drm-driver:\tamdgpu\ndrm-pdev:\t0000:c2:00.0\ndrm-memory-vram:\t3 KiB\n"] * 2

    keys = {client.key for text in texts for pid in (41, 42) if (client := parse_fdinfo(text, pid))}

    assert len(keys) == 2


@given(st.text() | st.binary().map(lambda raw: raw.decode("utf-8", "replace")))
def test_any_text_is_parsed_without_an_error(text: str) -> None:
    assert parse_fdinfo(text, 1) is None or "drm-driver:" in text


@given(
    st.sampled_from(sorted(DRIVERS)),
    st.lists(
        st.tuples(
            st.sampled_from(["resident", "memory", "total"]),
            st.sampled_from(["vram", "gtt", "cpu", "system0", "local0", "stolen", "", "?"]),
            st.integers(-5, 1 << 70) | st.text(max_size=5000),
            st.sampled_from(["", " KiB", " MiB", " kB", "\0"]),
        )
    ),
)
def test_any_sizes_are_sums_or_null(
    driver: str, lines: list[tuple[str, str, int | str, str]]
) -> None:
    text = "".join(f"drm-{line}-{region}:\t{size}{unit}\n" for line, region, size, unit in lines)
    client = parse_fdinfo(f"drm-driver:\t{driver}\n{text}", 1)
    assert client is not None

    values, absent = engine_readings([client])

    assert set(absent) == {name for name, value in values.items() if value is None}
    assert all(value is None or value >= 0 for value in values.values())
