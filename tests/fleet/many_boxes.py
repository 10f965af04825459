"""Where do many boxes come from that answer as a script says? One client speaks for all."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from broker_places import Observer, Seen

from edgeagent.publish.messages import Ack, MetaNode, Status

Script = Callable[[str, dict[str, Any]], Sequence[dict[str, Any]]]
"""What a box (its id) answers to a request: what is to stand in its acks, one after the other."""
DONE = ({"state": "accepted"}, {"state": "running", "run": "r-1"}, {"state": "succeeded"})


def succeeds(_node: str, _request: dict[str, Any]) -> Sequence[dict[str, Any]]:
    return DONE


@dataclass(frozen=True)
class Kind:
    """What a box says of itself."""

    site: str = "plant7"
    box_class: str = "uma-nvgpu"
    engine: str = "llamacpp"
    state: str = "online"


@dataclass
class Boxes:
    """Boxes at a broker; their answers come from a thread, in the order of the requests."""

    port: int
    kinds: dict[str, Kind]
    script: Script = succeeds
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    """Node and request, in the order in which they came."""
    acked: list[tuple[str, str]] = field(default_factory=list)
    """Node and state, in the order in which they were said."""
    idle: Callable[[], None] | None = None
    """What is done when no request has come for a moment."""
    _inbox: SimpleQueue[Seen | None] = field(default_factory=SimpleQueue)

    def run(self) -> None:
        self.says = Observer(self.port, ("edgeagent/v1/+/+/cmd/#",), on_seen=self._inbox.put)
        for node, kind in self.kinds.items():
            self.tell(node, kind)
        self._thread = threading.Thread(target=self._live_on)
        self._thread.start()

    def tell(self, node: str, kind: Kind) -> None:
        """Publish what a box leaves retained."""
        prefix = f"edgeagent/v1/{kind.site}/{node}"
        status = {
            "schema": "edgeagent.status/1", "site": kind.site, "node": node, "state": kind.state,
            "session": "s", "session_n": 1, "health": "ok", "version": "1.0",
        }  # fmt: skip
        meta = {
            "schema": "edgeagent.meta.node/1", "site": kind.site, "node": node, "version": "1.0",
            "topic_prefix": prefix, "host": {"class": kind.box_class},
            "engines": [{"name": "a", "kind": kind.engine}], "schemas": [],
        }  # fmt: skip
        Status.model_validate(status)
        MetaNode.model_validate(meta)
        self.says.publish(f"{prefix}/status", json.dumps(status).encode(), retain=True)
        self.says.publish(f"{prefix}/meta/node", json.dumps(meta).encode(), retain=True)

    def ack(self, topic: str, said: dict[str, Any]) -> None:
        """Answer the request at a cmd topic."""
        *prefix, _cmd, operation, request = topic.split("/")
        document = {
            "schema": "edgeagent.ack/1", "op": operation, "id": request, "ts": 1, **said
        }  # fmt: skip
        Ack.model_validate(document)
        self.acked.append((prefix[-1], str(said["state"])))
        where = "/".join([*prefix, "ack", operation, request])
        self.says.publish(where, json.dumps(document).encode(), retain=True)

    def nodes_asked(self) -> list[str]:
        return [node for node, _ in list(self.asked)]

    def _next(self) -> Seen | None:
        while True:
            try:
                return self._inbox.get(timeout=0.2)
            except Empty:
                if self.idle is not None:
                    self.idle()

    def _live_on(self) -> None:
        while (seen := self._next()) is not None:
            node = seen.topic.split("/")[-4]
            request = json.loads(seen.payload)
            assert not seen.retain, "a request is never retained"
            self.asked.append((node, request))
            for said in self.script(node, request):
                self.ack(seen.topic, said)

    def end(self) -> None:
        self._inbox.put(None)
        self._thread.join(60)
        self.says.close()


@contextmanager
def boxes(port: int, kinds: dict[str, Kind], script: Script = succeeds) -> Iterator[Boxes]:
    made = Boxes(port, kinds, script)
    made.run()
    try:
        yield made
    finally:
        made.end()


def some(count: int, kind: Kind | None = None, start: int = 1) -> dict[str, Kind]:
    """Boxes edge-0001, edge-0002, …"""
    return {f"edge-{number:04}": kind or Kind() for number in range(start, start + count)}


# ---------------------------------------------------------------- the command line


@dataclass(frozen=True)
class Station:
    """The operator's machine: a configuration that names the broker."""

    folder: Path
    port: int
    lines: str = ""

    @property
    def config(self) -> Path:
        path = self.folder / "station.toml"
        self.folder.mkdir(parents=True, exist_ok=True)
        path.write_text(
            f'[mqtt]\nenabled = true\nhost = "127.0.0.1"\nport = {self.port}\n{self.lines}'
        )
        return path

    def words(self, command: str, *words: object) -> list[str]:
        return [
            sys.executable, "-m", "edgeagent", "fleet", command, *map(str, words),
            "--config", str(self.config),
        ]  # fmt: skip

    def does(self, command: str, *words: object) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return subprocess.run(
            self.words(command, *words),
            capture_output=True, text=True, timeout=240, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def asks(self, *words: object) -> tuple[int, dict[str, Any]]:
        """`fleet request … --json`: exit status and what it printed."""
        done = self.does("request", *words, "--json")
        assert "Traceback" not in done.stderr, done.stderr
        assert done.stdout, done.stderr
        return done.returncode, json.loads(done.stdout)


def stages(document: dict[str, Any]) -> dict[str, str]:
    return {box["node"]: box["stage"] for box in document["boxes"]}
