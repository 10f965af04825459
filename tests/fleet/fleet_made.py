"""A plant's fleet, made of one real comparison: scaled by class of box, with seeded differences.

Everything goes the way of the real: a result document, its entries as a box delivers them, the
bytes on the wire, the collector's judgement, the store.
"""

from __future__ import annotations

import copy
import json
import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from edgeagent.core.delivery import ClockState, Entry, Row, Stamp
from edgeagent.core.outgoing import Finished, points, result
from edgeagent.fleet.batch import Recent
from edgeagent.fleet.intake import Incoming, judge
from edgeagent.fleet.places import layout
from edgeagent.fleet.store import Store
from edgeagent.publish.messages import encoded, envelope
from edgeagent.publish.topics import Identity

_EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "llamacpp-vllm-cpu" / "result.json"
NOW_MS = 1_796_040_000_000
_DAY_MS = 86_400_000
_LARGEST_BYTES = 131_072
_LAYOUT = layout("edgeagent/v1")

HOSTILE = (
    "</title></style><script>window.struck = 1</script>",
    "\"><img src=x onerror='window.struck=2'>",
    "[bold red]rich[/bold red] {{ 7 * 7 }} {% raw %}",
    "n" * 300,
    "صندوق الحافة \u202e gnp.exe \u2066",
    "&lt;b&gt; ]]> <!-- --> \x07 \x1b]0;owned\x07 \x1b[2J",
    '=HYPERLINK("http://x")',
    "../../../../etc/passwd",
)

Trouble = Literal[
    "none", "slow", "drifting", "hungry", "lost", "off", "silent", "certificate", "clock",
    "backlog", "evicting", "failed", "never",
]  # fmt: skip


@dataclass(frozen=True)
class ClassMade:
    """What a class of box can do, in multiples of the real one: (one at once, many at once)."""

    name: str
    llamacpp: tuple[float, float]
    vllm: tuple[float, float]
    slot: float
    host: Mapping[str, object]


CLASSES = (
    ClassMade(
        "uma-nvgpu", (2.9, 2.3), (1.75, 2.6), 1.12,
        {"board": "NVIDIA Jetson Orin NX", "cpu": "ARMv8", "cores": 8,
         "memory_total_bytes": 16_441_921_536, "machine": "aarch64", "power_mode": "25W"},
    ),
    ClassMade(
        "dgpu", (6.4, 7.5), (6.9, 9.2), 1.04,
        {"board": None, "cpu": "Intel(R) Core(TM) i7-13700TE", "cores": 16,
         "memory_total_bytes": 33_285_996_544, "machine": "x86_64"},
    ),
    ClassMade("cpu", (1.0, 1.0), (1.0, 1.0), 1.0, {}),
)  # fmt: skip
_SITES = ("plant7-hall-a", "plant7-hall-b", "plant9-paint")

_TROUBLES: Mapping[int, Trouble] = {
    2: "slow", 6: "lost", 9: "certificate", 11: "drifting", 14: "clock", 17: "hungry", 19: "off",
    21: "backlog", 23: "silent", 25: "evicting", 27: "never", 28: "failed",
}  # fmt: skip


@dataclass(frozen=True)
class BoxMade:
    """A box to be made."""

    number: int
    node: str
    site: str
    kind: ClassMade
    trouble: Trouble
    runs: int


def boxes(count: int, runs: int = 6, troubled: bool = True) -> list[BoxMade]:  # noqa: FBT001, FBT002  # because a test says it by name
    """So many boxes; the same ones for the same number."""
    return [
        BoxMade(
            n,
            f"edge-{n + 1:04}",
            _SITES[n % len(_SITES)],
            CLASSES[0 if n % 30 < 14 else 1 if n % 30 < 20 else 2],
            _TROUBLES.get(n % 30, "none") if troubled else "none",
            runs,
        )
        for n in range(count)
    ]


def stored(store: Store, made: Iterable[BoxMade], hostile: bool = False) -> None:  # noqa: FBT001, FBT002  # because a test says it by name
    """Let boxes send everything, and store it as a collector does."""
    recent = Recent()
    for box in made:
        verdicts = [judge(one, _LAYOUT.place(one.topic)) for one in messages(box, hostile=hostile)]
        batch = recent.batch(verdicts, NOW_MS)
        store.take(batch)
        recent.written(batch)


