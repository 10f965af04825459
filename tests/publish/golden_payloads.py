"""Which payloads of every message are kept for good?

Run as a program it writes those that are missing; it never changes one that is there, because a
collector somewhere still reads it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from edgeagent.core.delivery import Entry, Row, Stamp, Stream
from edgeagent.publish import status
from edgeagent.publish.messages import LiveFrom, encoded, envelope, live_envelope
from edgeagent.publish.status import About, Backlog, LinkState, Moment
from edgeagent.publish.topics import Identity

GOLDEN = Path(__file__).parent / "golden" / "v1"

STAMP = Stamp(1_796_006_611_123, "77ca4c85", 8_123_456, "sync")
IDENTITY = Identity("plant7", "edge-0001")
DIMS = {
    "engine": "llamacpp",
    "engine_ver": "b6500",
    "model": "qwen2.5-7b-instruct",
    "quant": "Q4_K_M",
    "ctx": 4096,
    "slots": 8,
    "run": "20261130T1130Z-1a2b",
    "point": 4,
}
COMMAND_ID = "0b2f4c1e-6d0a-4c55-9a3e-0f6d5a1b2c3d"


def row(stream: Stream, topic: str, value: Mapping[str, object], **dims: object) -> bytes:
    name = topic.split("/")[1]
    entry = Entry(stream, topic, f"edgeagent.{name}/1", STAMP, value, dims)
    return envelope(Row(entry, "9f3c2a1b", 1042, 0, "new", 300), IDENTITY, "live")


def live(name: str, value: Mapping[str, object]) -> bytes:
    where = LiveFrom(IDENTITY, "9f3c2a1b", 1_796_006_600_001)
    return live_envelope(f"edgeagent.{name}/1", STAMP, value, where)


def command(name: str, **more: object) -> bytes:
    head = {
        "schema": f"edgeagent.cmd.{name}/1",
        "id": COMMAND_ID,
        "issued_at": 1_796_006_000_000,
        "expires_at": 1_796_009_600_000,
        "issuer": "plant-operator",
    }
    return encoded({**head, **more})


def payloads() -> dict[str, bytes]:
    """One payload of each message, as this version makes it."""
    online = LinkState(delivery="receipt", backlog=Backlog(12, 18_000, 1_796_006_600_123, 0, 0))
    moment = Moment(IDENTITY, "5e2b", 17, STAMP)
    about = About("1.0.0", 1_830_000_000_000, "ab" * 32)
    minute = {
        "samples": 60,
        "span_s": 60.0,
        "ram_used_bytes_min": 5_000_000_000,
        "ram_used_bytes_mean": 5_100_000_000.5,
        "ram_used_bytes_max": 5_200_000_000,
        "ram_used_bytes_last": 5_123_456_789,
    }
    return {
        "status": status.document("online", moment, online, about),
        "meta.node": encoded(
            {
                "schema": "edgeagent.meta.node/1",
                "site": "plant7",
                "node": "edge-0001",
                "version": "1.0.0",
                "topic_prefix": "edgeagent/v1/plant7/edge-0001",
                "host": {"class": "uma-nvidia", "memory_total_bytes": 66_000_000_000},
                "engines": [{"kind": "llamacpp", "version": "b6500"}],
                "schemas": ["edgeagent.mem/1", "edgeagent.run/1"],
            }
        ),
        "meta.cmd": encoded(
            {
                "schema": "edgeagent.meta.cmd/1",
                "op": "sweep",
                "accepts": "yes",
                "request_schema": "edgeagent.cmd.sweep/1",
                "limits": {"profiles": ["nightly-llama"], "max_runs_per_day": 2},
            }
        ),
        "mem": live("mem", {"ram_used_bytes": 5_123_456_789, "swap_used_bytes": 0}),
        "gpu": live("gpu", {"gpu_util_fraction": 0.97, "gpu_power_w": 28.5, "gpu_clock_hz": None}),
        "mem_1m": row("M", "m/mem_1m", minute),
        "gpu_1m": row("M", "m/gpu_1m", {"samples": 0, "span_s": 60.0}),
        "point": row(
            "R",
            "r/point/20261130T1130Z-1a2b",
            {
                "concurrency": 4,
                "requests_ok": 20,
                "ttft_p95_s": 0.412,
                "output_tokens_per_s": 88.5,
                "memory_bytes_per_slot": 268_435_456,
                "prefix_cache": "on",
            },
            **DIMS,
        ),
        "run": row(
            "R",
            "r/run/20261130T1130Z-1a2b",
            {
                "run_id": "20261130T1130Z-1a2b",
                "status": "complete",
                "extent": "summary",
                "result": {"schema": "edgeagent.result/1", "levels": []},
                "result_sha256": "cd" * 32,
                "result_file": "/var/lib/edgeagent/runs/20261130T1130Z-1a2b/result.json",
            },
            **DIMS,
        ),
        "gap": row("R", "e/gap", {"stream": "M", "from": 3, "to": 9, "n": 7, "reason": "evicted"}),
        "audit": row(
            "R",
            "e/audit",
            {"op": "sweep", "id": COMMAND_ID, "state": "rejected", "code": "policy_disabled"},
        ),
        "oom": row("R", "e/oom", {"victim": "llama-server", "pid": 4711, "source": "guard"}),
        "throttle": row("R", "e/throttle", {"reason": "thermal", "temperature_c": 97.0}),
        "clock_step": row(
            "R",
            "e/clock_step",
            {"boot": "77ca4c85", "mono_ms": 8_000, "old_ts": 12_000, "new_ts": 1_796_006_611_000},
        ),
        "cert": row(
            "R",
            "e/cert",
            {"file": "/etc/edgeagent/pki/node.crt", "not_after": 1_830_000_000_000, "days_left": 7},
        ),
        "spool": row("R", "e/spool", {"what": "corrupt", "detail": "quick_check: malformed"}),
        "link": row("R", "e/link", {"what": "denied", "detail": "…/m/mem_1m", "topic": "m/mem_1m"}),
        "ack": encoded(
            {
                "schema": "edgeagent.ack/1",
                "op": "sweep",
                "id": COMMAND_ID,
                "state": "running",
                "ts": 1_796_006_611_123,
                "progress": 0.25,
            }
        ),
        "cmd.sweep": command("sweep", profile="nightly-llama", override={"concurrency": [1, 2, 4]}),
        "cmd.cancel": command("cancel", target=COMMAND_ID),
        "cmd.resync": command("resync", stream="R", **{"from": 3, "to": 9}),
        "cmd.ping": command("ping"),
        "cmd.meta": command("meta", sig="hmac-sha256:" + "0" * 64),
        "rx": encoded({"epoch": "9f3c2a1b", "wm": {"R": 1042, "M": 88}, "u": 200, "ts": 1}),
    }


def main() -> None:
    """Write the payloads that are not kept yet."""
    GOLDEN.mkdir(parents=True, exist_ok=True)
    for name, payload in payloads().items():
        path = GOLDEN / f"{name}.json"
        if not path.exists():
            path.write_text(
                json.dumps(json.loads(payload), indent=1, ensure_ascii=False) + "\n", "utf-8"
            )


if __name__ == "__main__":
    main()
