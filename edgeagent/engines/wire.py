"""What do requests to all OpenAI-like servers have in common on the wire?"""

from __future__ import annotations

import json
from collections.abc import Mapping

from edgeagent.ports import Ask, HttpRequest


def generate(ask: Ask, fields: Mapping[str, object]) -> HttpRequest:
    """A request to generate: `fields`, and the prompt at the route that takes its form.

    Token ids and text go to /v1/completions, messages to the chat route.
    """
    if ask.prompt.messages is not None:
        return post("/v1/chat/completions", {**fields, "messages": ask.prompt.messages})
    prompt = ask.prompt.text if ask.prompt.token_ids is None else ask.prompt.token_ids
    return post("/v1/completions", {**fields, "prompt": prompt})


def post(path: str, body: Mapping[str, object]) -> HttpRequest:
    """`body` as compact JSON."""
    return HttpRequest(path, json.dumps(body, separators=(",", ":")).encode())
