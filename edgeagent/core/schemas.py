"""May a stored document be read by this version, and which fields does this version know?

A schema is a name and a number, `edgeagent.result/1`. Within a number fields are only added, so
whatever has the same number can be read, a further digit behind a point (`/1.4`) notwithstanding;
another number cannot.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any, get_args, get_type_hints

_SCHEMA = re.compile(r"([a-z.]+)/(\d{1,9})(?:\.\d{1,9})?")


def unreadable(found: object, known: str) -> str | None:
    """Why a document of the schema `found` cannot be read by who knows `known`; None when it can.

    To be put behind the document's name: `it has the schema ...`.
    """
    stored, own = _parsed(found), _parsed(known)
    if stored is not None and stored == own:
        return None
    remedy = "use the edgeagent that wrote it, or a newer one"
    if stored is None or own is None or stored[0] != own[0]:
        remedy = "give the document that a sweep wrote"
    return f"has the schema {found!r}, and this version reads {known}: {remedy}"


def _parsed(schema: object) -> tuple[str, str] | None:
    match = _SCHEMA.fullmatch(schema) if isinstance(schema, str) else None
    return None if match is None else (match[1], match[2])


def field_digest(document: type) -> str:
    """A short digest of all field names of a dataclass and of those inside it.

    Equal for two versions that write the same fields: then one that is missing was taken out.
    """
    names = "\n".join(sorted(set(_field_names(document, set()))))
    return hashlib.sha256(names.encode()).hexdigest()[:16]


def _field_names(document: type, seen: set[type]) -> Iterator[str]:
    if document in seen:
        return
    seen.add(document)
    hints = get_type_hints(document)
    for item in fields(document):
        yield f"{document.__name__}.{item.name}"
        for inner in _dataclasses(hints[item.name]):
            yield from _field_names(inner, seen)


def _dataclasses(hint: Any) -> Iterator[type]:
    if isinstance(hint, type) and is_dataclass(hint):
        yield hint
    for inner in get_args(hint):
        yield from _dataclasses(inner)
