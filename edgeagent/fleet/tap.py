"""How does paho share its socket with us, who read the messages and leave it the rest?

paho asks a socket for a byte, for another byte, and for the rest, and sends each answer of four
bytes by itself; with thousands of messages a second that is where the time would go. Between it and
its socket stands this one: `fill` reads what is there, hands messages out and keeps the other
packets for paho; what paho writes leaves with `flush`.
"""

from __future__ import annotations

import ssl
from contextlib import suppress
from typing import Any

from edgeagent.fleet.packets import Published, found

_AT_ONCE_BYTES = 65_536
_GOODBYE_S = 1.0
_NOT_NOW = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Tap:
    """A socket that does not block, as paho uses one; `version` of MQTT is 5 or 4."""

    def __init__(self, sock: Any, version: int) -> None:
        self._sock, self._version = sock, version
        self._rest = b""
        self._others = b""
        self._end: OSError | bytes | None = None
        """What paho reads once it has read the others: an error, or b"" for the end."""
        self._unsent = bytearray()

    # ------------------------------------------------------------ what we do with it

    def fill(self) -> list[Published]:
        """Read what is there; return the messages in it."""
        try:
            data = self._sock.recv(_AT_ONCE_BYTES)
        except _NOT_NOW:
            return []
        except OSError as error:
            self._end = error
            return []
        if not data:
            self._end = b""
        messages, others, self._rest = found(self._rest + data, self._version)
        self._others += others
        return messages

    @property
    def for_paho(self) -> bool:
        """Whether there is something that paho has to read."""
        return bool(self._others) or self._end is not None

    def pending(self) -> int:
        """Return how many bytes wait inside of TLS, where no poll sees them."""
        return int(self._sock.pending()) if hasattr(self._sock, "pending") else 0

    @property
    def unsent(self) -> int:
        """How many bytes wait for the network."""
        return len(self._unsent)

    def flush(self) -> None:
        """Send as much as the network takes. Raises OSError when the connection is broken."""
        with suppress(*_NOT_NOW):
            while self._unsent:
                del self._unsent[: self._sock.send(self._unsent)]

    # ------------------------------------------------------------ what paho does with it

    def recv(self, size: int) -> bytes:
        """Return up to `size` bytes of other packets; raises as a socket does."""
        if self._others:
            taken, self._others = self._others[:size], self._others[size:]
            return taken
        if self._end is None:
            raise BlockingIOError
        if isinstance(self._end, OSError):
            raise self._end
        return self._end

    def send(self, data: bytes | bytearray) -> int:
        """Take everything."""
        self._unsent += data
        return len(data)

    def fileno(self) -> int:
        """Return what can be waited for; -1 once it is closed."""
        return int(self._sock.fileno())

    def setblocking(self, flag: bool) -> None:  # noqa: FBT001  # because sockets have it so
        """As of a socket."""
        self._sock.setblocking(flag)

    def close(self) -> None:
        """Close it; what still waits, such as a goodbye, is sent if it can be."""
        with suppress(OSError, ValueError, AttributeError):
            if self._unsent:
                self._sock.settimeout(_GOODBYE_S)
                self._sock.sendall(self._unsent)
        self._sock.close()
