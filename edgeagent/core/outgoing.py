"""What of a finished run goes to the plant's broker?

One flat point a level for dashboards, and the result itself: whole where the broker's limit allows,
else without what is only needed to argue about single cells, together with the hash of the whole.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgeagent.core.delivery import Entry, Stamp

POINT_SCHEMA = "edgeagent.point/1"
RUN_SCHEMA = "edgeagent.run/1"

ENVELOPE_BYTES = 2048
"""Room that the envelope around a value may take."""

_DROPPED_FIRST = ("cells", "canary", "timelines", "distributions", "arrivals")
"""What goes when a result is too large; levels, memory, comparison and answers stay."""

_DROPPED_NEXT = (
    "files",
    "plan",
    "box",
    "effects",
    "knee",
    "engines",
    "findings",
    "interference",
    "workload",
)

_POINT_METRICS = {
    "ttft_s.p50": "ttft_p50_s",
    "ttft_s.p95": "ttft_p95_s",
    "tpot_s.p50": "tpot_p50_s",
    "tpot_s.p95": "tpot_p95_s",
    "itl_s.p50": "itl_p50_s",
    "itl_s.p99": "itl_p99_s",
    "e2e_s.p95": "e2e_p95_s",
    "output_tokens_per_s": "output_tokens_per_s",
    "total_tokens_per_s": "total_tokens_per_s",
    "request_throughput_per_s": "request_throughput_per_s",
    "goodput_per_s": "goodput_per_s",
    "cached_prompt_fraction": "cached_prompt_fraction",
    "energy.per_output_token_j": "energy_per_output_token_j",
}


@dataclass(frozen=True)
class Finished:
    """A run as it lies on disk."""

    document: Mapping[str, Any]
    sha256: str
    """Of result.json."""
    path: str
    """Of result.json, for whoever fetches the whole."""


def entries(run: Finished, stamp: Stamp, max_payload_bytes: int) -> list[Entry]:
    """Everything to deliver of a run: its points first, its result last.

    Whoever has the result has its points, so a collector may take it as the end of the run.
    """
    return [*points(run.document, stamp), result(run, stamp, max_payload_bytes)]


def points(document: Mapping[str, Any], stamp: Stamp) -> Iterator[Entry]:
    """One flat entry a level, with what a further slot of its engine costs."""
    name = topic_level(str(document["run_id"]))
    for number, level in enumerate(document["levels"]):
        value: dict[str, object] = {
            "concurrency": level["concurrency"],
            "prefix_cache": level["prefix_cache"],
            "speculation": level["speculation"],
            "replicates": level["replicates"],
            "suspect": level["suspect"],
            **_requests(document["cells"], level),
        }
        for ours, theirs in _POINT_METRICS.items():
            value[theirs] = (level["metrics"].get(ours) or {}).get("mean")
        value.update(_slot(document, level["engine"]))
        known = {key: inner for key, inner in value.items() if inner is not None}
        dims = _dims(document, level["engine"]) | {"point": number}
        yield Entry("R", f"r/point/{name}", POINT_SCHEMA, stamp, known, dims)


def _requests(cells: Sequence[Mapping[str, Any]], level: Mapping[str, Any]) -> dict[str, int]:
    """Requests of the repeats that count in a level."""
    same = ("engine", "concurrency", "prefix_cache", "speculation")
    own = [
        cell["requests"]
        for cell in cells
        if cell["status"] != "failed" and all(cell[name] == level[name] for name in same)
    ]
    return {
        "requests_ok": sum(counts["ok"] for counts in own),
        "requests_failed": sum(counts["failed"] for counts in own),
    }


def _slot(document: Mapping[str, Any], engine: str) -> dict[str, object]:
    cost = next((one for one in document["memory"] if one["engine"] == engine), None)
    if cost is None:
        return {}
    low, high = cost["ci95"] or (None, None)
    return {
        "memory_bytes_per_slot": cost["measured_bytes_per_slot"],
        "memory_low_bytes_per_slot": low,
        "memory_high_bytes_per_slot": high,
        "memory_predicted_bytes_per_slot": cost["predicted_bytes_per_slot"],
        "memory_domain": cost["domain"],
        "max_slots": cost["max_slots"],
    }


def _dims(document: Mapping[str, Any], engine: str) -> dict[str, object]:
    """What to group by: engine, its version, model, quantization, context, slots, run."""
    own: Mapping[str, Any] = next((e for e in document["engines"] if e["id"] == engine), {})
    sha256 = own.get("model_sha256")
    models = document["models"]
    model = next((m for m in models if sha256 and m.get("sha256") == sha256), None)
    model = model or (models[0] if len(models) == 1 else {})
    loads = [one for one in own.get("launches", ()) if one.get("role", "load") == "load"]
    found = {
        "engine": own.get("kind"),
        "engine_ver": own.get("version"),
        "model": model.get("id"),
        "quant": model.get("quantization"),
        "ctx": own.get("context_per_slot"),
        "slots": loads[0]["slots"] if loads else None,
        "run": document["run_id"],
    }
    return {name: value for name, value in found.items() if value is not None}


def result(run: Finished, stamp: Stamp, max_payload_bytes: int) -> Entry:
    """The result as one entry of at most this many bytes, envelope included."""
    document = run.document
    head: dict[str, object] = {
        "run_id": document["run_id"],
        "status": document["status"],
        "result_sha256": run.sha256,
        "result_file": run.path,
    }
    dims = {"run": document["run_id"]}
    room = max_payload_bytes - ENVELOPE_BYTES - _size(head)
    kept, extent = _fitting(document, room)
    value = {**head, "extent": extent, "result": kept}
    topic = f"r/run/{topic_level(str(document['run_id']))}"
    return Entry("R", topic, RUN_SCHEMA, stamp, value, dims)


def _fitting(document: Mapping[str, Any], room: int) -> tuple[dict[str, Any], str]:
    """As much of the document as fits, and how much that is."""
    kept = dict(document)
    if _size(kept) <= room:
        return kept, "whole"
    for names in (_DROPPED_FIRST, *((name,) for name in _DROPPED_NEXT)):
        for name in names:
            kept.pop(name, None)
        if _size(kept) <= room:
            return kept, "summary"
    # Not even the levels fit: who and when, and the hash by which the whole can be asked for.
    least = ("schema", "run_id", "status", "started_at", "finished_at")
    return {name: document.get(name) for name in least}, "summary"


def _size(value: Mapping[str, Any]) -> int:
    return len(
        json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")
    )


_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")
_LONGEST = 63


def topic_level(run_id: str) -> str:
    """A run's name as one level of a topic: letters, digits, dots, - and _, at most 63.

    A name that had to be changed ends in a piece of its hash, so that two never become one.
    """
    plain = _UNSAFE.sub("-", run_id).lstrip("._-")
    if plain == run_id and 0 < len(plain) <= _LONGEST:
        return plain
    tail = hashlib.sha256(run_id.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{plain[: _LONGEST - 9] or 'run'}-{tail}"
