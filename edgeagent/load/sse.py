"""Which events are in these bytes?

A sans-I/O parser for server-sent events as LLM servers send them: bytes in, payloads out. It knows
comments and pings, LF, CRLF and CR line ends, events cut anywhere (inside a UTF-8
character too, since it works on bytes), payloads of several lines, and a last event without its
blank line. (WHATWG HTML, "9.2.6 Interpreting an event stream".)
"""

from __future__ import annotations

MAX_EVENT_BYTES = 16 << 20
"""A server that sends this much without an event end is not sending events."""


class SseOverflowError(ValueError):
    """More bytes without an event end than any event has."""


class SseParser:
    """Feed it what was read; it returns the payloads that are complete."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, chunk: bytes) -> list[bytes]:
        """Payloads completed by `chunk`. Raises SseOverflowError."""
        # The usual read: one whole event, nothing left over from the last.
        if (
            not self._rest
            and not self._data
            and chunk.startswith(b"data: ")
            and chunk.endswith(b"\n\n")
            and chunk.find(b"\n") == len(chunk) - 2 > len(b"data: ")
            and b"\r" not in chunk
        ):
            return [chunk[6:-2]]
        return self._lines(self._rest + chunk)

    def close(self) -> list[bytes]:
        """The payload of a last event that ended without its blank line."""
        rest, self._rest = self._rest, b""
        payloads: list[bytes] = []
        if rest:
            self._line(rest.rstrip(b"\r"), payloads)
        self._line(b"", payloads)
        return payloads

    def _lines(self, text: bytes) -> list[bytes]:
        payloads: list[bytes] = []
        if b"\r" in text:
            # A trailing CR may be half of a CRLF: it waits for what follows.
            held = b"\r" if text.endswith(b"\r") else b""
            text = text[: len(text) - len(held)].replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        else:
            held = b""
        *lines, rest = text.split(b"\n")
        for line in lines:
            self._line(line, payloads)
        self._rest = rest + held
        if len(self._rest) + sum(map(len, self._data)) > MAX_EVENT_BYTES:
            raise SseOverflowError(f"no event end in {MAX_EVENT_BYTES} bytes")
        return payloads

    def _line(self, line: bytes, payloads: list[bytes]) -> None:
        if not line:
            if any(self._data):
                payloads.append(b"\n".join(self._data))
            self._data = []
            return
        if line.startswith(b"data:"):
            self._data.append(line[6:] if line.startswith(b"data: ") else line[5:])
        # Comments (":" first) and the fields event, id, retry carry nothing that we need.
