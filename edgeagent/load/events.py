"""How many tokens does this event carry, and what else does it say?

One reader for every server: llama-server's three routes, vLLM, and anything OpenAI-like. An event
is not a token: the engine's own count decides. In order of trust: llama-server's
`timings.predicted_n`, `usage.completion_tokens` where it comes with every event, token ids, and
last, when the engine counts nothing, one token per event that has text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from edgeagent.core.model import TokenSource

Channel = Literal["answer", "reasoning", "tool", "none"]

DONE = b"[DONE]"

_decode = json.JSONDecoder().decode  # `json.loads` looks for the encoding first, at every event


@dataclass(frozen=True)
class Seen:
    """What one event says. Counts are the event's own, not running totals."""

    tokens: int = 0
    channel: Channel = "none"
    done: bool = False
    """The stream's proper end: `[DONE]`, or the last event of llama-server's own route."""
    error: str | None = None
    malformed: str | None = None
    """Why the event could not be read at all."""


_NOTHING = Seen()
_DONE = Seen(done=True)


class StreamMeter:
    """Reads the events of one answer and keeps what they say about the whole of it."""

    def __init__(self) -> None:
        self.finish_reason: str | None = None
        self.prompt_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.output_tokens: int | None = None
        self.draft_tokens: int | None = None
        self.draft_accepted: int | None = None
        self.source: TokenSource | None = None
        self._total = 0

    def read(self, payload: bytes) -> Seen:
        """What the event says; never raises."""
        if payload.strip() == DONE:
            return _DONE
        try:
            event = _decode(payload.decode())
        except (ValueError, RecursionError):
            return Seen(malformed=f"an event is not JSON: {_excerpt(payload)}")
        if not isinstance(event, dict):
            return Seen(malformed=f"an event is not an object: {_excerpt(payload)}")
        if error := event.get("error"):
            return Seen(error=_error_text(error))
        self._speculation(event.get("metrics"))
        return self._own_route(event) if "choices" not in event else self._choices(event)

    # ----------------------------------------------------------------------- routes

    def _choices(self, event: Mapping[str, object]) -> Seen:
        """OpenAI's form: `choices[0]` with `delta` or `text`."""
        choices = event["choices"]
        choice = choices[0] if isinstance(choices, list) and choices else None
        self._usage(event.get("usage"), final=choice is None)
        running = self._running(event)
        if not isinstance(choice, dict):
            # The last event's timings may count tokens that had no event: held back by the
            # server's chat parser, or the end-of-text token itself.
            return _NOTHING if running is None else self._counted(running, None, "none")
        reason = choice.get("finish_reason")
        if isinstance(reason, str) and reason:
            self.finish_reason = reason
            self._usage(event.get("usage"), final=True)
            self._final_timings(event.get("timings"))
        channel = _channel(choice)
        if "prompt_progress" in event:
            return _NOTHING
        return self._counted(running, choice.get("token_ids"), channel)

    def _own_route(self, event: Mapping[str, object]) -> Seen:
        """The form of llama-server's `/completion`: `content`, and a last event with `stop`."""
        if "content" not in event or "prompt_progress" in event:
            self._usage(event.get("usage"), final=True)
            return _NOTHING
        last = event.get("stop") is True
        running = self._running(event)
        if running is None and (self.source == "usage" or (self.source is None and not last)):
            running = _count(event.get("tokens_predicted"))
        seen = self._counted(running, event.get("tokens"), "answer" if event["content"] else "none")
        if not last:
            return seen
        self._last_of_own_route(event)
        return Seen(seen.tokens, seen.channel, done=True)

    def _last_of_own_route(self, event: Mapping[str, object]) -> None:
        kind = event.get("stop_type")
        reasons = {"limit": "length", "eos": "stop", "word": "stop"}
        self.finish_reason = reasons.get(kind) if isinstance(kind, str) else None
        if self.finish_reason is None and event.get("stopped_limit") is True:
            self.finish_reason = "length"  # builds before stop_type
        self.output_tokens = _count(event.get("tokens_predicted")) or self.output_tokens
        self.prompt_tokens = _count(event.get("tokens_evaluated")) or self.prompt_tokens

    # ----------------------------------------------------------------------- counts

    def _running(self, event: Mapping[str, object]) -> int | None:
        """The engine's running total after this event, and what its timings say besides."""
        timings = event.get("timings")
        if isinstance(timings, dict):
            self._timings(timings)
            total = _count(timings.get("predicted_n"))
            if total is not None and self.source in (None, "timings"):
                # Timings that come only at the end do not say when their tokens came: then the
                # count that went before stays, and its difference to the final one shows.
                self.source = "timings"
                return total
        usage = event.get("usage")
        # Usage without choices closes the stream; with them it counts as it goes, or, when text
        # has been counted by events before, it only closes the stream as well.
        if isinstance(usage, dict) and event.get("choices") and self.source in (None, "usage"):
            return _count(usage.get("completion_tokens"))
        return None

    def _counted(self, running: int | None, token_ids: object, channel: Channel) -> Seen:
        if running is not None:
            new = max(0, running - self._total)
            if new:
                self.source = self.source or "usage"
            self._total = max(self._total, running)
            return Seen(new, channel if new else "none")
        if isinstance(token_ids, list) and self.source in (None, "token_ids"):
            if token_ids:
                self.source = "token_ids"
                self._total += len(token_ids)
            return Seen(len(token_ids), channel if token_ids else "none")
        if channel != "none" and self.source in (None, "chunks"):
            self.source = "chunks"
            self._total += 1
            return Seen(1, channel)
        return _NOTHING

    def _timings(self, timings: Mapping[str, object]) -> None:
        cached = _count(timings.get("cache_n"))
        fresh = _count(timings.get("prompt_n"))
        if cached is not None:
            self.cached_tokens = cached
            if fresh is not None:
                self.prompt_tokens = cached + fresh
        self.draft_tokens = _count(timings.get("draft_n")) or self.draft_tokens
        accepted = _count(timings.get("draft_n_accepted"))
        self.draft_accepted = self.draft_accepted if accepted is None else accepted

    def _speculation(self, metrics: object) -> None:
        """Take the drafts of the whole request, which come with vLLM's last event."""
        found = metrics.get("speculative_decoding") if isinstance(metrics, dict) else None
        if isinstance(found, dict):
            drafted = _count(found.get("num_draft_tokens"))
            accepted = _count(found.get("num_accepted_draft_tokens"))
            self.draft_tokens = self.draft_tokens if drafted is None else drafted
            self.draft_accepted = self.draft_accepted if accepted is None else accepted

    def _final_timings(self, timings: object) -> None:
        """Without `usage` llama-server's last timings are its final count."""
        if self.output_tokens is None and isinstance(timings, dict):
            self.output_tokens = _count(timings.get("predicted_n"))

    def _usage(self, usage: object, *, final: bool) -> None:
        if not isinstance(usage, dict):
            return
        prompt = _count(usage.get("prompt_tokens"))
        self.prompt_tokens = self.prompt_tokens if prompt is None else prompt
        details = usage.get("prompt_tokens_details")
        if isinstance(details, dict):
            cached = _count(details.get("cached_tokens"))
            self.cached_tokens = self.cached_tokens if cached is None else cached
        if final:
            output = _count(usage.get("completion_tokens"))
            self.output_tokens = self.output_tokens if output is None else output


def _channel(choice: Mapping[str, object]) -> Channel:
    """Where a choice's text goes; `none` when it has no text."""
    if choice.get("text"):
        return "answer"
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        return "none"
    if delta.get("content"):
        return "answer"
    if delta.get("reasoning_content") or delta.get("reasoning"):
        return "reasoning"
    return "tool" if delta.get("tool_calls") else "none"


def _count(value: object) -> int | None:
    """A count, or None; JSON's true is not one."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _error_text(error: object) -> str:
    message = error.get("message") if isinstance(error, dict) else error
    return one_line(message if isinstance(message, str) else json.dumps(error))


def _excerpt(payload: bytes) -> str:
    return one_line(payload[:80].decode("utf-8", "replace"))


def one_line(text: str, limit: int = 300) -> str:
    """Somebody else's text, fit for a record: one line, not too long, encodable."""
    text = " ".join(text.split()).encode("utf-8", "replace").decode()
    return text if len(text) <= limit else text[: limit - 1] + "…"
