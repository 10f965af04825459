"""What does a request to vLLM look like on the wire?"""

from __future__ import annotations

import uuid

from edgeagent.engines import wire
from edgeagent.ports import Ask, HttpRequest


def request(ask: Ask, model: str) -> HttpRequest:
    """The wire form for vLLM. `continuous_usage_stats` counts tokens on every event.

    `cache_salt` gives a request a prefix cache of its own: a cold one, whatever ran before.
    """
    body: dict[str, object] = {
        "model": model,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "max_tokens": ask.max_tokens,
        "temperature": 0.0,
        "seed": 1,
        "ignore_eos": ask.ignore_eos,
    }
    if not ask.use_cache:
        body["cache_salt"] = uuid.uuid4().hex
    return wire.generate(ask, body)
