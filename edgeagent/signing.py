"""Who stands by a result, and how does a third party check it?

Ed25519 keys are files: the private one PKCS #8 in PEM, readable by its owner alone; the public one
beside it (`.pub`) SubjectPublicKeyInfo in PEM, as every other tool writes them. What is signed is a
small statement about a document: its digest in canonical form (core/canonical.py), whose key, when.
docs/signing.md shows how to check it without edgeagent.

`cryptography` is imported where a key is used, so that an agent that only measures does not carry
it; what can be said about a key file without it is said without it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from edgeagent.core.canonical import canonical, digest
from edgeagent.credentials import FOLDER_VARIABLE, is_credential
from edgeagent.errors import UsageError

if TYPE_CHECKING:  # because it takes megabytes that an agent which only measures does not need
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )

SIGNATURE_SCHEMA = "edgeagent.signature/1"
ALGORITHM = "ed25519"

_STATED = ("schema", "algorithm", "public_key", "key_id", "digest", "signed_at")
_ED25519 = bytes.fromhex("06032b6570")
"""The object identifier 1.3.101.112, as it stands in the key's DER."""
_INSTALL = "pip install 'edgeagent[sign]' (Debian: apt install python3-cryptography)"
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


# ---------------------------------------------------------------------------------------- keys


@dataclass(frozen=True)
class PublicKey:
    """A key that somebody may trust."""

    der: bytes
    """SubjectPublicKeyInfo."""

    @property
    def key_id(self) -> str:
        """Fingerprint: SHA-256 of the DER form, as `sha256:` and hexadecimal digits."""
        return f"sha256:{hashlib.sha256(self.der).hexdigest()}"

    @property
    def pem(self) -> str:
        """As it stands in a `.pub` file."""
        return _pem("PUBLIC KEY", self.der)


@dataclass(frozen=True)
class KeyPair:
    """Where a pair of keys lies."""

    private: Path
    public: Path
    key: PublicKey
    kept: tuple[Path, ...] = ()
    """Where the pair that stood there before lies now."""


def default_key(environ: Mapping[str, str] | None = None) -> Path:
    """Where a key lies when nobody says otherwise: `$XDG_CONFIG_HOME/edgeagent/signing.pem`."""
    env = os.environ if environ is None else environ
    base = env.get("XDG_CONFIG_HOME") or str(Path(env.get("HOME", "/nonexistent")) / ".config")
    return Path(base) / "edgeagent" / "signing.pem"


def new_pair(path: Path, existing: Literal["refuse", "keep_aside"] = "refuse") -> KeyPair:
    """Make a pair of keys: `path` (0600) and `path.pub`. Raises UsageError.

    What lies there already is refused or, where the operator wants a new one, kept aside under its
    fingerprint: a public key is needed as long as anything that it signed.
    """
    made = _ed25519().Ed25519PrivateKey.generate()
    public = _public_path(path)
    old = [file for file in (path, public) if file.exists() or file.is_symlink()]
    if old and existing == "refuse":
        raise UsageError(
            f"a new key was to be written to {path} and {old[0]} exists: name another file by "
            "--out, or give --force, which keeps the old pair under another name"
        )
    key = _public_of(made)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        kept = tuple(_put_aside(file) for file in old)
        _write_new(path, _private_pem(made), 0o600)
        _write_new(public, key.pem.encode(), 0o644)
    except OSError as error:
        raise UsageError(
            f"the key {path} could not be written ({_why(error)}): name a folder that is writable"
        ) from error
    return KeyPair(path, public, key, kept)


def find_key(name: str, environ: Mapping[str, str] | None = None) -> Path:
    """The file behind `--sign NAME`: a path, or the name of a systemd credential."""
    env = os.environ if environ is None else environ
    path, folder = Path(name), env.get(FOLDER_VARIABLE)
    if folder and os.sep not in name and not path.exists() and (Path(folder) / name).exists():
        return Path(folder) / name
    return path


def check_private(path: Path, environ: Mapping[str, str] | None = None) -> None:
    """Make sure that `path` can sign, before hours are spent. Raises UsageError.

    Reads the file and does not import what signs.
    """
    if find_spec("cryptography") is None:
        raise _not_installed()
    der = _der(path, _read_private(path, environ), "PRIVATE KEY")
    if _ED25519 not in der[:32]:
        raise UsageError(f"{path} is a key, but not of Ed25519: make one by edgeagent keys new")


