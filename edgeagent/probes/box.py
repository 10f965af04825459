"""What kind of box is this? The facts that do not change while a sweep runs.

No single signal tells: NVML fails on boards that have a GPU, a container hides the device tree, and
the same release of Jetson Linux runs on nvgpu (Orin) and on nvidia.ko (Thor). So everything that
can be seen is gathered first (`look`), and `classify` thinks about it. Nothing here raises.
"""

from __future__ import annotations

import os
import platform
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from edgeagent.core.nodes import node_name
from edgeagent.probes.host import HostProbe

BoxClass = Literal["dgpu", "uma-nvidia", "uma-nvgpu", "amd", "intel", "cpu"]
"""By which rules memory is read: an NVIDIA card with memory of its own; memory shared with the CPU
under nvidia.ko (Thor, GB10) or under nvgpu (Orin, Xavier); a GPU of AMD or Intel; no GPU."""


def host_facts(root: Path = Path("/")) -> Mapping[str, object]:
    """Host name, class, processor, memory, operating system; None for what cannot be read."""
    signals = look(root)
    box = classify(signals)
    memory, _ = HostProbe(root).read(())
    cpuinfo = _text(root / "proc/cpuinfo")
    hostname = socket.gethostname()
    return {
        "hostname": hostname,
        "node": node_name(hostname),
        "class": box.kind,
        "class_notes": list(box.notes),
        "machine": platform.machine(),
        "cpu": cpu_model(cpuinfo) or signals.model,
        "cores": cpu_count(cpuinfo) or os.cpu_count(),
        "memory_total_bytes": memory.get("host.total_bytes"),
        "swap_total_bytes": meminfo_bytes(_text(root / "proc/meminfo"), "SwapTotal"),
        "page_bytes": os.sysconf("SC_PAGE_SIZE"),
        "gpus": [{"name": name} for name in box.gpus],
        "gpu_driver": driver_version(signals.driver),
        "os": os_name(_text(root / "etc/os-release")),
        "kernel": signals.kernel or platform.release(),
        "board": signals.model,
        "release": box.release,
        "jetson_release": (signals.tegra_release or "").partition("\n")[0] or None,
        **_power_mode(root),
        "cgroup": cgroup_version(root),
        "pressure_stall_information": _text(root / "proc/pressure/memory") is not None,
        "uptime_s": uptime_s(_text(root / "proc/uptime")),
    }


def _power_mode(root: Path) -> dict[str, str | None]:
    mode = _text(root / "var/lib/nvpmodel/status")
    reason = None if mode else "no nvpmodel here: only Jetsons have power modes"
    return {"power_mode": mode, "power_mode_reason": reason}


def available_bytes(root: Path = Path("/")) -> int | None:
    """Memory that could be had without swapping."""
    value = HostProbe(root).read(())[0].get("host.available_bytes")
    return None if value is None else int(value)


def box_class(root: Path = Path("/")) -> BoxClass:
    """The class of hardware by which memory must be read; `cpu` where no GPU driver shows."""
    return classify(look(root)).kind


def describe(root: Path = Path("/")) -> Box:
    """The class of the box, with its GPUs and what is peculiar about it."""
    return classify(look(root))


# --------------------------------------------------------------------------------------- thinking


@dataclass(frozen=True)
class Signals:
    """What a box shows of itself, unjudged; None or empty for what it does not show."""

    kernel: str | None = None
    model: str | None = None
    """The board's name in the device tree, or in the firmware's tables."""
    compatible: tuple[str, ...] = ()
    tegra_release: str | None = None
    dgx_release: str | None = None
    driver: str | None = None
    """What nvidia.ko says of itself; the one on Orin drives the display alone."""
    nvidia_gpus: tuple[str, ...] = ()
    devfreq: tuple[str, ...] = ()
    """Names of devices whose frequency can change, in the device tree's words or the kernel's."""
    drm_vendors: tuple[str, ...] = ()
    has_nvmap: bool = False
    """Whether /proc/meminfo lists NvMapMemUsed, which only nvgpu has, in containers too."""
    has_windows_nvml: bool = False


@dataclass(frozen=True)
class Box:
    """The judgement on a box."""

    kind: BoxClass
    gpus: tuple[str, ...] = ()
    """The names of its GPUs, as far as they are known without asking NVML."""
    notes: tuple[str, ...] = ()
    """What a reader of its numbers has to know, in sentences."""
    soc: str | None = None
    """tegra234 and the like."""
    release: str | None = None


_SHARED_NAMES = re.compile(r"\b(Orin|Xavier|Thor|GB10|Tegra)\b|nvgpu|unknown", re.IGNORECASE)
"""Names of GPUs that share the CPU's memory; a name not known yet is no proof of a card."""
_UNDER_NVIDIA_KO = re.compile(r"\b(Thor|GB10)\b")
_NVGPU_NODES = frozenset({"gv11b", "gp10b", "ga10b"})
"""The node of later boards is called just `gpu`, as a Mali's is: that proves nothing."""
_THOR_NODE = "gpu-gpc-"
_SOC_NAMES = {
    "tegra186": "TX2",
    "tegra194": "Xavier",
    "tegra210": "Nano",
    "tegra234": "Orin",
    "tegra264": "Thor",
}
_THOR_SOC = "tegra264"


