"""What does the scripted server write for one request, and when?

`wanted` reads a request; `beats` turns it into bytes with their moments, a value that can be looked
at without a socket. The shapes are llama-server's three routes. What a request may go through is
named by its field `x_fault` (several words, separated by commas); `x_after`, `x_stall_s` and
`x_tokens_per_event` say the rest.

Words that change the stream and leave it whole: `role_first` (the role event long before the first
token), `reasoning_first` (the first `x_after` tokens are reasoning), `tool_call` (the rest are tool
calls), `split_utf8` (each event in two writes, cut inside a character), `crlf`, `pings`,
`usage_in_finish`, `stop` (ends by itself after `x_after` tokens), `bare_end` (`[DONE]` without its
blank line), `stall` (silent for `x_stall_s` after `x_after` tokens).

Words that break it after `x_after` tokens: `in_band_error`, `no_end`, `short`, `reset`, `cut` (the
connection ends without the body's end), `garbage_event`, `die` (the process ends); after all
tokens: `never_end`. Instead of a stream: `http_500`, `http_401`, `html`, `garbage` (not HTTP).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from edgeagent.engines.scripted_slots import tokenize

Route = Literal["completions", "chat", "native"]
Then = Literal["go_on", "reset", "cut", "hang", "die"]

MODEL = "scripted"
FINGERPRINT = "b0-scripted"


@dataclass(frozen=True)
class Tempo:
    """When tokens come, in seconds from the moment a slot takes the request."""

    ttft_s: float = 0.1
    itl_s: float = 0.02
    tokens_per_event: int = 1
    prefill_scaled: bool = False
    """Whether cached prompt tokens shorten the time to the first token."""


@dataclass(frozen=True)
class Wanted:
    """A request for tokens, understood."""

    route: Route
    prompt: tuple[int, ...]
    max_tokens: int
    stream: bool = False
    include_usage: bool = False
    timings_per_token: bool = False
    return_tokens: bool = False
    use_cache: bool = True
    slot: int | None = None
    tag: object = None
    words: frozenset[str] = frozenset()
    after: int = 3
    stall_s: float = 0.8
    tokens_per_event: int | None = None


@dataclass(frozen=True)
class Beat:
    """Bytes of the event stream, due so long after the slot took the request."""

    due_s: float
    data: bytes
    tokens: int = 0
    then: Then = "go_on"


@dataclass
class Served:
    """What a slot did for a request; grows while its stream is written."""

    cached: int
    draft: bool = False
    ids: list[int] = field(default_factory=list)


class BadRequestError(ValueError):
    """The request cannot be understood; the text goes to the client with status 400."""


def wanted(route: Route, body: Mapping[str, object]) -> Wanted:
    """The request in `body`. Raises BadRequestError."""
    options = body.get("stream_options")
    limit = next((body[name] for name in _LIMITS if body.get(name) is not None), 128)
    slot = body.get("id_slot")
    fault = body.get("x_fault")
    per_event = body.get("x_tokens_per_event")
    return Wanted(
        route=route,
        prompt=_prompt(body.get("messages") if route == "chat" else body.get("prompt")),
        max_tokens=_whole("max_tokens", limit),
        stream=body.get("stream") is True,
        include_usage=isinstance(options, dict) and options.get("include_usage") is True,
        timings_per_token=body.get("timings_per_token") is True,
        return_tokens=body.get("return_tokens") is True,
        use_cache=body.get("cache_prompt") is not False,
        slot=slot if isinstance(slot, int) else None,
        tag=body.get("x_tag"),
        words=frozenset(fault.split(",")) if isinstance(fault, str) else frozenset(),
        after=_whole("x_after", body.get("x_after", 3)),
        stall_s=float(_number("x_stall_s", body.get("x_stall_s", 0.8))),
        tokens_per_event=None if per_event is None else max(1, _whole("x", per_event)),
    )


_LIMITS = ("n_predict", "max_completion_tokens", "max_tokens")


def _number(name: str, value: object) -> int | float:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value
    raise BadRequestError(f"{name} is not a number")


def _whole(name: str, value: object) -> int:
    return int(_number(name, value))


def _prompt(value: object) -> tuple[int, ...]:
    if isinstance(value, str):
        return tuple(tokenize(value))
    if not isinstance(value, list):
        raise BadRequestError("prompt is missing: a text, token ids or messages are wanted")
    if all(isinstance(entry, int) and not isinstance(entry, bool) for entry in value):
        return tuple(value)
    text = "".join(
        f"<{entry.get('role')}>{entry.get('content')}\n" if isinstance(entry, dict) else str(entry)
        for entry in value
    )
    return tuple(tokenize(text + "<assistant>"))


# ------------------------------------------------------------------------------------- the stream


def beats(ask: Wanted, served: Served, tempo: Tempo) -> Iterator[Beat]:
    """The event stream of `ask`, beat after beat; `served.ids` grows with it."""
    stream = _plain(ask, served, tempo)
    if "crlf" in ask.words:
        stream = (replace(beat, data=beat.data.replace(b"\n", b"\r\n")) for beat in stream)
    if "split_utf8" in ask.words:
        stream = _split(stream)
    return stream


def _split(stream: Iterator[Beat]) -> Iterator[Beat]:
    """Cut every token event behind the first byte of its first character that has several."""
    for beat in stream:
        cut = next((at for at, byte in enumerate(beat.data) if byte >= 0x80), None)  # noqa: PLR2004  # because ASCII ends there
        if cut is None or not beat.tokens:
            yield beat
            continue
        yield Beat(beat.due_s, beat.data[: cut + 1])
        # Late enough to be a read of its own, early enough to be before the next token.
        yield replace(beat, due_s=beat.due_s + 0.002, data=beat.data[cut + 1 :])


def _plain(ask: Wanted, served: Served, tempo: Tempo) -> Iterator[Beat]:
    shape = _Shape(ask, served)
    fresh = 1 - served.cached / len(ask.prompt) if tempo.prefill_scaled and ask.prompt else 1.0
    due_s = tempo.ttft_s * fresh
    if "role_first" in ask.words or ask.route == "chat":
        # llama-server writes the role together with the first token; others long before it.
        yield Beat(due_s / 4 if "role_first" in ask.words else due_s, shape.role())
    breaking = ask.words & _BREAKS.keys()
    ending: Literal["stop", "limit"] = "stop" if "stop" in ask.words else "limit"
    total = ask.max_tokens
    if breaking or ask.words & {"short", "stop"}:
        total = min(ask.after, total)
    per_event = ask.tokens_per_event or tempo.tokens_per_event
    for first in range(0, total, per_event):
        count = min(per_event, total - first)
        if "stall" in ask.words and first <= ask.after < first + count:
            due_s += ask.stall_s
        data = shape.tokens(count)
        yield Beat(due_s, b": ping\n\n" + data if "pings" in ask.words else data, count)
        due_s += tempo.itl_s * count
    last_s = max(0.0, due_s - tempo.itl_s * per_event)
    if breaking:
        data, then = _BREAKS[next(iter(breaking))]
        yield Beat(last_s, data, then=then)
    elif "never_end" in ask.words:
        yield Beat(last_s, b"", then="hang")
    else:
        yield Beat(last_s, shape.end(ending))


_IN_BAND = (
    b'data: {"error":{"code":500,"message":"Context size has been exceeded.",'
    b'"type":"server_error"}}\n\n'
)
_BREAKS: Mapping[str, tuple[bytes, Then]] = {
    "in_band_error": (_IN_BAND, "go_on"),
    "no_end": (b"", "go_on"),
    "reset": (b"", "reset"),
    "cut": (b"", "cut"),
    "garbage_event": (b"data: {not json\n\n", "go_on"),
    "die": (b"", "die"),
}


class _Shape:
    """Events in the form of one route."""

    def __init__(self, ask: Wanted, served: Served) -> None:
        self._ask = ask
        self._served = served

    def role(self) -> bytes:
        """The event that opens a chat and carries no token."""
        if self._ask.route != "chat":
            return _event(self._choice({"text": ""}, None))
        return _event(self._choice({"delta": {"role": "assistant", "content": None}}, None))

    def tokens(self, count: int) -> bytes:
        """One event with the next `count` tokens."""
        first = len(self._served.ids)
        ids = [1000 + (first + offset) % 500 for offset in range(count)]
        self._served.ids.extend(ids)
        letter = "ü" if "split_utf8" in self._ask.words else "w"
        text = "".join(f" {letter}{(first + offset) % 500}" for offset in range(count))
        if self._ask.route == "native":
            return _event(self._native(text, ids))
        event = self._choice(self._text(text, first), None)
        if self._ask.timings_per_token:
            event["timings"] = self._timings()
        if self._ask.return_tokens:
            event["tokens"] = ids
        return _event(event)

    def _text(self, text: str, first: int) -> dict[str, object]:
        if self._ask.route == "completions":
            return {"text": text}
        if "reasoning_first" in self._ask.words and first < self._ask.after:
            return {"delta": {"reasoning_content": text}}
        if "tool_call" in self._ask.words:
            call = {"index": 0, "function": {"arguments": text}}
            return {"delta": {"tool_calls": [call]}}
        return {"delta": {"content": text}}

    def _choice(self, content: Mapping[str, object], reason: str | None) -> dict[str, object]:
        chat = self._ask.route == "chat"
        return {
            "choices": [{"index": 0, **content, "finish_reason": reason}],
            "created": 0,
            "id": "chatcmpl-scripted",
            "model": MODEL,
            "system_fingerprint": FINGERPRINT,
            "object": "chat.completion.chunk" if chat else "text_completion",
        }

    def _native(self, text: str, ids: Sequence[int]) -> dict[str, object]:
        event: dict[str, object] = {
            "index": 0,
            "content": text,
            "tokens": list(ids),
            "stop": False,
            "id_slot": -1,
            "tokens_predicted": len(self._served.ids),
            "tokens_evaluated": len(self._ask.prompt),
        }
        if self._ask.timings_per_token:
            event["timings"] = self._timings()
        return event

    def end(self, kind: Literal["stop", "limit"]) -> bytes:
        """Everything after the last token."""
        ask = self._ask
        if ask.route == "native":
            stop_type = "eos" if kind == "stop" else "limit"
            stops = {"stop": True, "stop_type": stop_type, "truncated": False}
            return _event({**self._native("", []), **stops, "timings": self._timings()})
        content: dict[str, object] = {"text": ""} if ask.route == "completions" else {"delta": {}}
        finish = self._choice(content, "length" if kind == "limit" else "stop")
        closing = {"usage": self.usage(), "timings": self._timings()}
        end = b"data: [DONE]\n" if "bare_end" in ask.words else b"data: [DONE]\n\n"
        if "usage_in_finish" in ask.words or ask.route == "completions":
            return _event({**finish, **closing}) + end
        if not ask.include_usage:
            return _event({**finish, "timings": self._timings()}) + end
        return _event(finish) + _event({**finish, "choices": [], **closing}) + end

    def _timings(self) -> dict[str, object]:
        served = self._served
        predicted = len(served.ids)
        timings: dict[str, object] = {
            "cache_n": served.cached,
            "prompt_n": len(self._ask.prompt) - served.cached,
            "prompt_ms": 1.0,
            "predicted_n": predicted,
            "predicted_ms": 1.0,
        }
        if served.draft:
            timings |= {"draft_n": predicted, "draft_n_accepted": predicted // 2}
        return timings

    def usage(self) -> dict[str, object]:
        """The final counts."""
        prompt, output = len(self._ask.prompt), len(self._served.ids)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": output,
            "total_tokens": prompt + output,
            "prompt_tokens_details": {"cached_tokens": self._served.cached},
        }

    def whole(self) -> dict[str, object]:
        """The answer to a request that did not ask for a stream."""
        ids = self._served.ids
        text = "".join(f" w{index % 500}" for index in range(len(ids)))
        if self._ask.route == "native":
            return {**self._native(text, ids), "stop": True, "stop_type": "limit"}
        chat = self._ask.route == "chat"
        content = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
        return {**self._choice(content, "length"), "usage": self.usage()}


def whole_answer(ask: Wanted, served: Served) -> dict[str, object]:
    """The answer without a stream, made at once."""
    shape = _Shape(ask, served)
    shape.tokens(ask.max_tokens)
    return shape.whole()


def _event(value: Mapping[str, object]) -> bytes:
    return (
        b"data: " + json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"
    )
