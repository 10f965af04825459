"""Where is the broker, and may it be spoken to that way?"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Literal

from edgeagent.errors import ConfigError
from edgeagent.publish import tls


@dataclass(frozen=True)
class Broker:
    """Where the broker is and how it is spoken to; `host` is a path for a unix socket."""

    host: str
    port: int = 8883
    client_id: str = ""
    transport: Literal["tcp", "websockets", "unix"] = "tcp"
    path: str = "/mqtt"
    protocol: Literal["auto", "5", "3.1.1"] = "auto"
    keepalive_s: int = 30
    connect_timeout_s: float = 10.0
    username: str | None = None
    password_file: str | None = None
    tls_files: tls.TlsFiles | None = None
    plaintext: Literal["allowed", "refused"] = "refused"
    commands: Literal["heard", "ignored"] = "ignored"
    session_expiry_s: int = 3600
    """0: a clean session, which the broker forgets with the connection."""
    will_delay_s: int = 30
    """Not more than `session_expiry_s`: brokers end the will with the session."""

    @property
    def place(self) -> str:
        """How an operator would name it."""
        return self.host if self.transport == "unix" else f"{self.host}:{self.port}"


def checked(broker: Broker) -> Broker:
    """Return the broker if what is said to it stays unread by others; ConfigError otherwise."""
    if not broker.host:
        raise ConfigError("mqtt.host is empty; name the broker, or set mqtt.enabled = false")
    open_ = broker.tls_files is None and broker.plaintext == "refused"
    if open_ and broker.transport != "unix" and not _is_loopback(broker.host):
        raise ConfigError(
            f"mqtt.host is {broker.host} and [mqtt.tls] is not set up, so that everybody on the "
            "way could read and command; set mqtt.tls.ca_file, or mqtt.allow_plaintext = true"
        )
    return broker


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