def read_public(path: Path) -> PublicKey:
    """A public key to trust. Raises UsageError."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise UsageError(
            f"the key {path} could not be read ({_why(error)}): give the .pub file of the box "
            "that signed"
        ) from error
    if b"PRIVATE KEY-----" in text:
        raise UsageError(
            f"{path} is a private key, which nobody else should have: give the .pub file beside it"
        )
    der = _der(path, text, "PUBLIC KEY")
    _load_public(der, str(path))
    return PublicKey(der)


def any_public(path: Path) -> PublicKey:
    """The public key of a file that holds it, or its private half. Raises UsageError."""
    with suppress(OSError):
        if b"PRIVATE KEY-----" not in path.read_bytes():
            return read_public(path)
    return public_of(path)


def public_of(path: Path) -> PublicKey:
    """The public half of a private key. Raises UsageError."""
    return _public_of(_load_private(path))


# ------------------------------------------------------------------------------------- signing


def signature(document: object, key_path: Path, signed_at: str) -> bytes:
    """The signature file for a JSON document. Raises UsageError when the key cannot sign."""
    private = _load_private(key_path)
    key = _public_of(private)
    stated = {
        "schema": SIGNATURE_SCHEMA,
        "algorithm": ALGORITHM,
        "public_key": _base64(key.der),
        "key_id": key.key_id,
        "digest": digest(document),
        "signed_at": signed_at,
    }
    return _layout({**stated, "signature": _base64(private.sign(canonical(stated)))})


@dataclass(frozen=True)
class Signature:
    """What a signature file says, and whether it may be believed."""

    key_id: str | None
    signed_at: str | None
    faults: tuple[str, ...]
    """Why it is worth nothing; empty for a good one."""


def check(data: bytes, document: object) -> Signature:
    """Judge the bytes of a signature file for a document. Raises UsageError without the library.

    A good one says that whoever has the private key signed this document; whose key it is, only
    somebody who was given the public key can tell.
    """
    try:
        stated: Any = json.loads(data)
    except (ValueError, RecursionError):
        return Signature(None, None, ("it is not JSON",))
    if not isinstance(stated, dict) or not all(isinstance(v, str) for v in stated.values()):
        return Signature(None, None, ("it is not an object of strings",))
    key_id, signed_at = stated.get("key_id"), stated.get("signed_at")
    return Signature(key_id, signed_at, tuple(_faults(data, stated, document)))


def _faults(data: bytes, stated: dict[str, str], document: object) -> Iterable[str]:
    if stated.get("schema") != SIGNATURE_SCHEMA or stated.get("algorithm") != ALGORITHM:
        yield (
            f"its schema is {stated.get('schema')!r} with {stated.get('algorithm')!r}: this "
            f"version checks {SIGNATURE_SCHEMA!r} with {ALGORITHM!r}"
        )
        return
    if set(stated) != {*_STATED, "signature"} or data != _layout(stated):
        yield "it is not written as edgeagent writes it: it was edited"
        return
    der, signed = _bytes(stated["public_key"]), _bytes(stated["signature"])
    if der is None or signed is None or _ED25519 not in der[:16]:
        yield "its public key or its signature is not what Ed25519 has: it was edited"
        return
    if PublicKey(der).key_id != stated["key_id"]:
        yield "its fingerprint is not that of its public key: it was edited"
        return
    statement = {name: stated[name] for name in _STATED}
    if not _signed_by(der, signed, canonical(statement)):
        yield "the signature does not fit: the signature file was edited after it was made"
    elif stated["digest"] != digest(document):
        yield "the result is not the one that was signed: it was changed afterwards"


def _signed_by(der: bytes, signed: bytes, message: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature

    try:
        _load_public(der, "the signature").verify(signed, message)
    except (InvalidSignature, UsageError):
        return False
    return True


def _layout(stated: Mapping[str, str]) -> bytes:
    """The one way to write a signature file: any other bytes are no longer it."""
    names = [name for name in (*_STATED, "signature") if name in stated]
    ordered = {name: stated[name] for name in names}
    return (json.dumps(ordered, indent=2) + "\n").encode("ascii")


def write_signature(path: Path, data: bytes) -> None:
    """Put a signature file in its place, wholly or not at all. Raises UsageError."""
    draft = path.with_name(f".{path.name}.tmp")
    try:
        draft.unlink(missing_ok=True)
        _write_new(draft, data, 0o644)
        draft.replace(path)
    except OSError as error:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        raise UsageError(
            f"{path} could not be written ({_why(error)}): make the folder writable, then "
            f"edgeagent sign {path.parent}"
        ) from error


# ------------------------------------------------------------------------------------- details


def _ed25519() -> Any:
    """The library's module. Raises UsageError with what installs it."""
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise _not_installed() from error
    return ed25519


