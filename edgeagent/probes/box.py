"""What kind of box is this? The facts that do not change while a sweep runs."""

from __future__ import annotations

import os
import platform
import re
import socket
from collections.abc import Mapping
from pathlib import Path

from edgeagent.probes.host import HostProbe


def node_name(hostname: str) -> str:
    """The host name in lower case; anything outside a-z, 0-9 and - becomes -."""
    return re.sub(r"[^a-z0-9-]", "-", hostname.lower())


def host_facts(root: Path = Path("/")) -> Mapping[str, object]:
    """Host name, class, processor, memory, operating system; None for what cannot be read."""
    memory, _ = HostProbe(root).read(())
    hostname = socket.gethostname()
    uname = platform.uname()
    return {
        "hostname": hostname,
        "node": node_name(hostname),
        "class": box_class(root),
        "machine": uname.machine,
        "cpu": cpu_model(_text(root / "proc/cpuinfo")) or _text(root / "proc/device-tree/model"),
        "cores": os.cpu_count(),
        "memory_total_bytes": memory.get("host.total_bytes"),
        "gpus": [{"name": name} for name in nvidia_gpus(root)],
        "os": os_name(_text(root / "etc/os-release")),
        "kernel": uname.release,
        "board": _text(root / "proc/device-tree/model"),
        "jetson_release": _text(root / "etc/nv_tegra_release"),
        "power_mode": _text(root / "var/lib/nvpmodel/status"),
    }


def available_bytes(root: Path = Path("/")) -> int | None:
    """Memory that could be had without swapping."""
    value = HostProbe(root).read(())[0].get("host.available_bytes")
    return None if value is None else int(value)


def box_class(root: Path = Path("/")) -> str:
    """The class of hardware by which memory must be read; `cpu` where no GPU driver shows."""
    compatible = _text(root / "proc/device-tree/compatible") or ""
    # Thor and GB10 share memory with the CPU under nvidia.ko, Jetson up to Orin under nvgpu.
    if "tegra264" in compatible or any("GB10" in name for name in nvidia_gpus(root)):
        return "uma-nvidia"
    if "tegra" in compatible or (root / "etc/nv_tegra_release").exists():
        return "uma-nvgpu"
    if (root / "proc/driver/nvidia/version").exists():
        return "dgpu"
    vendors = {_text(path) for path in (root / "sys/class/drm").glob("card*/device/vendor")}
    if "0x1002" in vendors:
        return "amd"
    return "intel" if "0x8086" in vendors else "cpu"


def nvidia_gpus(root: Path = Path("/")) -> tuple[str, ...]:
    """The names of the GPUs under nvidia.ko, which lists them without being asked for NVML."""
    texts = map(_text, sorted((root / "proc/driver/nvidia/gpus").glob("*/information")))
    found = (re.search(r"^Model:\s*(.+)$", text or "", re.MULTILINE) for text in texts)
    return tuple(match.group(1) for match in found if match)


def cpu_model(cpuinfo: str | None) -> str | None:
    """The processor's name, from /proc/cpuinfo."""
    found = re.search(r"^model name\s*:\s*(.+)$", cpuinfo or "", re.MULTILINE)
    return found.group(1) if found else None


def os_name(os_release: str | None) -> str | None:
    """The system's name, from /etc/os-release."""
    found = re.search(r'^PRETTY_NAME="?([^"\n]+)', os_release or "", re.MULTILINE)
    return found.group(1) if found else None


def _text(path: Path) -> str | None:
    try:
        return path.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip() or None
    except OSError:
        return None
