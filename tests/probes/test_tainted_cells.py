"""A sweep over a box that is disturbed in some of its cells: exactly those are tainted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from edgeagent.clock import ManualClock
from edgeagent.core.model import MemorySample
from edgeagent.core.taint import taints
from edgeagent.probes.hygiene import HygieneProbe
from edgeagent.probes.jetson import JetsonProbe, Pace
from edgeagent.probes.pressure import PressureProbe
from edgeagent.probes.sampler import Sampler

SECOND = 1_000_000_000
BOX = {
    "etc/nv_tegra_release": "# R36 (release), REVISION: 4.7, BOARD: generic\n",
    "proc/device-tree/compatible": "nvidia,p3768-0000+p3767-0005\0nvidia,tegra234\0",
    "etc/nvpmodel.conf": "< POWER_MODEL ID=0 NAME=15W >\n< POWER_MODEL ID=2 NAME=MAXN_SUPER >\n",
    "var/lib/nvpmodel/status": "pmode:0002\n",
    "sys/class/hwmon/hwmon3/oc3_event_cnt": "4\n",
    "sys/devices/system/cpu/cpu0/thermal_throttle/core_throttle_count": "11\n",
    "sys/class/thermal/thermal_zone0/type": "tj-thermal\n",
    "sys/class/thermal/thermal_zone0/temp": "52000\n",
    "sys/class/thermal/thermal_zone0/trip_point_0_type": "passive\n",
    "sys/class/thermal/thermal_zone0/trip_point_0_temp": "99000\n",
    "sys/class/thermal/cooling_device0/type": "cpufreq-cpu0\n",
    "sys/class/thermal/cooling_device0/cur_state": "0\n",
    "proc/vmstat": "pswpin 500\npswpout 900\nworkingset_refault_file 70\nallocstall_normal 1\n",
    "proc/pressure/memory": "some avg10=0.00 avg60=0.00 avg300=0.00 total=1000000\n"
    "full avg10=0.00 avg60=0.00 avg300=0.00 total=1000000\n",
    # Two cores, both idle: 200 ticks a second.
    "proc/stat": "cpu 1000 0 0 9000 0 0 0 0 0 0\ncpu0 0\ncpu1 0\n",
}


class Box:
    """A tree of files, a clock, and a sampler over both."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name, text in BOX.items():
            self.write(name, text)
        self.clock = ManualClock(0)
        self.kept: list[MemorySample] = []
        (root / "processes").mkdir()  # ours are not the recorded box's
        probes = (
            HygieneProbe(root, every_s=0.0, processes=root / "processes"),
            PressureProbe(root, every_s=0.0),
            JetsonProbe(root, pace=Pace(slow_s=0.0)),
        )
        self.sampler = Sampler(probes, self.clock, self.kept.append)
        self._busy, self._idle = 1000, 9000

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def second(self, busy_ticks: int = 4) -> None:
        """Let a second pass in which the two cores were busy for so long, and take a sample."""
        self._busy, self._idle = self._busy + busy_ticks, self._idle + 200 - busy_ticks
        self.write("proc/stat", f"cpu {self._busy} 0 0 {self._idle} 0 0 0 0\ncpu0 0\ncpu1 0\n")
        self.clock.advance(1.0)
        self.sampler.take(self.clock.now_ns())

    def cell(self, name: str, disturb: Callable[[], None] = lambda: None) -> None:
        """Measure for six seconds; the disturbance comes in the middle."""
        self.sampler.mark(name, "load")
        for second in range(6):
            if second == 3:
                disturb()
            self.second()
        self.sampler.mark(None)

    def busy_cell(self, name: str) -> None:
        self.sampler.mark(name, "load")
        for _ in range(6):
            self.second(busy_ticks=60)
        self.sampler.mark(None)


def test_exactly_the_disturbed_cells_are_tainted(tmp_path: Path) -> None:
    box = Box(tmp_path)

    def set_to(name: str, text: str) -> Callable[[], None]:
        return lambda: box.write(name, text)

    throttle = "sys/devices/system/cpu/cpu0/thermal_throttle/core_throttle_count"
    cooling = "sys/class/thermal/cooling_device0/cur_state"
    zone = "sys/class/thermal/thermal_zone0/temp"
    box.second()
    box.cell("quiet")
    box.cell("oc", set_to("sys/class/hwmon/hwmon3/oc3_event_cnt", "6\n"))
    box.cell("throttle", set_to(throttle, "12\n"))
    box.cell("cooling", set_to(cooling, "3\n"))
    box.write(cooling, "0\n")  # it had time to rest
    box.cell("swap", set_to("proc/vmstat", BOX["proc/vmstat"].replace("pswpin 500", "pswpin 512")))
    box.cell(
        "stall",
        set_to("proc/pressure/memory", BOX["proc/pressure/memory"].replace("1000000", "1400000")),
    )
    box.cell("mode", set_to("var/lib/nvpmodel/status", "pmode:0000\n"))
    box.busy_cell("neighbour")
    box.write(throttle, "99\n")  # between two cells, and rising swap as well
    box.write("proc/vmstat", BOX["proc/vmstat"].replace("pswpin 500", "pswpin 9999"))
    box.cell("after")
    box.write(zone, "90500\n")
    box.cell("hot")
    box.write(zone, "60000\n")
    box.cell("reset", set_to(throttle, "0\n"))

    found = {
        name: [code for code, _ in taints([s for s in box.kept if s.cell_id == name])]
        for name in dict.fromkeys(sample.cell_id for sample in box.kept if sample.cell_id)
    }
    assert found == {
        "quiet": [],
        "oc": ["throttled"],
        "throttle": ["throttled"],
        "cooling": ["throttled"],
        "swap": ["memory_pressure"],
        "stall": ["memory_pressure"],
        "mode": ["power_mode_changed"],
        "neighbour": ["foreign_cpu"],
        "after": [],
        "hot": ["hot_start"],
        "reset": [],
    }
