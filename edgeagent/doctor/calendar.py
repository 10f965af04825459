"""Can this box's date be right?

A box without a battery boots in the past, and one that was set wrong writes files of the future. So
the clock is held against what is certainly past: the making of this program, the beginning of its
own certificates, files that were written here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

from edgeagent.core.diagnosis import Check
from edgeagent.publish import tls
from edgeagent.wallclock import BUILT_MS, STEP_S

_SLACK = timedelta(minutes=5)
_SET_IT = "set the clock: timedatectl set-ntp true, or timedatectl set-time"


@dataclass(frozen=True)
class Past:
    """A moment that is certainly over, and by what that is known."""

    at: datetime
    by: str


def built() -> Past:
    """Return when this program was made, roughly."""
    return Past(datetime.fromtimestamp(BUILT_MS / 1000, timezone.utc), "this program was made")


def past(certificates: Iterable[Path], written: Iterable[Path]) -> tuple[Past, ...]:
    """Return what is certainly over, as far as it can be read."""
    found = [built()]
    for path in certificates:
        held = tls.validity(path)
        if held is not None:
            found.append(Past(held.not_before, f"{path} was issued"))
    for path in written:
        try:
            at = datetime.fromtimestamp(path.stat().st_mtime, timezone.utc)
        except (OSError, ValueError, OverflowError):
            continue
        found.append(Past(at, f"{path} was written"))
    return tuple(found)


def date(now: datetime, known: Iterable[Past], stepped_s: float) -> Check:
    """Judge the date; `stepped_s` is by how much the clock jumped while the doctor looked."""
    name = "clocks.date"
    told = f"{now:%Y-%m-%d %H:%M:%S}Z"
    latest = max(known, key=lambda one: one.at)
    if now < latest.at - _SLACK:
        text = f"it is {told} here, and that is before {latest.by} ({latest.at:%Y-%m-%d %H:%M}Z)"
        return Check(name, "fault", text, _SET_IT)
    if abs(stepped_s) > STEP_S:
        text = f"{told}; the clock jumped by {stepped_s:+.0f} s while the doctor looked"
        hint = "wait until it is synchronised (timedatectl), and ask again"
        return Check(name, "warning", text, hint)
    return Check(name, "ok", f"{told}, which is after everything that is certainly past")