def classify(signals: Signals) -> Box:
    """Judge a box by everything that it shows."""
    soc = _soc(signals.compatible)
    release = release_name(signals.tegra_release, signals.dgx_release)
    cards = tuple(name for name in signals.nvidia_gpus if not _SHARED_NAMES.search(name))
    if "microsoft" in (signals.kernel or "").lower():
        return _under_windows(signals)
    shared = integrated_class(signals)
    if shared is not None and cards:
        return Box("dgpu", signals.nvidia_gpus, (_TWO_GPUS,), soc, release)
    if shared is not None:
        gpus = signals.nvidia_gpus or (_nvgpu_name(soc),)
        return Box(shared, gpus, (), soc, release)
    return _ordinary(signals, release)


_TWO_GPUS = (
    "this board has an integrated GPU and an NVIDIA card; CUDA numbers them in another order than "
    "NVML and uses one kind in a process, so devices are named by UUID"
)
_NO_CARD = "NVIDIA's driver is loaded and lists no GPU"
_NOUVEAU = "there is an NVIDIA GPU, but NVIDIA's driver is not loaded"
_WINDOWS = (
    "this is WSL: NVML shows no memory of processes here, so GPU memory is known for the device "
    "alone"
)
_WINDOWS_ALONE = "this is WSL without NVIDIA's library"


def is_jetson(signals: Signals) -> bool:
    """Whether this is a board with NVIDIA's Tegra, whatever drives its GPU."""
    return (
        _soc(signals.compatible) is not None
        or signals.tegra_release is not None
        or signals.has_nvmap
        or any(name.startswith(_THOR_NODE) for name in signals.devfreq)
        or not _NVGPU_NODES.isdisjoint(signals.devfreq)
    )


def integrated_class(signals: Signals) -> Literal["uma-nvidia", "uma-nvgpu"] | None:
    """The class of NVIDIA's GPU that shares the CPU's memory here, be there a card beside it."""
    if (
        _soc(signals.compatible) == _THOR_SOC
        or any(_UNDER_NVIDIA_KO.search(name) for name in signals.nvidia_gpus)
        or any(name.startswith(_THOR_NODE) for name in signals.devfreq)
    ):
        return "uma-nvidia"
    return "uma-nvgpu" if is_jetson(signals) else None


def _under_windows(signals: Signals) -> Box:
    if signals.has_windows_nvml or signals.nvidia_gpus:
        return Box("dgpu", signals.nvidia_gpus, (_WINDOWS,))
    return Box("cpu", (), (_WINDOWS_ALONE,))


def _ordinary(signals: Signals, release: str | None) -> Box:
    if signals.nvidia_gpus or signals.driver is not None:
        notes = () if signals.nvidia_gpus else (_NO_CARD,)
        return Box("dgpu", signals.nvidia_gpus, notes, release=release)
    notes = (_NOUVEAU,) if "0x10de" in signals.drm_vendors else ()
    if "0x1002" in signals.drm_vendors:
        return Box("amd", notes=notes, release=release)
    if "0x8086" in signals.drm_vendors:
        return Box("intel", notes=notes, release=release)
    return Box("cpu", notes=notes, release=release)


def _soc(compatible: tuple[str, ...]) -> str | None:
    found = (re.fullmatch(r"nvidia,(tegra\d+)", word) for word in compatible)
    return next((match.group(1) for match in found if match), None)


def _nvgpu_name(soc: str | None) -> str:
    return f"{_SOC_NAMES.get(soc or '', 'Tegra')} (nvgpu)"


# ---------------------------------------------------------------------------------------- parsing

_JETPACKS = {"32": "4", "35": "5", "36": "6", "38": "7", "39": "7"}


def release_name(tegra_release: str | None, dgx_release: str | None = None) -> str | None:
    """The release of Jetson Linux or DGX OS in a few words; None on any other system."""
    found = re.search(r"R(\d+) \(release\), REVISION: ([\d.]+)", tegra_release or "")
    if found:
        major, minor = found.group(1), found.group(2).rstrip(".")
        jetpack = _JETPACKS.get(major)
        return f"L4T {major}.{minor}" + (f" (JetPack {jetpack})" if jetpack else "")
    found = re.search(r'^DGX_SWBUILD_VERSION="?([^"\s]+)', dgx_release or "", re.MULTILINE)
    return f"DGX OS {found.group(1)}" if found else None


def driver_version(text: str | None) -> str | None:
    """The version in /proc/driver/nvidia/version, such as 580.95.05."""
    found = re.search(r"^NVRM version:.*?\s(\d+(?:\.\d+)+)\b", text or "", re.MULTILINE)
    return found.group(1) if found else None


