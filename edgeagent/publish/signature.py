"""Did somebody who holds the key write this request?

HMAC-SHA256 over the canonical JSON of the request without its `sig` (core/canonical). The key is
shared with plant IT and lies in a file that nobody else may read; it is never shown, and neither is
the signature that a wrong request should have had.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from edgeagent.core.canonical import canonical
from edgeagent.errors import ConfigError
from edgeagent.publish.tls import read_secret

PREFIX = "hmac-sha256:"
SHORTEST_KEY = 32


@dataclass(frozen=True)
class Key:
    """A shared secret; its text is not part of its repr."""

    secret: bytes = field(repr=False)


def signed(document: Mapping[str, object], key: Key) -> str:
    """The `sig` for a request. Raises ValueError for numbers that JSON does not have."""
    body = canonical({name: value for name, value in document.items() if name != "sig"})
    return PREFIX + hmac.new(key.secret, body, hashlib.sha256).hexdigest()


def verify(document: Mapping[str, object], key: Key) -> Literal["good", "missing", "wrong"]:
    """Whether `sig` is the one for this request and key; never raises."""
    given = document.get("sig")
    if given is None:
        return "missing"
    if not isinstance(given, str):
        return "wrong"
    try:
        wanted = signed(document, key)
    except (ValueError, RecursionError):
        return "wrong"
    # compare_digest takes the same time for every wrong text, and wants bytes for such as "é"
    same = hmac.compare_digest(given.encode("utf-8", "surrogatepass"), wanted.encode())
    return "good" if same else "wrong"


def read_key(name: str) -> Key:
    """The key in a file or systemd credential: its text without white space around it.

    Nobody but its owner may read it, and it is at least 32 bytes long. Raises ConfigError.
    """
    secret = read_secret(name, "mqtt.commands.hmac_key_file").reveal().strip()
    if len(secret) < SHORTEST_KEY:
        raise ConfigError(
            f"mqtt.commands.hmac_key_file {name} holds {len(secret)} bytes, and a key has at least "
            f"{SHORTEST_KEY}: make one with openssl rand -hex 32"
        )
    return Key(secret)
