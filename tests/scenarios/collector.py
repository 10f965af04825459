"""What has a plant received, and up to where does it miss nothing?

A reference collector for the scenarios: one MQTT 5 connection with a session that the broker keeps,
a message acknowledged only after its row is committed, and for each node a retained receipt
`P/rx` with the watermark of each stream: the number up to which every row is stored or declared
missing. Several collectors may share a database and a `$share` subscription.

    python collector.py PORT DATABASE [--share GROUP] [--delay SECONDS] [--u N]
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Literal, NamedTuple

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

Stream = Literal["R", "M"]
ROWS = ("r/#", "e/#", "m/#")
"""What carries rows, below the prefix of every node; `m/#` carries live readings as well."""
NODES = "edgeagent/v1/+/+"
_PREFIX_LEVELS = 4
_SAY_AGAIN_S = 5.0
"""A receipt that has not moved is said so often: the one before may have been lost."""
_SAY_AT_MOST_EVERY_S = 0.02
_MOST_IN_HAND = 20

SCHEMA = """
CREATE TABLE IF NOT EXISTS rows (
  node TEXT, epoch TEXT, stream TEXT, seq INTEGER,
  topic TEXT, boot TEXT, mono_ms INTEGER, ts_ms INTEGER, clk TEXT, replay INTEGER, v TEXT,
  PRIMARY KEY (node, epoch, stream, seq)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS gaps (
  node TEXT, epoch TEXT, stream TEXT, first INTEGER, last INTEGER,
  n INTEGER, reason TEXT, every INTEGER
);
CREATE TABLE IF NOT EXISTS marks (
  node TEXT, epoch TEXT, stream TEXT, wm INTEGER NOT NULL,
  PRIMARY KEY (node, epoch, stream)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS counts (name TEXT PRIMARY KEY, n INTEGER NOT NULL) WITHOUT ROWID;
"""


class Lane(NamedTuple):
    """One stream of one life of one node's spool: what is numbered without holes."""

    node: str
    epoch: str
    stream: Stream


@dataclass(frozen=True)
class Gap:
    """Numbers that will not come; with `every`, its multiples are not meant."""

    first: int
    last: int
    n: int | None
    reason: str
    every: int | None

    def covers(self, seq: int) -> bool:
        return self.first <= seq <= self.last and (self.every is None or seq % self.every != 0)


class Store:
    """The collector's database; used from one thread, shared between processes."""

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path, timeout=60.0, isolation_level=None)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = NORMAL")
        self._db.executescript(SCHEMA)

    def close(self) -> None:
        self._db.close()

    def take(self, documents: Sequence[tuple[str, Mapping[str, Any]]]) -> dict[Lane, int]:
        """Commit rows with their topics; return the watermarks of the lanes that they belong to."""
        self._db.execute("BEGIN IMMEDIATE")
        lanes = {self._insert(topic, document) for topic, document in documents}
        for _, document in documents:
            if document["schema"] == "edgeagent.gap/1":
                lanes.add(_lane(document)._replace(stream=document["v"]["stream"]))
        marks = {lane: self._advance(lane) for lane in lanes}
        self._db.execute("COMMIT")
        return marks

    def _insert(self, topic: str, row: Mapping[str, Any]) -> Lane:
        lane = _lane(row)
        values = (
            *lane, row["seq"], topic, row["boot"], row["mono_ms"], row["ts"], row["clk"],
            row["replay"], json.dumps(row["v"], sort_keys=True),
        )  # fmt: skip
        places = ", ".join("?" * len(values))
        if not self._db.execute(f"INSERT OR IGNORE INTO rows VALUES ({places})", values).rowcount:  # noqa: S608  # because only question marks go in
            self._count("duplicates")
            key = (*lane, row["seq"])
            (before,) = self._db.execute(
                "SELECT v FROM rows WHERE (node, epoch, stream, seq) = (?, ?, ?, ?)", key
            ).fetchone()
            if before != values[-1]:
                self._count("reused")
        elif row["schema"] == "edgeagent.gap/1":
            v = row["v"]
            self._db.execute(
                "INSERT INTO gaps VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (lane.node, lane.epoch, v["stream"], v["from"], v["to"], v["n"], v["reason"],
                 v.get("every")),
            )  # fmt: skip
        return lane

    def _count(self, name: str) -> None:
        self._db.execute(
            "INSERT INTO counts VALUES (?, 1) ON CONFLICT (name) DO UPDATE SET n = n + 1", (name,)
        )

    def _advance(self, lane: Lane) -> int:
        """Move a lane's watermark as far as nothing is missing; return it."""
        upto = self.mark(lane)
        where = "FROM rows WHERE (node, epoch, stream) = (?, ?, ?) AND seq > ? ORDER BY seq"
        came = (seq for (seq,) in self._db.execute(f"SELECT seq {where}", (*lane, upto)))
        upto = watermark(upto, came, self._gaps_above(lane, upto))
        self._db.execute("INSERT OR REPLACE INTO marks VALUES (?, ?, ?, ?)", (*lane, upto))
        return upto

    def _gaps_above(self, lane: Lane, seq: int) -> list[Gap]:
        rows = self._db.execute(
            "SELECT first, last, n, reason, every FROM gaps"
            " WHERE (node, epoch, stream) = (?, ?, ?) AND last > ? ORDER BY first",
            (*lane, seq),
        )
        return [Gap(*row) for row in rows]

    # --- what is asked ---

    def mark(self, lane: Lane) -> int:
        found = self._db.execute(
            "SELECT wm FROM marks WHERE (node, epoch, stream) = (?, ?, ?)", lane
        ).fetchone()
        return int(found[0]) if found else 0

    def marks(self) -> dict[Lane, int]:
        rows = self._db.execute("SELECT node, epoch, stream, wm FROM marks")
        return {Lane(node, epoch, stream): wm for node, epoch, stream, wm in rows}

    def lanes(self) -> set[Lane]:
        return {Lane(*row) for row in self._db.execute("SELECT node, epoch, stream FROM marks")}

    def numbers(self, lane: Lane) -> set[int]:
        rows = self._db.execute(
            "SELECT seq FROM rows WHERE (node, epoch, stream) = (?, ?, ?)", lane
        )
        return {seq for (seq,) in rows}

    def gaps(self, lane: Lane) -> list[Gap]:
        return self._gaps_above(lane, 0)

    def counted(self, name: Literal["duplicates", "reused"]) -> int:
        """Rows that came again with the same number: and as another row, which must never be."""
        found = self._db.execute("SELECT n FROM counts WHERE name = ?", (name,)).fetchone()
        return int(found[0]) if found else 0

    def how_many(self) -> int:
        return int(self._db.execute("SELECT count(*) FROM rows").fetchone()[0])

    def events(self, topic_end: str) -> list[dict[str, Any]]:
        """The values of the rows whose topic ends so, in the order of their numbers."""
        rows = self._db.execute(
            "SELECT v FROM rows WHERE topic LIKE ? ORDER BY epoch, seq", (f"%/{topic_end}",)
        )
        return [json.loads(v) for (v,) in rows]

    def times(self, lane: Lane) -> list[tuple[int, int]]:
        """(seq, ts_ms) of a lane, with the time put right where the box's clock was wrong.

        A row of the same boot whose clock was in order says how far the monotonic clock is off.
        """
        rows = self._db.execute(
            "SELECT seq, boot, mono_ms, ts_ms, clk FROM rows"
            " WHERE (node, epoch, stream) = (?, ?, ?) ORDER BY seq",
            lane,
        ).fetchall()
        known = {boot: ts_ms - mono_ms for _, boot, mono_ms, ts_ms, clk in rows if clk == "sync"}
        return [
            (seq, ts_ms if clk == "sync" else known.get(boot, ts_ms - mono_ms) + mono_ms)
            for seq, boot, mono_ms, ts_ms, clk in rows
        ]