def messages(box: BoxMade, *, hostile: bool = False) -> Iterator[Incoming]:
    """Everything that a box has sent."""
    seed = random.Random(f"fleet {box.number}")
    identity = Identity(box.site, box.node)
    prefix = f"edgeagent/v1/{box.site}/{box.node}"
    heard = NOW_MS - (
        3 * 3_600_000 if box.trouble in {"silent", "lost"} else seed.randrange(1000, 240_000)
    )
    spoil = _spoiler(hostile)
    yield Incoming(f"{prefix}/meta/node", encoded(spoil(_meta(box))), True, heard)
    for number, entry in enumerate(_entries(box, seed, spoil), start=1):
        row = Row(entry, f"e{box.number:07}", number, 0, "new", 0)
        yield Incoming(f"{prefix}/{entry.topic}", envelope(row, identity, "replay"), False, heard)
    yield Incoming(f"{prefix}/status", encoded(spoil(_status(box, heard, seed))), True, heard)


def _spoiler(hostile: bool) -> Any:  # noqa: FBT001  # because it is only handed on
    if not hostile:
        return lambda value: value
    numbers = iter(range(10**9))

    def worse(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {inner: worse(one, inner) for inner, one in value.items()}
        if isinstance(value, list):
            return [worse(one, key) for one in value]
        if isinstance(value, str) and key not in _KEPT:
            return f"{HOSTILE[next(numbers) % len(HOSTILE)]}{value}"
        return value

    return worse


_KEPT = {
    "schema", "site", "node", "state", "session", "clk", "run", "run_id", "started_at", "boot",
    "status",
}  # fmt: skip


def _meta(box: BoxMade) -> dict[str, Any]:
    return {
        "schema": "edgeagent.meta.node/1",
        "site": box.site,
        "node": box.node,
        "version": "1.2.0",
        "topic_prefix": f"edgeagent/v1/{box.site}/{box.node}",
        "host": {"class": box.kind.name, **box.kind.host},
        "engines": [{"id": "llamacpp", "kind": "llamacpp"}, {"id": "vllm", "kind": "vllm"}],
        "schemas": [],
    }


def _status(box: BoxMade, heard: int, seed: random.Random) -> dict[str, Any]:
    trouble = box.trouble
    waiting = {"backlog": 41_312, "evicting": 88_204}.get(trouble, seed.choice([0, 0, 0, 2, 5]))
    offline = {"lost": "lwt", "off": "shutdown"}.get(trouble)
    return {
        "schema": "edgeagent.status/1",
        "site": box.site,
        "node": box.node,
        "state": "offline" if offline else "online",
        **({"reason": offline} if offline else {}),
        "session": f"s{box.number}",
        "session_n": 7,
        "ts": heard - (190_000 if trouble == "clock" else 40),
        "boot": f"boot{box.number}",
        "clk": "unsync" if trouble == "clock" else "sync",
        "version": "1.1.3" if box.number % 9 == 4 else "1.2.0",
        "health": "ok",
        "troubles": ["the policy file cannot be read: permission denied"]
        if trouble == "failed"
        else [],
        "delivery": "receipt",
        "spool": {
            "rows": waiting,
            "bytes": waiting * 900,
            "oldest_age_s": 97_200.0 if waiting > 1000 else None,
            "parked": 3 if trouble == "backlog" else 0,
            "evicted": 1_204 if trouble == "evicting" else 0,
        },
        "cert_not_after": NOW_MS + (5 if trouble == "certificate" else 210 + box.number) * _DAY_MS,
    }


# ----------------------------------------------------------------------------------- results


def _entries(box: BoxMade, seed: random.Random, spoil: Any) -> Iterator[Entry]:
    if box.trouble == "never":
        return
    own = {engine: seed.gauss(1.0, 0.022) for engine in ("llamacpp", "vllm")}
    slot = seed.gauss(1.0, 0.012) * (1.34 if box.trouble == "hungry" else 1.0)
    if box.trouble == "slow":
        own = {engine: factor * 0.71 for engine, factor in own.items()}
    for past in reversed(range(box.runs)):
        at = NOW_MS - past * 7 * _DAY_MS - seed.randrange(3_600_000, _DAY_MS)
        now = {engine: factor * seed.gauss(1.0, 0.012) for engine, factor in own.items()}
        if box.trouble == "drifting" and past == 0:
            now = {engine: factor * 0.8 for engine, factor in now.items()}
        document = spoil(_document(box, (now, slot), at, past == 0, seed))
        clk: ClockState = "unsync" if box.trouble == "clock" and past == 0 else "sync"
        stamp = Stamp(at, f"boot{box.number}-{past}", 10_000_000, clk)
        yield from points(document, stamp)
        if past == 0 and box.trouble == "evicting":
            yield _gap(stamp)
        path = f"/var/lib/edgeagent/runs/{document['run_id']}/result.json"
        yield result(Finished(document, "0" * 64, path), stamp, _LARGEST_BYTES)


def _gap(stamp: Stamp) -> Entry:
    value = {"stream": "M", "from": 1, "to": 1204, "n": 1204, "reason": "evicted"}
    return Entry("R", "e/gap", "edgeagent.gap/1", stamp, value)


_REAL: dict[str, Any] = json.loads(_EXAMPLE.read_bytes())
_SMALL = {
    key: value
    for key, value in _REAL.items()
    if key not in {"cells", "canary", "files", "workload"}
} | {"cells": []}
_NEEDED = frozenset(
    {"output_tokens_per_s", "total_tokens_per_s", "ttft_s.p50", "ttft_s.p95", "tpot_s.p50"}
)


def _document(
    box: BoxMade,
    factors: tuple[Mapping[str, float], float],
    at_ms: int,
    newest: bool,  # noqa: FBT001  # because older ones are kept small
    seed: random.Random,
) -> dict[str, Any]:
    speed, slot = factors
    kept = _SMALL if newest else {k: v for k, v in _SMALL.items() if k not in {"answers", "knee"}}
    document = {**kept}
    document["run_id"] = f"nightly-{at_ms // _DAY_MS}"
    document["status"] = "failed" if box.trouble == "failed" and newest else "complete"
    document["host"] = {
        **_REAL["host"],
        **box.kind.host,
        "hostname": box.node,
        "class": box.kind.name,
    }
    document["levels"] = [_level(box.kind, level, speed, seed) for level in _REAL["levels"]]
    document["memory"] = [
        {**cost, "measured_bytes_per_slot": cost["measured_bytes_per_slot"] * box.kind.slot * slot}
        for cost in _REAL["memory"]
    ]
    document["engines"] = [
        {**{k: v for k, v in engine.items() if k != "launches"},
         "launches": [{"role": "load", "slots": 32}]}
        for engine in _REAL["engines"]
    ]  # fmt: skip
    document["comparison"] = _comparison(box.kind, seed) if newest else []
    document["findings"] = _findings(box, seed) if newest else []
    return document


def _level(
    kind: ClassMade, level: Mapping[str, Any], speed: Mapping[str, float], seed: random.Random
) -> dict[str, Any]:
    few, many = getattr(kind, level["engine"])
    share = math.log2(level["concurrency"]) / 5
    faster = few ** (1 - share) * many**share * speed[level["engine"]] * seed.gauss(1.0, 0.006)
    metrics = {}
    for name in _NEEDED:
        value = level["metrics"][name]
        by = faster if name.endswith("per_s") else 1 / faster
        metrics[name] = {"mean": value["mean"] * by, "ci95": [end * by for end in value["ci95"]]}
    return {**level, "metrics": metrics}


def _comparison(kind: ClassMade, seed: random.Random) -> list[dict[str, Any]]:
    found = copy.deepcopy(_REAL["comparison"])
    if kind.name == "uma-nvgpu":
        low = seed.uniform(1.9, 2.6)
        found[0].update(
            outcome="crosses", low=low, high=low * seed.uniform(1.3, 1.9),
            a_better_up_to=1, b_better_from=8,
        )  # fmt: skip
    elif kind.name == "dgpu" or seed.random() < 0.5:
        found[0].update(outcome="b_always")
    return list(found)


def _findings(box: BoxMade, seed: random.Random) -> list[dict[str, Any]]:
    found = [one for one in _REAL["findings"] if seed.random() < 0.35]
    if box.trouble == "slow":
        found.append(
            {"code": "throttled", "severity": "suspect", "cells": [],
             "text": "the box slowed itself down while it was measured: thermal, 94 °C"}
        )  # fmt: skip
    return found


def one_healthy() -> Sequence[BoxMade]:
    """A fleet of one, which has no peers."""
    return boxes(1, runs=1, troubled=False)