def _not_installed() -> UsageError:
    return UsageError(
        "keys and signatures need the Python package cryptography, which is not installed: "
        f"{_INSTALL}"
    )


def _public_of(private: Ed25519PrivateKey) -> PublicKey:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return PublicKey(
        private.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    )


def _private_pem(private: Ed25519PrivateKey) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _load_private(path: Path) -> Ed25519PrivateKey:
    check_private(path)
    _ed25519()
    from cryptography.hazmat.primitives.serialization import load_der_private_key

    der = _der(path, _read_private(path), "PRIVATE KEY")
    try:
        return load_der_private_key(der, password=None)  # type: ignore[return-value]  # because the identifier was looked at
    except ValueError as error:
        raise UsageError(
            f"{path} is a damaged private key: take its copy, or make one by edgeagent keys new"
        ) from error


def _load_public(der: bytes, name: str) -> Ed25519PublicKey:
    _ed25519()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_der_public_key

    try:
        key = load_der_public_key(der)
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PublicKey):
        raise UsageError(f"{name} holds no Ed25519 public key: give the .pub file of a signing key")
    return key


def _read_private(path: Path, environ: Mapping[str, str] | None = None) -> bytes:
    """The file's bytes. Raises UsageError when it is missing or open to others."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(1 << 16)
    except OSError as error:
        raise UsageError(
            f"the signing key {path} could not be read ({_why(error)}): make one by edgeagent "
            f"keys new --out {path}"
        ) from error
    if mode & _OTHERS and not is_credential(path, os.environ if environ is None else environ):
        raise UsageError(
            f"the signing key {path} can be read by others (mode {stat.S_IMODE(mode):04o}), so it "
            f"proves nothing: chmod 600 {path}, and make a new one if others may have copied it"
        )
    return text


def _der(path: Path, text: bytes, label: str) -> bytes:
    """The one block of a PEM file. Raises UsageError."""
    if b"ENCRYPTED" in text:
        raise UsageError(
            f"{path} is encrypted, and nobody is there to type its passphrase: use a plain key "
            "(0600), or a systemd credential, which is encrypted at rest"
        )
    begin, end = f"-----BEGIN {label}-----".encode(), f"-----END {label}-----".encode()
    _, found, rest = text.partition(begin)
    body, closed, _ = rest.partition(end)
    der = _bytes("".join(body.decode("ascii", "replace").split()))
    if not found or not closed or not der:
        kind = label.lower()
        raise UsageError(f"{path} is no {kind} in PEM: make a pair by edgeagent keys new")
    return der


def _pem(label: str, der: bytes) -> str:
    text = _base64(der)
    lines = [text[at : at + 64] for at in range(0, len(text), 64)]
    return "\n".join([f"-----BEGIN {label}-----", *lines, f"-----END {label}-----", ""])


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _bytes(text: str) -> bytes | None:
    """Base64's bytes; None for anything that is not exactly how they are written."""
    try:
        data = base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        return None
    return data if _base64(data) == text else None


def _public_path(private: Path) -> Path:
    return private.with_name(f"{private.name}.pub")


def _put_aside(path: Path) -> Path:
    """Rename to the first free `NAME.old-N`; a link is renamed, not followed."""
    number = 1
    while (free := path.with_name(f"{path.name}.old-{number}")).exists():
        number += 1
    return path.rename(free)


def _write_new(path: Path, data: bytes, mode: int) -> None:
    """Write a file that was not there; never through a link, never half."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), mode)  # whatever the umask takes away
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        with suppress(OSError):
            path.unlink()
        raise


def _why(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
