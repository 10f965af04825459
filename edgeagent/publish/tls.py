"""With which files is the connection protected, and what does a failure of TLS mean?

Certificates and keys are files, read afresh for each connection, so that files that were replaced
are used without a restart. A secret is named by its path, or as `credential:NAME` for one that
systemd hands over (LoadCredential=); a secret that others may read is refused. What OpenSSL says is
turned into one sentence that names the file and its date.
"""

from __future__ import annotations

import os
import re
import socket
import ssl
import stat
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Literal

from edgeagent.credentials import is_credential
from edgeagent.errors import ConfigError

CREDENTIAL = "credential:"
_LOOK_S = 3.0
_OTHERS_MAY_READ = stat.S_IRWXG | stat.S_IRWXO


@dataclass(frozen=True)
class TlsFiles:
    """The material of one connection; None where there is none."""

    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: str | None = None
    passphrase_file: str | None = None
    crl_file: Path | None = None
    min_version: Literal["1.2", "1.3"] = "1.2"
    ciphers: str = ""


@dataclass(frozen=True)
class Validity:
    """From when until when a certificate holds, in UTC."""

    not_before: datetime
    not_after: datetime


class Secret:
    """A secret's bytes, never shown: `reveal` is the only way to them."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def __repr__(self) -> str:
        return "Secret(…)"

    def reveal(self) -> bytes:
        """Return the secret."""
        return self._secret


# ---------------------------------------------------------------- secrets


def secret_path(name: str) -> Path:
    """Return where a secret lies; ConfigError if it is a credential and systemd gave none."""
    if not name.startswith(CREDENTIAL):
        return Path(name)
    folder = os.environ.get("CREDENTIALS_DIRECTORY")
    if not folder:
        raise ConfigError(
            f"{name} was asked for, but systemd handed no credentials over; "
            "put LoadCredential= into the unit, or write the file's path"
        )
    inner = name.removeprefix(CREDENTIAL)
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", inner):
        raise ConfigError(f'"{name}" is no name of a credential; use letters, digits, ., _ and -')
    return Path(folder) / inner


def checked_secret(name: str, what: str) -> Path:
    """Return a secret's path if only its owner may read it; ConfigError otherwise."""
    path = secret_path(name)
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise ConfigError(f"{what} {path} cannot be read: {_plain(error)}") from error
    if mode & _OTHERS_MAY_READ and not is_credential(path, os.environ):
        raise ConfigError(
            f"{what} {path} may be read by others (mode {stat.S_IMODE(mode):04o}); "
            f"run chmod 0400 {path}"
        )
    return path


def read_secret(name: str, what: str) -> Secret:
    """Return a secret's bytes without the line's end; ConfigError if it is missing or open."""
    path = checked_secret(name, what)
    try:
        return Secret(path.read_bytes().rstrip(b"\r\n"))
    except OSError as error:
        raise ConfigError(f"{what} {path} cannot be read: {_plain(error)}") from error


# ---------------------------------------------------------------- the context


def context(files: TlsFiles) -> ssl.SSLContext:
    """Return a fresh context from the files as they are now; ConfigError names the bad one.

    The broker's name is always checked: there is no setting for less.
    """
    made = _authorities(files)
    made.minimum_version = (
        ssl.TLSVersion.TLSv1_3 if files.min_version == "1.3" else ssl.TLSVersion.TLSv1_2
    )
    if files.ciphers:
        try:
            made.set_ciphers(files.ciphers)
        except ssl.SSLError as error:
            raise ConfigError(
                f'mqtt.tls.ciphers "{files.ciphers}" names no cipher that this box has'
            ) from error
    if files.crl_file is not None:
        _revocations(made, files.crl_file)
    if files.cert_file is not None:
        _own_chain(made, files)
    return made


def _authorities(files: TlsFiles) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(
            cafile=None if files.ca_file is None else str(files.ca_file)
        )
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"mqtt.tls.ca_file {files.ca_file} cannot be used: {_plain(error)}"
        ) from error


def _revocations(made: ssl.SSLContext, path: Path) -> None:
    try:
        made.load_verify_locations(cafile=str(path))
    except (OSError, ValueError) as error:
        raise ConfigError(f"mqtt.tls.crl_file {path} cannot be used: {_plain(error)}") from error
    made.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF


def _own_chain(made: ssl.SSLContext, files: TlsFiles) -> None:
    key = None
    if files.key_file is not None:
        key = str(checked_secret(files.key_file, "mqtt.tls.key_file"))
    # because OpenSSL would ask on the terminal for a passphrase that nobody gave
    passphrase = b""
    if files.passphrase_file is not None:
        passphrase = read_secret(files.passphrase_file, "mqtt.tls.key_passphrase_file").reveal()
    try:
        made.load_cert_chain(str(files.cert_file), key, lambda: passphrase)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"mqtt.tls.cert_file {files.cert_file} and key_file {key or 'in it'} cannot be used "
            f"together: {_plain(error)}"
        ) from error