def _lane(document: Mapping[str, Any]) -> Lane:
    return Lane(f"{document['site']}/{document['node']}", document["epoch"], document["stream"])


def watermark(upto: int, came: Iterable[int], gaps: Sequence[Gap]) -> int:
    """Return up to where nothing is missing, from `upto` on; `came` ascends."""
    later = iter(came)
    following = next(later, None)
    while True:
        number = upto + 1
        while following is not None and following < number:
            following = next(later, None)
        if following == number:
            upto = number
            continue
        over = [gap for gap in gaps if gap.covers(number)]
        if not over:
            return upto
        # a whole span at once where nothing of it is excepted
        whole = [gap.last for gap in over if gap.every is None]
        upto = max(whole, default=number)


@dataclass(frozen=True)
class Manner:
    """How a collector behaves: `delay_s` a message, `u` for the agents, a shared subscription."""

    client_id: str = "collector"
    delay_s: float = 0.0
    u: int | None = None
    share: str | None = None
    session: Literal["kept", "clean"] = "kept"


@dataclass
class _Said:
    """What was last said to a node."""

    epoch: str
    wm: dict[Stream, int] = field(default_factory=lambda: {"R": 0, "M": 0})
    at_s: float = 0.0
    state: Literal["said", "to say"] = "to say"


