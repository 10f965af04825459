"""What did the agent do, and when? Its own log of events, as JSON lines.

A sweep logs into its run folder (`agent.log`), so that a bug report is the folder and nothing else.
Logs are events with fields, not sentences; what an operator must read is printed elsewhere.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import structlog

LOG = "agent.log"


class EventLog:
    """Events to a file, each on its own line with its time; a context manager."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8", buffering=1)
        self._log = structlog.wrap_logger(
            structlog.WriteLogger(self._file),
            processors=[
                structlog.processors.TimeStamper(fmt="iso", utc=True),
                structlog.processors.add_log_level,
                structlog.processors.JSONRenderer(),
            ],
        )

    def info(self, event: str, **fields: Any) -> None:
        """Something happened."""
        with suppress(OSError):  # a full disk must not end a sweep for its log's sake
            self._log.info(event, **fields)

    def warning(self, event: str, **fields: Any) -> None:
        """Something happened that somebody may have to look at."""
        with suppress(OSError):
            self._log.warning(event, **fields)

    def __enter__(self) -> EventLog:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with suppress(OSError):
            self._file.close()