# ---------------------------------------------------------------- dates, read from DER

_SEQUENCE, _INTEGER, _VERSION, _UTC_TIME, _GENERALIZED = 0x30, 0x02, 0xA0, 0x17, 0x18


def validity(path: Path) -> Validity | None:
    """Return when the first certificate in a PEM or DER file holds, None if it cannot be read."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    return validity_of(data)


def validity_of(data: bytes) -> Validity | None:
    """Return when a certificate, PEM or DER, holds, or None for anything else."""
    block = re.search(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", data, re.DOTALL)
    try:
        der = ssl.PEM_cert_to_DER_cert(block.group().decode("ascii")) if block else data
        return _validity_in(der)
    except (ValueError, IndexError):
        return None


def _validity_in(der: bytes) -> Validity:
    """Walk Certificate → TBSCertificate → version?, serial, algorithm, issuer, validity."""
    _, certificate, _ = _element(der)
    _, rest, _ = _element(certificate)
    tag, _, after = _element(rest)
    if tag == _VERSION:
        rest = after
    for expected in (_INTEGER, _SEQUENCE, _SEQUENCE):
        tag, _, rest = _element(rest)
        if tag != expected:
            raise ValueError("not a certificate")
    _, times, _ = _element(rest)
    tag, first, after = _element(times)
    last_tag, last, _ = _element(after)
    return Validity(_time(tag, first), _time(last_tag, last))


def _element(der: bytes) -> tuple[int, bytes, bytes]:
    """Return tag, content and what follows."""
    tag, length, start = der[0], der[1], 2
    if length & 0x80:
        size = length & 0x7F
        length = int.from_bytes(der[2 : 2 + size], "big")
        start += size
    end = start + length
    if end > len(der):
        raise ValueError("cut off")
    return tag, der[start:end], der[end:]


def _time(tag: int, content: bytes) -> datetime:
    text = content.decode("ascii")
    if tag == _UTC_TIME:
        # X.509: years 50 to 99 are 1950 to 1999 (RFC 5280, 4.1.2.5.1)
        text = ("19" if int(text[:2]) >= 50 else "20") + text  # noqa: PLR2004  # because RFC 5280
    elif tag != _GENERALIZED:
        raise ValueError("not a time")
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=timezone.utc)


# ---------------------------------------------------------------- what went wrong


@dataclass(frozen=True)
class Peer:
    """Whom we tried to reach, with which files."""

    host: str
    port: int
    files: TlsFiles

    @property
    def place(self) -> str:
        """host:port."""
        return f"{self.host}:{self.port}"


_VERIFY_EXPIRED, _VERIFY_NOT_YET, _VERIFY_REVOKED = 10, 9, 23
_VERIFY_UNKNOWN_CA = {2, 18, 19, 20, 21}
_VERIFY_NAME = {62, 64}
_VERIFY_CRL = {3, 11, 12}


def explain(error: OSError, peer: Peer, now: datetime) -> str:
    """Return one sentence about a handshake that failed: what, which file, which date."""
    if isinstance(error, ConnectionResetError):
        return explain_text(HUNG_UP, peer, now)
    if isinstance(error, ssl.SSLCertVerificationError):
        return _about_the_broker(error, peer, now) + _clock_hint(peer.files, now)
    return explain_text(str(error), peer, now)


def explain_text(text: str, peer: Peer, now: datetime) -> str:
    """Return one sentence about OpenSSL's words, such as a rejection after the handshake."""
    words = text.upper().replace(" ", "_")
    for mark, sentence in _ALERTS:
        if mark in words:
            own = _described(peer.files.cert_file, now)
            return sentence.format(place=peer.place, own=own) + _clock_hint(peer.files, now)
    return f"TLS with {peer.place} failed: {text}"


HUNG_UP = "EOF_OCCURRED_IN_VIOLATION"
"""What Python says when the other side closed in the middle of TLS; see `alert`."""

_ALERTS: tuple[tuple[str, str], ...] = (
    (
        "ALERT_CERTIFICATE_EXPIRED",
        "the broker {place} refused our certificate as expired: {own}; replace the file",
    ),
    (
        "ALERT_CERTIFICATE_REVOKED",
        "the broker {place} refused our certificate as revoked: {own}; ask for a new one",
    ),
    (
        "CERTIFICATE_REQUIRED",
        "the broker {place} wants a certificate of ours; "
        "set mqtt.tls.cert_file and key_file (now {own})",
    ),
    (
        "ALERT_HANDSHAKE_FAILURE",
        "the broker {place} broke the handshake off: it wants a certificate of ours (now {own}), "
        "or other ciphers",
    ),
    (
        "ALERT_UNKNOWN_CA",
        "the broker {place} does not know the CA that issued our certificate: {own}",
    ),
    (
        "ALERT_BAD_CERTIFICATE",
        "the broker {place} refused our certificate: {own}",
    ),
    (
        "ALERT_UNSUPPORTED_CERTIFICATE",
        "the broker {place} refused our certificate's kind: {own}",
    ),
    (
        "ALERT_CERTIFICATE_UNKNOWN",
        "the broker {place} refused our certificate: {own}",
    ),
    (
        "PROTOCOL_VERSION",
        "the broker {place} speaks no TLS version that mqtt.tls.min_version allows",
    ),
    ("WRONG_VERSION_NUMBER", "{place} does not speak TLS; is it the port without TLS?"),
    (
        HUNG_UP,
        "{place} closed the connection during the TLS handshake; "
        "is it a TLS port, and does it accept our certificate ({own})?",
    ),
)


