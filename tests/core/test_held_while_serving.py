"""Memory while requests are served: which source is used on which class of box."""

from __future__ import annotations

import pytest

from edgeagent.core.memory import held_while_serving
from edgeagent.core.model import MemorySample

GIB = 1 << 30


def samples(**values: int | None) -> list[MemorySample]:
    """Two moments, the second with one byte more in everything."""
    names = {name.replace("__", "."): value for name, value in values.items()}
    more = {name: None if value is None else value + 1 for name, value in names.items()}
    return [MemorySample(1, 0, "x", names), MemorySample(2, 0, "x", more)]


@pytest.mark.parametrize(
    ("box", "values", "domain", "source", "first"),
    [
        ("cpu", {"engine__anon_bytes": 7, "host__used_bytes": 900}, "host", "rss_anon", 7),
        ("cpu", {"engine__anon_bytes": None, "host__used_bytes": 9}, "host", "mem_available", 9),
        ("dgpu", {"gpu__engine_bytes": 5, "engine__anon_bytes": 7}, "gpu", "nvml_processes", 5),
        (
            "dgpu",
            {"gpu__engine_bytes": None, "gpu__GPU-1__used_bytes": 3, "gpu__GPU-2__used_bytes": 4},
            "gpu",
            "nvml_device",
            7,
        ),
        (
            "uma-nvidia",
            {"gpu__engine_bytes": 5, "engine__anon_bytes": 7},
            "unified",
            "nvml_processes+rss_anon",
            12,
        ),
        ("uma-nvgpu", {"nvmap__engine_bytes": 5}, "unified", "nvmap_clients", 5),
        (
            "amd",
            {"drm__engine_bytes": 5, "drm__vram_total_bytes": 16 * GIB},
            "gpu",
            "drm_fdinfo",
            5,
        ),
        (
            "amd",
            {"drm__engine_bytes": 5, "drm__vram_total_bytes": GIB, "engine__anon_bytes": 7},
            "unified",
            "drm_fdinfo+rss_anon",
            12,
        ),
        ("unheard of", {"engine__anon_bytes": 7}, "host", "rss_anon", 7),
    ],
)
def test_the_best_source_of_the_class_is_used(
    box: str, values: dict[str, int | None], domain: str, source: str, first: int
) -> None:
    found = held_while_serving(box, samples(**values))
    assert (found.domain, found.source) == (domain, source)
    assert found.at[0] == (1, first)
    assert len(found.at) == 2
    assert found.reason is None


def test_an_engine_on_the_processor_of_a_box_with_a_gpu_is_looked_for_in_the_hosts_memory() -> None:
    found = held_while_serving("dgpu", samples(gpu__engine_bytes=0, engine__anon_bytes=7)[:1])
    assert (found.domain, found.source, found.at) == ("host", "rss_anon", ((1, 7),))


def test_moments_without_a_value_are_left_out() -> None:
    gap = MemorySample(3, 0, "x", {"engine.anon_bytes": None})
    found = held_while_serving("cpu", [*samples(engine__anon_bytes=7), gap])
    assert found.at == ((1, 7), (2, 8))


def test_no_memory_has_a_reason() -> None:
    gone = MemorySample(1, 0, "x", {"host.used_bytes": None}, {"host.used_bytes": "not here"})
    assert held_while_serving("cpu", []).reason == "no sample was taken"
    assert held_while_serving("cpu", [gone]).reason == "no source of memory answered"
    told = MemorySample(1, 0, "x", {}, {"gpu.engine_bytes": "NVML is not there"})
    assert held_while_serving("dgpu", [told]).reason == "NVML is not there"
