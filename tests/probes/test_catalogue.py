"""Which probes are asked on which class of box."""

from __future__ import annotations

from pathlib import Path

import pytest
import trees

from edgeagent.probes.catalogue import boundary_probes_for, probes_for, sysroot


def test_the_root_is_the_real_one_unless_another_is_named() -> None:
    assert sysroot({}) == Path("/")
    assert sysroot({"EDGEAGENT_SYSROOT": ""}) == Path("/")
    assert sysroot({"EDGEAGENT_SYSROOT": "/recorded"}) == Path("/recorded")


@pytest.mark.parametrize(
    ("tree", "special"),
    [
        ("cpu", {"drm"}),
        ("amd-apu", {"drm"}),
        ("intel", {"drm"}),
        ("orin-jp6", {"jetson"}),
        ("orin-jp7", {"jetson"}),
        ("thor", {"jetson"}),
        ("gb10", set()),
    ],
)
def test_each_class_of_box_has_the_probes_that_can_say_something_on_it(
    tree: str, special: set[str], tmp_path: Path
) -> None:
    probes = probes_for(trees.unpack(tree, tmp_path), {})

    names = [probe.name for probe in probes]
    everywhere = {"host", "gpu", "power", "pressure", "cgroup", "hygiene"}
    assert set(names) == everywhere | special
    assert len(names) == len(set(names))


def test_a_box_about_which_nothing_is_known_has_probes_all_the_same(tmp_path: Path) -> None:
    for probe in (*probes_for(tmp_path, {}), *boundary_probes_for(tmp_path)):
        values, absent = probe.read(())
        assert {name for name, value in values.items() if value is None} == set(absent)
        probe.close()


def test_whoever_looks_gets_every_value_at_each_reading(tmp_path: Path) -> None:
    root = trees.unpack("orin-jp6", tmp_path)

    for probe in probes_for(root, {"LD_LIBRARY_PATH": ""}, "looking"):
        first, _ = probe.read(())
        second, _ = probe.read(())
        assert set(first) == set(second), probe.name
        probe.close()
