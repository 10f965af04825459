"""Which files that others look after does the daemon read, and what do they say now?

The policy is read anew when it has changed, because its owner may take a permission back at any
time; one with a fault allows nothing. The certificate is looked at every hour.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from datetime import datetime, timezone
from pathlib import Path

from edgeagent import policy_file
from edgeagent.core.delivery import Entry, Stamp
from edgeagent.core.policy import Policy
from edgeagent.errors import ConfigError
from edgeagent.policy_file import PolicyFile
from edgeagent.publish.signature import Key, read_key
from edgeagent.publish.spool import Spool
from edgeagent.publish.tls import validity
from edgeagent.service.troubles import Troubles
from edgeagent.settings import Settings

_NOTHING_ALLOWED = PolicyFile(Policy(), "")
_CERT_DAYS = (30, 7, 1)
_DAY_MS = 86_400_000
_Marks = tuple[int, ...] | None


class PolicyOnDisk:
    """The policy file as it is now."""

    def __init__(
        self, settings: Callable[[], Settings], owners: Collection[int], troubles: Troubles
    ) -> None:
        self._settings, self._owners, self._troubles = settings, owners, troubles
        self._read: tuple[Path, _Marks] | None = None
        self._now = _NOTHING_ALLOWED

    @property
    def latest(self) -> PolicyFile:
        """What was read last; any thread may ask."""
        return self._now

    def now(self) -> PolicyFile:
        """Return what the file says, read anew if it has changed."""
        commands = self._settings().mqtt.commands
        marks = _marks(commands.policy_file)
        wanted = (commands.policy_file, marks)
        if self._read != wanted:
            self._read = wanted
            self._now = self._look(commands.policy_file, marks, commands.enabled)
        return self._now

    def _look(self, path: Path, marks: _Marks, enabled: object) -> PolicyFile:
        if marks is None and not enabled:
            self._troubles.settled("policy")
            return _NOTHING_ALLOWED
        try:
            found = policy_file.read_policy(path, self._owners)
        except ConfigError as error:
            self._troubles.stands("policy", str(error))
            return _NOTHING_ALLOWED
        self._troubles.settled("policy")
        return found

    def forget(self) -> None:
        """Read it at the next question in any case."""
        self._read = None


def _marks(path: Path) -> _Marks:
    """What changes when a file does; None when there is none, or none to be seen."""
    try:
        found = os.stat(path)  # noqa: PTH116  # because it is asked at every command
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size, found.st_mode, found.st_uid


def signing_key(settings: Settings) -> Key | None:
    """Return the key of commands' signatures; None where none is wanted. Raises ConfigError."""
    path = settings.mqtt.commands.hmac_key_file
    return None if path is None else read_key(str(path))


class Certificate:
    """How long this box's certificate lasts."""

    def __init__(
        self, spool: Spool, stamp: Callable[[], Stamp], record: Callable[[Entry], None],
        troubles: Troubles,
    ) -> None:  # fmt: skip
        self._spool, self._stamp, self._record = spool, stamp, record
        self._troubles = troubles
        self.not_after_ms: int | None = None
        """None without a certificate, or one that cannot be read."""

    def look(self, path: Path | None) -> None:
        """See when it ends; tell at 30, 7 and 1 days, and again for another certificate.

        Raises EdgeAgentError when that cannot be told.
        """
        found = validity(path) if path is not None else None
        if path is None or found is None:
            self.not_after_ms = None
            self._troubles.settled("cert")
            return
        self.not_after_ms = int(found.not_after.timestamp() * 1000)
        days = (self.not_after_ms - self._stamp().ts_ms) / _DAY_MS
        level = sum(days <= limit for limit in _CERT_DAYS)
        if not level:
            self._troubles.settled("cert")
            return
        until = datetime.fromtimestamp(self.not_after_ms / 1000, timezone.utc).date()
        self._troubles.stands(
            "cert",
            f"the certificate {path} ends on {until}: put a new one in its place, it is read at "
            "the next connection",
        )
        self._alarm(path, days, f"{self.not_after_ms}:{level}")

    def _alarm(self, path: Path, days: float, mark: str) -> None:
        if self._spool.get("cert_alarm") == mark:
            return
        value = {"file": str(path), "not_after": self.not_after_ms, "days_left": round(days, 2)}
        self._record(Entry("R", "e/cert", "edgeagent.cert/1", self._stamp(), value))
        self._spool.put("cert_alarm", mark)
