"""How does one command of an operator speak to the broker while it lasts?

No thread: whoever waits for something to happen does the connection's work meanwhile, so that
Ctrl-C interrupts the waiting and nothing else. The session ends with the connection; after a lost
one a fresh one subscribes again and says again what nobody has confirmed, which does no harm: a box
knows a request by its id, and an answer is retained.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeAlias

from edgeagent.errors import EdgeAgentError
from edgeagent.fleet.client import Arrived, Connection, Letter, Manner, NotHeldError
from edgeagent.publish.broker import Broker, checked

_STEP_S = 0.2
"""Longest wait for the socket at once."""
_UNCONFIRMED_AT_ONCE = 50
_FIRST_WAIT_S, _WAIT_AT_MOST_S = 0.2, 10.0


@dataclass(frozen=True)
class Taken:
    """The broker's answer to what was said: below 0x80 it has it, 0x10 that nobody listens."""

    token: str
    code: int


@dataclass(frozen=True)
class Lost:
    """The connection broke; it is tried again."""

    text: str


@dataclass(frozen=True)
class Back:
    """Connected again, after so long."""

    away_s: float


Event: TypeAlias = Arrived | Taken | Lost | Back


class Line:
    """A connection that is held until `close`; `name` is how it is seen at the broker."""

    def __init__(self, broker: Broker, name: str) -> None:
        suffix = secrets.token_hex(4)  # because two operators may ask at the same time
        self._broker = checked(replace(broker, client_id=f"{name}-{suffix}"))
        self._filters: list[str] = []
        self._unsent: list[tuple[str, Letter]] = []
        self._unconfirmed: dict[str, Letter] = {}
        self._tokens: dict[int, str] = {}
        self._events: list[Event] = []
        self._connection: Connection | None = None
        self._lost_at = self._try_at = 0.0
        self._attempts = 0

    # ------------------------------------------------------------ what a command does with it

    def open(self) -> None:
        """Connect. Raises NotHeldError, and ConfigError for files that cannot be used."""
        self._connect()

    def listen(self, filters: Iterable[str]) -> None:
        """Subscribe, now and after every loss. Raises NotHeldError if the broker says no."""
        new = [one for one in filters if one not in self._filters]
        self._filters.extend(new)
        if self._connection is None:
            return
        try:
            self._connection.subscribe(new)
        except NotHeldError as error:
            if error.cause == "refused":
                raise
            self._lose(str(error))

    def say(self, token: str, letter: Letter) -> None:
        """Send it as soon as possible; the broker's answer comes as `Taken` with this token."""
        self._unsent.append((token, letter))
        self._hand_over()

    def wait(self, timeout_s: float) -> list[Event]:
        """Return what has happened; wait for the first of it up to `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while True:
            if self._connection is None:
                self._again(deadline)
            else:
                self._step(self._connection, deadline)
            found, self._events = self._events, []
            if found or time.monotonic() >= deadline:
                return found

    def close(self) -> None:
        """Say goodbye."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # ------------------------------------------------------------ the connection

    def _connect(self) -> None:
        made = Connection(self._broker, Manner(), self._hear)
        try:
            made.open()
            made.subscribe(self._filters)
        except BaseException:
            made.discard()
            raise
        self._connection = made

    def _hear(self, one: Arrived) -> None:
        self._events.append(one)

    def _hand_over(self) -> None:
        while (
            self._connection is not None
            and self._unsent
            and len(self._unconfirmed) < _UNCONFIRMED_AT_ONCE
        ):
            token, letter = self._unsent.pop(0)
            self._unconfirmed[token] = letter
            self._tokens[self._connection.publish(letter)] = token

    def _step(self, connection: Connection, deadline: float) -> None:
        """Do the connection's work for a moment; a loss becomes an event."""
        try:
            connection.step(max(0.0, min(_STEP_S, deadline - time.monotonic())))
        except NotHeldError as error:
            self._lose(str(error))
        for mid, code in connection.answers():
            token = self._tokens.pop(mid, None)
            if token is not None:
                self._unconfirmed.pop(token, None)
                self._events.append(Taken(token, code))
        self._hand_over()

    # ------------------------------------------------------------ lost and found

    def _lose(self, text: str) -> None:
        if self._connection is not None:
            self._connection.discard()
            self._connection = None
        self._lost_at = time.monotonic()
        self._attempts = 0
        self._try_at = self._lost_at + _FIRST_WAIT_S
        self._events.append(Lost(text))

    def _again(self, deadline: float) -> None:
        now = time.monotonic()
        if self._try_at > now:
            time.sleep(max(0.0, min(self._try_at, deadline, now + _STEP_S) - now))
            return
        self._attempts += 1
        self._try_at = now + min(_WAIT_AT_MOST_S, _FIRST_WAIT_S * 2**self._attempts)
        # What is refused may be allowed again, and a file may be back: whoever waits gives up.
        with suppress(EdgeAgentError):
            self._connect()
        if self._connection is not None:
            self._tokens = {
                self._connection.publish(letter): token
                for token, letter in self._unconfirmed.items()
            }
            self._hand_over()
            self._events.append(Back(time.monotonic() - self._lost_at))