def alert(peer: Peer) -> str | None:
    """Ask once more why the broker hangs up after the handshake; None when it does not say.

    With TLS 1.3 its refusal comes after the handshake, and is lost when our greeting crosses it.
    """
    try:
        with (
            socket.create_connection((peer.host, peer.port), timeout=_LOOK_S) as plain,
            context(peer.files).wrap_socket(plain, server_hostname=peer.host) as wrapped,
        ):
            wrapped.recv(1)
    except ssl.SSLError as error:
        return str(error)
    except (OSError, ValueError, ConfigError):
        return None
    return None


def refused_for_good(text: str) -> bool:
    """Return whether OpenSSL's words mean that a person has to put a certificate right."""
    words = text.upper().replace(" ", "_")
    return "CERTIFICATE" in words or "UNKNOWN_CA" in words


def _about_the_broker(error: ssl.SSLCertVerificationError, peer: Peer, now: datetime) -> str:
    whose = f"the certificate of the broker {peer.place}"
    code, said = error.verify_code, error.verify_message
    own = "the system's CAs"
    if peer.files.ca_file is not None:
        own = f"mqtt.tls.ca_file {_described(peer.files.ca_file, now)}"
    sentences = {
        _VERIFY_NOT_YET: (
            f"{whose} is not valid yet: it was issued for later, or this box's clock is behind"
        ),
        _VERIFY_REVOKED: f"{whose} is revoked by {peer.files.crl_file}",
        **dict.fromkeys(_VERIFY_UNKNOWN_CA, f"{whose} was not issued by {own}"),
        **dict.fromkeys(
            _VERIFY_NAME, f"{whose} is for another name: {said}; set mqtt.host to a name in it"
        ),
        **dict.fromkeys(
            _VERIFY_CRL, f"mqtt.tls.crl_file {peer.files.crl_file} cannot be used: {said}"
        ),
    }
    if code == _VERIFY_EXPIRED:
        return f"{whose} has expired{_until(peer, now)}; renew it"
    return sentences.get(code, f"{whose} was refused: {said}")


def _until(peer: Peer, now: datetime) -> str:
    """Say until when the broker's certificate held, or the CA's if that is what expired."""
    if peer.files.ca_file is not None:
        ca = validity(peer.files.ca_file)
        if ca is not None and ca.not_after < now:
            return f" by its CA {_described(peer.files.ca_file, now)}"
    held = _peer_validity(peer)
    if held is None:
        return ""
    return f" (valid {_date(held.not_before)} to {_date(held.not_after)}; now {_date(now)})"


def _peer_validity(peer: Peer) -> Validity | None:
    """Look at the broker's certificate without trusting it, only to name its dates."""
    looking = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    looking.check_hostname = False
    looking.verify_mode = ssl.CERT_NONE
    with suppress(OSError, ValueError, ConfigError):
        if peer.files.cert_file is not None:
            _own_chain(looking, peer.files)
        with (
            socket.create_connection((peer.host, peer.port), timeout=_LOOK_S) as plain,
            looking.wrap_socket(plain, server_hostname=peer.host) as wrapped,
        ):
            der = wrapped.getpeercert(binary_form=True)
            return None if der is None else validity_of(der)
    return None


def _described(path: Path | None, now: datetime) -> str:
    if path is None:
        return "none is set"
    held = validity(path)
    if held is None:
        return f"{path}, which holds no readable certificate"
    if held.not_after < now:
        return f"{path}, expired {_date(held.not_after)}"
    return f"{path}, valid until {_date(held.not_after)}"


def _clock_hint(files: TlsFiles, now: datetime) -> str:
    """Say so where this box's clock is before the birth of its own files."""
    for path in (files.cert_file, files.ca_file):
        held = validity(path) if path is not None else None
        if held is not None and now < held.not_before - timedelta(minutes=5):
            return (
                f"; this box's clock says {_date(now)}, before {path} was issued: "
                "set the clock first"
            )
    return ""


def _date(moment: datetime) -> str:
    return moment.astimezone(timezone.utc).strftime("%Y-%m-%d %H:%M:%SZ")


def _plain(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror and not isinstance(error, ssl.SSLError):
        return error.strerror
    return str(error)