class Collector:
    """Runs in two threads from `start` to `stop`: the network's, and one that commits."""

    def __init__(self, port: int, database: Path, manner: Manner | None = None) -> None:
        self.manner = manner or Manner()
        self.live: list[tuple[str, int, float]] = []
        """Live readings: topic, the sender's monotonic ms, ours in seconds."""
        self._port, self._database = port, database
        self._arrived: SimpleQueue[tuple[int, paho.MQTTMessage]] = SimpleQueue()
        self._connection = 0
        self._subscribed = threading.Event()
        self._stopping = threading.Event()
        self._said: dict[str, _Said] = {}
        self._thread = threading.Thread(target=self._work, name="collector", daemon=True)
        self._client = paho.Client(
            CallbackAPIVersion.VERSION2,
            self.manner.client_id,
            protocol=MQTTProtocolVersion.MQTTv5,
            manual_ack=True,
        )
        self._client.reconnect_delay_set(1, 1)
        self._client.on_connect = self._on_connect
        self._client.on_subscribe = lambda *_: self._subscribed.set()
        self._client.on_message = self._on_message

    def start(self, patience_s: float = 60.0) -> None:
        """Connect and wait for the subscription; AssertionError when that takes too long."""
        kept: Any = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        clean = self.manner.session == "clean"
        kept.SessionExpiryInterval = 0 if clean else 3600
        # few in our hands: the others wait in the broker's queue, which is what overflows in plants
        kept.ReceiveMaximum = _MOST_IN_HAND
        self._client.connect_async(
            "127.0.0.1", self._port, clean_start=clean, properties=kept, keepalive=10
        )
        self._client.loop_start()
        self._thread.start()
        assert self._subscribed.wait(patience_s), "the collector found no broker"

    def stop(self) -> None:
        """Commit what came, and go; the broker keeps the session."""
        self._stopping.set()
        self._thread.join()
        self._client.disconnect()
        self._client.loop_stop()

    # --- the network's thread ---

    def _on_connect(self, *_: Any) -> None:
        self._connection += 1
        shared = f"$share/{self.manner.share}/" if self.manner.share else ""
        self._client.subscribe([(f"{shared}{NODES}/{rows}", 1) for rows in ROWS])
        for said in list(self._said.values()):
            said.state = "to say"  # because the broker may have forgotten

    def _on_message(self, _c: Any, _u: Any, message: paho.MQTTMessage) -> None:
        if message.qos == 0:
            document = json.loads(message.payload)
            self.live.append((message.topic, document["mono_ms"], time.monotonic()))
        else:
            self._arrived.put((self._connection, message))

    # --- the thread that commits ---

    def _work(self) -> None:
        with closing(Store(self._database)) as store:
            self._remember(store.marks())
            while not self._stopping.is_set():
                self._commit(store, self._gather())
                self._speak()

    def _remember(self, marks: Mapping[Lane, int]) -> None:
        for lane, wm in marks.items():
            said = self._of(lane)
            said.wm[lane.stream] = max(said.wm[lane.stream], wm)
            said.state = "to say"

    def _gather(self) -> list[tuple[int, paho.MQTTMessage]]:
        gathered = []
        try:
            gathered.append(self._arrived.get(timeout=0.05))
            while len(gathered) < _MOST_IN_HAND:
                gathered.append(self._arrived.get_nowait())
        except Empty:
            pass
        return gathered

    def _commit(self, store: Store, messages: Sequence[tuple[int, paho.MQTTMessage]]) -> None:
        if not messages:
            return
        documents = []
        for _, message in messages:
            if self.manner.delay_s:
                time.sleep(self.manner.delay_s)  # because slow consumers are what is tried
            documents.append((message.topic, json.loads(message.payload)))
        marks = store.take(documents)
        for connection, message in messages:
            if connection == self._connection:
                self._client.ack(message.mid, message.qos)
        self._remember(marks)

    def _of(self, lane: Lane) -> _Said:
        said = self._said.get(lane.node)
        if said is None or said.epoch != lane.epoch:
            said = self._said[lane.node] = _Said(lane.epoch)
        return said

    def _speak(self) -> None:
        now_s = time.monotonic()
        for node, said in list(self._said.items()):
            wait_s = _SAY_AT_MOST_EVERY_S if said.state == "to say" else _SAY_AGAIN_S
            if now_s - said.at_s < wait_s or not self._client.is_connected():
                continue
            said.at_s, said.state = now_s, "said"
            document: dict[str, object] = {
                "epoch": said.epoch,
                "wm": dict(said.wm),
                "ts": time.time_ns() // 1_000_000,
            }
            if self.manner.u is not None:
                document["u"] = self.manner.u
            self._client.publish(
                f"edgeagent/v1/{node}/rx", json.dumps(document), qos=1, retain=True
            )


def main() -> None:
    """Collect until ended."""
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("database", type=Path)
    parser.add_argument("--name", default="collector")
    parser.add_argument("--share")
    parser.add_argument("--delay", type=float, default=0.0)
    parser.add_argument("--u", type=int)
    chosen = parser.parse_args()
    session: Literal["kept", "clean"] = "clean" if chosen.share else "kept"
    manner = Manner(chosen.name, chosen.delay, chosen.u, chosen.share, session)
    collector = Collector(chosen.port, chosen.database, manner)
    collector.start()
    print("ready", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
