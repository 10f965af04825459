"""A Sparkplug node as a process of its own, so that a test can kill it: PORT FOLDER HOST."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from random import Random

from edgeagent.core.backoff import Pace
from edgeagent.publish.link import Broker, PahoLink
from edgeagent.publish.sparkplug_client import SparkplugClient, host_topics
from edgeagent.publish.sparkplug_mirror import Names, node_metrics

SWIFT = Pace(first_s=0.0, return_s=0.1, most_s=0.2, refused_s=0.1, taken_over_s=0.2, stable_s=0.5)


class FileNotes:
    """Notes as files of a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get(self, name: str) -> str | None:
        path = self._folder / name
        return path.read_text() if path.exists() else None

    def put(self, name: str, value: str) -> None:
        (self._folder / name).write_text(value)


def client(port: int, names: Names, folder: Path) -> SparkplugClient:
    """A node at a broker on loopback."""
    broker = Broker(
        host="127.0.0.1",
        port=port,
        client_id=f"{names.node}-spb",
        plaintext="allowed",
        commands="ignored" if names.primary_host is None else "heard",
        session_expiry_s=0,
        will_delay_s=0,
    )

    def link() -> PahoLink:
        return PahoLink(broker, host_topics(names), Random(1), SWIFT)

    return SparkplugClient(names, link, FileNotes(folder), lambda: time.time_ns() // 1_000_000)


if __name__ == "__main__":
    node = client(int(sys.argv[1]), Names("plant7", "edge-0001", sys.argv[3] or None),
                  Path(sys.argv[2]))  # fmt: skip
    node.readings(node_metrics("idle", {"ram_used_bytes": 5e9}))
    node.start()
    threading.Event().wait()