def cpu_model(cpuinfo: str | None) -> str | None:
    """The processor's name, from /proc/cpuinfo; ARM's is told by the numbers of its cores."""
    found = re.search(r"^model name\s*:\s*(.+)$", cpuinfo or "", re.MULTILINE)
    if found:
        return found.group(1)
    parts = dict.fromkeys(
        re.findall(r"^CPU part\s*:\s*(0x[0-9a-f]+)$", cpuinfo or "", re.MULTILINE)
    )
    return " + ".join(_ARM_CORES.get(part, f"ARM part {part}") for part in parts) or None


_ARM_CORES = {
    "0xd08": "Cortex-A72",
    "0xd0b": "Cortex-A76",
    "0xd42": "Cortex-A78AE",
    "0xd83": "Neoverse-V3AE",
    "0xd85": "Cortex-X925",
    "0xd87": "Cortex-A725",
}


def cpu_count(cpuinfo: str | None) -> int | None:
    """How many processors /proc/cpuinfo lists."""
    return len(re.findall(r"^processor\s*:", cpuinfo or "", re.MULTILINE)) or None


def os_name(os_release: str | None) -> str | None:
    """The system's name, from /etc/os-release."""
    found = re.search(r'^PRETTY_NAME="?([^"\n]+)', os_release or "", re.MULTILINE)
    return found.group(1) if found else None


def meminfo_bytes(meminfo: str | None, name: str) -> int | None:
    """One line of /proc/meminfo, in bytes; None when it is not listed."""
    found = re.search(rf"^{re.escape(name)}:\s*([0-9]{{1,18}}) kB", meminfo or "", re.MULTILINE)
    return int(found.group(1)) * 1024 if found else None


def uptime_s(text: str | None) -> float | None:
    """Seconds since the box was started, from /proc/uptime."""
    found = re.match(r"[0-9]{1,15}(\.[0-9]{1,9})?", text or "")
    return float(found.group()) if found else None


def words(text: str | None) -> tuple[str, ...]:
    """The words of a property of the device tree, which stand between NULs."""
    return tuple(word for word in (part.strip() for part in (text or "").split("\0")) if word)


# ---------------------------------------------------------------------------------------- reading


def look(root: Path = Path("/")) -> Signals:
    """Gather every signal; one that cannot be read counts as not shown."""
    board = look_at_board(root)
    return replace(
        board,
        kernel=_text(root / "proc/sys/kernel/osrelease"),
        model=board.model or _text(root / _PRODUCT),
        dgx_release=_text(root / "etc/dgx-release"),
        driver=_text(root / "proc/driver/nvidia/version"),
        nvidia_gpus=nvidia_gpus(root),
        drm_vendors=_drm_vendors(root),
        has_windows_nvml=(root / "usr/lib/wsl/lib/libnvidia-ml.so.1").exists(),
    )


def look_at_board(root: Path = Path("/")) -> Signals:
    """Gather what tells a Jetson: few files, none of which can wake a sleeping card."""
    tree = root / "proc/device-tree"
    if not tree.is_dir():
        tree = root / "sys/firmware/devicetree/base"
    return Signals(
        model=" ".join(words(_raw(tree / "model"))) or None,
        compatible=words(_raw(tree / "compatible")),
        tegra_release=_text(root / "etc/nv_tegra_release"),
        devfreq=devfreq_names(root),
        has_nvmap=meminfo_bytes(_text(root / "proc/meminfo"), "NvMapMemUsed") is not None,
    )


_PRODUCT = "sys/class/dmi/id/product_name"


def nvidia_gpus(root: Path = Path("/")) -> tuple[str, ...]:
    """The names of the GPUs under nvidia.ko, which lists them without being asked for NVML."""
    texts = map(_text, sorted((root / "proc/driver/nvidia/gpus").glob("*/information")))
    found = (re.search(r"^Model:\s*(.+)$", text or "", re.MULTILINE) for text in texts)
    return tuple(match.group(1) for match in found if match)


def devfreq_names(root: Path = Path("/")) -> tuple[str, ...]:
    """The devices below /sys/class/devfreq, by their names in the device tree or the kernel's."""
    nodes = sorted((root / "sys/class/devfreq").glob("*"))
    return tuple(" ".join(words(_raw(node / "device/of_node/name"))) or node.name for node in nodes)


def cgroup_version(root: Path = Path("/")) -> Literal["v2", "hybrid", "v1"] | None:
    """How control groups are laid out; None where there are none."""
    mounted = root / "sys/fs/cgroup"
    if (mounted / "cgroup.controllers").exists():
        return "v2"
    if (mounted / "unified/cgroup.controllers").exists():
        return "hybrid"
    return "v1" if (mounted / "memory").is_dir() else None


def _drm_vendors(root: Path) -> tuple[str, ...]:
    texts = map(_text, sorted((root / "sys/class/drm").glob("card*/device/vendor")))
    return tuple(text for text in texts if text is not None)


def _text(path: Path) -> str | None:
    """A small file's text, stripped; None when it cannot be read or is empty."""
    raw = _raw(path)
    return None if raw is None else raw.replace("\0", " ").strip() or None


def _raw(path: Path) -> str | None:
    try:
        return path.read_bytes().decode("utf-8", "replace")
    except OSError:
        return None
