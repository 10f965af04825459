"""The topics of one box through birth, a requested sweep, the death of its broker, and recovery.

    PYTHONPATH=tests/app:tests/publish:tests/scenarios:tests/service \
        python tests/long/record_topics.py docs/topics-recording.txt

A real daemon with the scripted engine, a real mosquitto without persistence, a collector that sends
receipts. Payloads are shortened.
"""

from __future__ import annotations

import json
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from broker_places import Seen, Variant, mosquitto, observer, until
from daemon_places import PREFIX, Plant, service, write_config
from scenario_places import collecting

_WIDTH = 130
_MOST_VALUES = 3
_MOST_ALIKE = 2
_TELLING = ("state", "session_n", "reason", "op", "code", "progress", "profile", "override", "wm",
            "health", "delivery", "spool", "accepts", "version", "run", "concurrency",
            "troubles")  # fmt: skip
_HEAD = """\
What one box says on the plant's broker, recorded from a real daemon (scripted engine) and a real
mosquitto that keeps nothing. Times are seconds since the start; topics stand below
{prefix}; [r] is a message published with retain, [0] one of QoS 0, all
others have QoS 1. Payloads are shortened: "row" is EPOCH-STREAM-NUMBER, "..." stands for the rest.

Made by tests/long/record_topics.py.
"""


@dataclass
class Recorder:
    """Writes down what was seen, and when."""

    begun_s: float = field(default_factory=time.monotonic)
    lines: list[tuple[float, str, str]] = field(default_factory=list)

    def chapter(self, title: str) -> None:
        self.lines.append((time.monotonic() - self.begun_s, "", title))

    def take(self, seen: Seen) -> None:
        below = seen.topic.removeprefix(f"{PREFIX}/")
        at_s = time.monotonic() - self.begun_s
        mark = "[r]" if _is_retained(below) else "[0]" if seen.qos == 0 else "   "
        self.lines.append((at_s, f"{mark} {_short_topic(below)}", short(seen.payload)))

    def text(self) -> Iterator[str]:
        """The lines; of what repeats itself only the first."""
        for kind, group in groupby(self.lines, key=lambda line: _kind(line[1])):
            lines = list(group)
            if not kind:
                yield from (f"\n{at_s:7.2f}  === {title} ===" for at_s, _, title in lines)
                continue
            shown = lines if len(lines) <= _MOST_ALIKE else lines[:1]
            yield from (_cut(f"{at_s:7.2f}  {topic:<28} {said}") for at_s, topic, said in shown)
            if len(lines) > len(shown):
                yield f"{'':7}  ... {len(lines) - 1} more like it"


def _cut(line: str) -> str:
    return line if len(line) <= _WIDTH else f"{line[: _WIDTH - 5]} ...}}"


def _is_retained(below: str) -> bool:
    return below.split("/", maxsplit=1)[0] in {"status", "meta", "ack", "rx"}


def _short_topic(below: str) -> str:
    """Without the long ids of commands and runs."""
    return "/".join(f"{level[:8]}..." if len(level) > 20 else level for level in below.split("/"))


def _kind(topic: str) -> str:
    """What is folded when it repeats itself: each topic, and live readings with receipts."""
    name = topic[4:]
    return "often" if name in {"m/mem", "m/gpu", "rx"} else name


def short(payload: bytes) -> str:
    """A payload as a person wants to see it first."""
    if not payload:
        return "(empty: cleared)"
    document = json.loads(payload)
    shown = {name: document[name] for name in _TELLING if document.get(name) not in (None, [], {})}
    if document.get("replay"):
        shown["replay"] = "yes"
    if isinstance(shown.get("spool"), dict):
        shown["spool"] = {name: shown["spool"][name] for name in ("rows", "oldest_age_s")}
    if "seq" in document:
        shown["row"] = f"{document['epoch']}-{document['stream']}-{document['seq']}"
    values = document.get("v", {})
    few = list(values.items())[:_MOST_VALUES]
    shown |= {name: "{...}" if isinstance(value, dict) else value for name, value in few}
    words = ", ".join(f"{name}: {_word(value)}" for name, value in shown.items())
    return f"{{{words}, ...}}"


def _word(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {_word(inner)}" for name, inner in value.items()) + "}"
    return str(value) if not isinstance(value, list) else json.dumps(value)


def record(folder: Path) -> str:
    """Play it, and return the text."""
    recorder = Recorder()
    keeps_nothing = Variant(head=("persistence false",))
    with mosquitto(folder / "broker", keeps_nothing) as broker, service(folder) as box:
        write_config(folder, broker.port, ("live_interval_s = 1", "live_interval_s = 2"))
        with (
            observer(broker.port, (f"{PREFIX}/#",), on_seen=recorder.take) as sees,
            collecting(broker.port, folder / "plant.db"),
        ):
            plant = Plant(box, broker.port, sees)
            recorder.chapter("the daemon starts: birth")
            box.start()
            plant.online()
            until(lambda: plant.documents("m/mem_1m"), "a minute of telemetry")
            recorder.chapter("the plant asks for a sweep")
            asked = plant.ask("sweep", profile="quick", override={"concurrency": [1, 2]})
            plant.answered("sweep", asked, "succeeded")
            box.wait(lambda: plant.documents("r/run/#"), "the result is here")
            rows = len(plant.documents("m/mem_1m"))
            recorder.chapter("the broker is killed; nobody hears the box for a while")
            broker.end(signal.SIGKILL)
            box.wait(lambda: box.status()["link"]["rows"] >= 2, "rows wait in the spool")
            recorder.chapter("the broker is back, without any memory")
            broker.start()
            box.wait(lambda: len(plant.documents("m/mem_1m")) >= rows + 2, "the rows come")
            box.wait(lambda: box.status()["link"]["rows"] == 0, "and are receipted")
            recorder.chapter("the daemon is stopped (SIGTERM)")
            box.stop()
            until(lambda: plant.states()[-1] == "offline", "it says goodbye")
    return _HEAD.format(prefix=PREFIX) + "\n".join(recorder.text()) + "\n"


def main() -> None:
    """Record, and write the file that is named."""
    with tempfile.TemporaryDirectory(prefix="record-") as folder:
        text = record(Path(folder))
    Path(sys.argv[1]).write_text(text)


if __name__ == "__main__":
    main()
