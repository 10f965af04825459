"""What does a request to vLLM look like on the wire?"""

from __future__ import annotations

import json
import uuid

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
    path = "/v1/completions"
    if ask.prompt.token_ids is not None:
        body["prompt"] = ask.prompt.token_ids
    elif ask.prompt.messages is not None:
        path = "/v1/chat/completions"
        body["messages"] = ask.prompt.messages
    else:
        body["prompt"] = ask.prompt.text
    return HttpRequest(path, json.dumps(body, separators=(",", ":")).encode())
