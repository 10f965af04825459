"""How many requests has the plant's own engine in work or in its queue?

Asked before a sweep takes the box. By the engine's counters (`/metrics`), else by llama-server's
slots. An engine that does not answer is not known to be idle.
"""

from __future__ import annotations

import http.client
import json
from dataclasses import dataclass
from urllib.parse import urlsplit

from edgeagent.engines import prometheus

_LONGEST_BYTES = 4 << 20
_COUNTED = (
    ("vllm:num_requests_running", "vllm:num_requests_waiting"),
    ("llamacpp:requests_processing", "llamacpp:requests_deferred"),
)
_OK = 200


@dataclass(frozen=True)
class RequestsNow:
    """How many, or why that is not known."""

    count: int | None
    reason: str | None = None


def requests_now(url: str, patience_s: float) -> RequestsNow:
    """Ask the engine at `url`; never raises. An unreachable one has None and the reason."""
    try:
        text = _get(url, "/metrics", patience_s)
        counted = None if text is None else _of_metrics(text)
        if counted is None:
            slots = _get(url, "/slots", patience_s)
            counted = None if slots is None else _of_slots(slots)
    except (OSError, http.client.HTTPException, ValueError) as error:
        return RequestsNow(None, f"{url} does not answer ({error})")
    if counted is None:
        return RequestsNow(
            None, f"{url} tells neither by /metrics nor by /slots how many requests it serves"
        )
    return RequestsNow(counted)


def _of_metrics(text: str) -> int | None:
    page = prometheus.parse(text)
    for names in _COUNTED:
        values = [value for name in names if (value := page.total(name)) is not None]
        if values:
            return round(sum(values))
    return None


def _of_slots(text: str) -> int | None:
    slots = json.loads(text)
    if not isinstance(slots, list) or not all(isinstance(slot, dict) for slot in slots):
        return None
    return sum(bool(slot.get("is_processing")) for slot in slots)


def _get(url: str, path: str, patience_s: float) -> str | None:
    """Return a page, None when there is none; redirects and proxies are not followed."""
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=patience_s)
    try:
        connection.request("GET", parts.path.rstrip("/") + path)
        answer = connection.getresponse()
        body = answer.read(_LONGEST_BYTES)
    finally:
        connection.close()
    return body.decode("utf-8", "replace") if answer.status == _OK else None
