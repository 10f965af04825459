"""Is this still the machine that it was, or a copy of its disk?

Machine ids, host names and keys are on the disk and are copied with it. What is not: the board's
serial number where it can be read by everybody (Arm), and the addresses of network cards. Only what
every user may read counts, so that a service and a person come to the same answer.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

_SERIALS = ("proc/device-tree/serial-number", "sys/firmware/devicetree/base/serial-number")


def marks(root: Path = Path("/")) -> frozenset[str]:
    """Return what tells this machine from others; empty where nothing does."""
    serials = [f"serial:{text}" for name in _SERIALS if (text := _known(root / name))]
    if serials:
        return frozenset(serials)
    cards = root / "sys/class/net"
    try:
        names = sorted(entry.name for entry in cards.iterdir())
    except OSError:
        return frozenset()
    # Bridges and the ends of containers' pairs hang on no bus, and have a new address every time.
    addresses = [_known(cards / name / "address") for name in names if _is_card(cards / name)]
    return frozenset(f"mac:{text}" for text in addresses if text)


def _is_card(card: Path) -> bool:
    return (card / "device").exists()


def _known(path: Path) -> str:
    """What a file says, unless it is a vendor's way to say nothing."""
    try:
        text = path.read_bytes().decode("ascii", "replace").strip("\0 \n")
    except OSError:
        return ""
    return text if set(text) - set("0-:. ") else ""


def written(found: frozenset[str]) -> str:
    """Return the marks as one line, to be kept."""
    return "|".join(sorted(found))


def same(kept: str, found: frozenset[str]) -> bool:
    """Whether the machine of the kept line is this one.

    One mark in common is enough: a card may have been exchanged. Where either side has none,
    nothing can be said, and the machine counts as the same.
    """
    before = frozenset(kept.split("|")) if kept else frozenset()
    return not before or not found or bool(before & found)


def suffix(found: frozenset[str]) -> str:
    """Return four letters and digits of this machine, for the name of a copy."""
    return hashlib.sha256(written(found).encode()).hexdigest()[:4]
