"""How many rows a second does a collector store, acknowledge and receipt?

    python tests/benchmarks/bench_collector.py [--rows 60000] [--boxes 200] [--postgres]

One collector with SQLite: a real mosquitto is filled while it is away, as after an outage; then it
starts, and the time from the first stored row to the last one counts. So broker, collector and
database share the machine, and the boxes are elsewhere, as in a plant. With --postgres two
collectors of one shared subscription store into a PostgreSQL of its own; nothing is kept for those
while they are away, so there the publisher takes its part of the machine as well.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "fleet"), str(HERE.parent / "publish")]

from broker_places import Mosquitto, Variant, mosquitto, until  # noqa: E402
from fleet_boxes import Collecting, collecting, when_laid_out  # noqa: E402
from postgres_places import postgres  # noqa: E402

from edgeagent.fleet.store import Store  # noqa: E402

_BYTES = 1_000
_UNANSWERED = 2_000


@dataclass(frozen=True)
class Load:
    rows: int
    boxes: int


@dataclass(frozen=True)
class Figures:
    """What was measured; rows a second on this machine, with this much else going on."""

    rows: int
    seconds: float
    cpu_s: tuple[float, ...]
    """Of each collector."""
    rss_bytes: int
    load_before: float

    @property
    def rows_per_s(self) -> float:
        return self.rows / self.seconds


def messages(load: Load) -> Iterator[tuple[str, bytes]]:
    """Minutes of telemetry of 1,000 bytes, box by box in turn."""
    for n in range(load.rows):
        node, seq = f"box-{n % load.boxes:04d}", n // load.boxes + 1
        document = {
            "schema": "edgeagent.mem_1m/1",
            "id": f"9f3c2a1b-M-{seq}",
            "site": "plant7",
            "node": node,
            "epoch": "9f3c2a1b",
            "stream": "M",
            "seq": seq,
            "boot": "77ca4c85",
            "mono_ms": 8_123_456 + seq * 60_000,
            "ts": 1_796_006_611_123 + seq * 60_000,
            "clk": "sync",
            "replay": True,
            "v": {f"ram_used_bytes_{k:02d}": 5_123_456_789 + k for k in range(24)},
        }
        payload = json.dumps(document, separators=(",", ":")).encode()
        room = _BYTES - len(payload) - len(',"pad":""')
        document["pad"] = "x" * room
        yield (
            f"edgeagent/v1/plant7/{node}/m/mem_1m",
            json.dumps(document, separators=(",", ":")).encode(),
        )


def fill(port: int, load: Load) -> None:
    """Publish everything with QoS 1, as fast as the broker answers."""
    packets = [
        _publish(topic, payload, n % 65_535 + 1)
        for n, (topic, payload) in enumerate(messages(load))
    ]
    with closing(socket.create_connection(("127.0.0.1", port))) as sock:
        sock.sendall(b"\x10\x10\x00\x04MQTT\x04\x02\x00\x3c\x00\x04fill")
        assert sock.recv(4)[0] == 0x20
        answered = threading.Semaphore(_UNANSWERED)
        ended = threading.Thread(target=_answers, args=(sock, load.rows, answered))
        ended.start()
        for packet in packets:
            answered.acquire()
            sock.sendall(packet)
        ended.join()


def _answers(sock: socket.socket, wanted: int, answered: threading.Semaphore) -> None:
    left, rest = wanted, b""
    while left:
        rest += sock.recv(65_536)
        for _ in range(len(rest) // 4):
            answered.release()
            left -= 1
        rest = rest[len(rest) // 4 * 4 :]


def _publish(topic: str, payload: bytes, mid: int) -> bytes:
    name = topic.encode()
    body = struct.pack("!H", len(name)) + name + struct.pack("!H", mid) + payload
    length, head = len(body), bytearray([0x32])
    while True:
        head.append(length % 128 | (0x80 if length > 127 else 0))
        length //= 128
        if not length:
            return bytes(head) + body


def stored(store: Store) -> int:
    return int(store.query("SELECT coalesce(sum(wm), 0) FROM watermark")[0][0])


def measure(broker: Mosquitto, url: str, names: list[str], load: Load) -> Figures:
    """Let the collectors work off what was published while they were away, or is published now."""
    share = ["--share", "bench"] if len(names) > 1 else []
    words = ["--queue-limit", "1000000", *share]
    with ExitStack() as stack, tempfile.TemporaryDirectory() as folder:
        collectors = [
            stack.enter_context(collecting(Path(folder), broker.port, url, *words, name=name))
            for name in names
        ]
        for one in collectors:
            one.connected()
        before = os.getloadavg()[0]
        store = stack.enter_context(closing(when_laid_out(url)))
        if share:
            filling = threading.Thread(target=fill, args=(broker.port, load))
            filling.start()
            stack.callback(filling.join)
        else:
            collectors[0].end()
            fill(broker.port, load)
            collectors[0].start()
        until(lambda: stored(store) > 0, "the first row")
        began, had = time.monotonic(), stored(store)
        until(lambda: stored(store) >= load.rows, "the last row", 600.0)
        seconds = time.monotonic() - began
        cost = [_cost(one) for one in collectors]
        return Figures(
            load.rows - had,
            seconds,
            tuple(cpu for cpu, _ in cost),
            max(rss for _, rss in cost),
            before,
        )


def _cost(one: Collecting) -> tuple[float, int]:
    import psutil

    assert one.process is not None
    process = psutil.Process(one.process.pid)
    times = process.cpu_times()
    return times.user + times.system, process.memory_info().rss


def bench(where: str, load: Load) -> Figures:
    """Measure one collector with SQLite, or two with PostgreSQL."""
    plenty = Variant(
        lines=("allow_anonymous true",),
        head=("max_queued_messages 0", "max_queued_bytes 0", "persistence false"),
    )
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        broker = stack.enter_context(mosquitto(folder / "broker", plenty))
        if where == "sqlite":
            return measure(broker, f"sqlite://{folder}/fleet.db", ["c1"], load)
        cluster = stack.enter_context(postgres())
        return measure(broker, cluster.database(), ["c1", "c2"], load)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rows", type=int, default=60_000)
    options.add_argument("--boxes", type=int, default=200)
    options.add_argument("--postgres", action="store_true")
    chosen = options.parse_args()
    where = "postgres" if chosen.postgres else "sqlite"
    figures = bench(where, Load(chosen.rows, chosen.boxes))
    cpu = " and ".join(f"{one:.1f}" for one in figures.cpu_s)
    print(
        f"{where}: {figures.rows_per_s:,.0f} rows/s ({figures.rows} rows of {_BYTES} bytes in "
        f"{figures.seconds:.1f} s), collectors {cpu} s of CPU, "
        f"{figures.rss_bytes / 2**20:.0f} MiB; load before {figures.load_before:.1f}"
    )


if __name__ == "__main__":
    main()
