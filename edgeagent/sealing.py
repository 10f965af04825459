"""Does a run folder hold together, and who stands by its result?

Four things are asked of a folder. Its raw files are those that `result.json` names by SHA-256;
`result.json` is, byte for byte, the file that `result.json.sha256` was written for; everything in
it follows from the raw records, computed anew by the code that a sweep uses; and a signature,
where there is one, fits it. What none of them can show is said as well: docs/signing.md.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from edgeagent import __version__, signing
from edgeagent.archive import RESULT, Recalled, file_hashes, recall, result_of
from edgeagent.core import schemas, verify
from edgeagent.core.result import SCHEMA, Result, plain
from edgeagent.errors import EdgeAgentError, UsageError
from edgeagent.logs import LOG
from edgeagent.store.runfolder import INVALIDATED, LOCK, RunFolder, RunReader

CHECKSUM = "result.json.sha256"
SIGNATURE = "result.json.sig"
DERIVED = ("report.html", "report.txt", "report.csv")
"""Made of result.json, and made again at any time."""

_COPIED = frozenset(
    ("schema", "run_id", "status", "started_at", "finished_at", "agent", "files", "host")
)
"""What no metric is among."""

_FIELDS = "result_fields"
"""Key in `agent`: which fields the writer of a result knew (core/schemas.py)."""

_UNSIGNED = (
    "unsigned: damage and edits show, but who can write this folder could have replaced its "
    "records, hashes and result together, and nothing here would tell; edgeagent sweep --sign KEY "
    "makes a result that only the owner of a key can make"
)

_ANYBODY = (
    "the signature fits, but anybody can sign with a key of their own: name the key that you trust "
    "by --key FILE.pub, or compare its fingerprint with the one that edgeagent keys show prints on "
    "the box"
)


@dataclass(frozen=True)
class Seal:
    """What a run's signature is worth."""

    state: Literal["unsigned", "good", "bad", "unchecked"]
    trusted: bool | None = None
    """Whether the key is among those given; None when none was."""
    key_id: str | None = None
    signed_at: str | None = None


@dataclass(frozen=True)
class Verdict:
    """What was looked at in a run folder, and what was found."""

    faults: tuple[str, ...]
    """What does not hold together, a sentence each; empty when everything does."""
    notes: tuple[str, ...]
    """What could not be checked, a sentence each."""
    files: int = 0
    """Raw files whose hash is right."""
    numbers: int = 0
    """Numbers of the result that were computed again and are the same."""
    cells: int = 0
    seal: Seal = field(default_factory=lambda: Seal("unsigned"))
    agent_version: str | None = None
    """Which edgeagent wrote the result."""


# --------------------------------------------------------------------------------------- sealing


def result_fields() -> str:
    """Which fields this version writes, as `agent.result_fields` of a run says it."""
    return schemas.field_digest(Result)


def keep_result(folder: RunFolder, document: Mapping[str, Any]) -> None:
    """Write the result and its checksum. Raises UsageError.

    Both of an earlier result are taken away first: they are not about this one.
    """
    folder.remove(SIGNATURE)
    folder.remove(CHECKSUM)
    folder.write_document(RESULT, document)
    folder.write_file(CHECKSUM, _checksum((folder.path / RESULT).read_bytes()))


def sign(path: Path, key_path: Path) -> Seal:
    """Sign the result of a run folder with a private key. Raises UsageError."""
    document = _strict(path, (RunReader(path).path / RESULT))
    signed_at = datetime.now(timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z")
    signing.write_signature(path / SIGNATURE, signing.signature(document, key_path, signed_at))
    return Seal("good", True, signing.public_of(key_path).key_id, signed_at)


def sign_checked(path: Path, key_path: Path) -> Seal:
    """The same for a run that somebody brings: only one that holds together. Raises UsageError."""
    signing.check_private(key_path)
    found = [fault for fault in examine(path).faults if not fault.startswith(SIGNATURE)]
    if found:
        raise UsageError(
            f"{path} was to be signed and does not hold together ({found[0]}): "
            f"see edgeagent verify {path}"
        )
    return sign(path, key_path)


def _checksum(data: bytes) -> bytes:
    """As `sha256sum result.json` prints it."""
    return f"{hashlib.sha256(data).hexdigest()}  {RESULT}\n".encode()


# ------------------------------------------------------------------------------------- verifying


def faults(path: Path) -> list[str]:
    """Everything in a run folder that does not hold together; empty when all does."""
    return list(examine(path).faults)


def examine(path: Path, keys: Sequence[signing.PublicKey] = ()) -> Verdict:
    """Look at everything in a run folder; with `keys`, one of them must have signed it.

    Raises UsageError when there is no result, or one of another major version.
    """
    folder = RunReader(path)
    try:
        stored = _strict(path, path / RESULT)
    except _DamagedError as error:
        return Verdict((str(error),), ())
    if not isinstance(stored, dict):
        return Verdict((f"{RESULT}: not an object",), ())
    if (why := schemas.unreadable(stored.get("schema"), SCHEMA)) is not None:
        raise UsageError(f"{path / RESULT} {why}")
    seal, of_seal = _seal(path, stored, keys)
    parts = (
        _schema(stored),
        _bytes(path, stored),
        _files(folder, stored),
        of_seal,
        _metrics(folder, stored),
    )
    return Verdict(
        faults=tuple(fault for part in parts for fault in part.faults),
        notes=tuple(note for part in parts for note in part.notes),
        files=sum(part.files for part in parts),
        numbers=sum(part.numbers for part in parts),
        cells=len(_list(stored.get("cells"))),
        seal=seal,
        agent_version=_writer(stored),
    )


@dataclass(frozen=True)
class _Part:
    """What one look has brought."""

    faults: Sequence[str] = ()
    notes: Sequence[str] = ()
    files: int = 0
    numbers: int = 0


class _DamagedError(UsageError):
    """A file that is there and cannot be read as what it is."""


def _strict(run: Path, path: Path) -> Any:
    """The document, every key once. Raises UsageError when it is missing, _DamagedError else."""
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise UsageError(
            f"{run} has no {RESULT}: the run was not finished; go on with it by "
            f"edgeagent sweep --resume {run}"
        ) from error
    except OSError as error:
        raise UsageError(f"could not read {path}: {error.strerror}") from error
    try:
        return json.loads(data, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise _DamagedError(f"{path.name}: not JSON as edgeagent writes it ({error})") from error


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands there twice")
    return found


# ------------------------------------------------------------------------------ result as a file


def _schema(stored: Mapping[str, Any]) -> _Part:
    try:
        TypeAdapter(Result).validate_python({**stored, "schema": SCHEMA})
    except ValidationError as error:
        return _Part(
            [
                f"{RESULT}: {'.'.join(map(str, fault['loc']))}: {fault['msg']}"
                for fault in error.errors()
            ]
        )
    return _Part()


def _bytes(path: Path, stored: Mapping[str, Any]) -> _Part:
    """Whether result.json is the file that was written, to the last byte."""
    try:
        kept = (path / CHECKSUM).read_bytes()
    except FileNotFoundError:
        if _FIELDS in _mapping(stored.get("agent")):
            return _Part([f"{CHECKSUM}: is missing: it was taken away, or the sweep was cut off"])
        note = (
            f"{RESULT} has no checksum of its own, as runs of older versions have none: a changed "
            "end time, or a last digit of a number, would not show"
        )
        return _Part(notes=[note])
    except OSError as error:
        return _Part([f"{CHECKSUM}: could not be read ({(error.strerror or '').lower()})"])
    if kept == _checksum((path / RESULT).read_bytes()):
        return _Part()
    if re.fullmatch(rb"[0-9a-f]{64}  result\.json\n", kept) is None:
        return _Part([f"{CHECKSUM}: is not one line of a SHA-256 and a name: it was changed"])
    return _Part(
        [f"{RESULT}: is not the file that {CHECKSUM} was written for: one of the two was changed"]
    )


# ----------------------------------------------------------------------------------- raw records


def _files(folder: RunReader, stored: Mapping[str, Any]) -> _Part:
    """Whether the raw files are those that the result was made of."""
    named = stored.get("files")
    if not isinstance(named, dict):
        return _Part([f"{RESULT}: files is missing"])
    now = file_hashes(folder)
    later = set(now) - set(named)
    unnamed: set[str] = set() if _same_fields(stored) else later & _ONCE_UNNAMED
    found = [
        *(f"{name}: is missing" for name in sorted(set(named) - set(now))),
        *(
            f"{name}: was changed: its SHA-256 is not the one in {RESULT}"
            for name in sorted(set(named) & set(now))
            if named[name] != now[name]
        ),
        *(f"{name}: was added: {RESULT} does not name it" for name in sorted(later - unnamed)),
    ]
    return _Part(
        found,
        [*_unchecked(folder.path, {*named, *now}), *_named_later(unnamed)],
        files=sum(named.get(name) == value for name, value in now.items()),
    )


_ONCE_UNNAMED = frozenset((LOG, INVALIDATED))
"""Which older versions did not name in a result."""


def _named_later(names: Collection[str]) -> Iterator[str]:
    if names:
        yield f"{', '.join(sorted(names))}: not named by this older result, so not checked"


def _unchecked(path: Path, known: Collection[str]) -> Iterator[str]:
    ours = {*known, RESULT, CHECKSUM, SIGNATURE, LOCK}
    others = sorted({entry.name for entry in path.iterdir()} - ours)
    for name in (name for name in others if name in DERIVED):
        yield f"{name} is made of {RESULT} and was not checked: edgeagent report makes it again"
    foreign = [name for name in others if name not in DERIVED and name != "slots"]
    if foreign:
        yield f"not part of the run, not checked: {', '.join(foreign)}"


# --------------------------------------------------------------------------------------- metrics


def _metrics(folder: RunReader, stored: Mapping[str, Any]) -> _Part:
    """Whether the result follows from the records."""
    same = _same_fields(stored)
    try:
        run = recall(folder)
        result = result_of(run, stored.get("finished_at"), _mapping(stored.get("files")))
    except EdgeAgentError as error:
        return _Part([*_of_another(stored), str(error)])
    recomputed = {**plain(result), "schema": stored["schema"]}  # its number was looked at before
    left, right, notes = (stored, recomputed, []) if same else _in_common(stored, recomputed)
    found = verify.differences(left, right, RESULT)
    found += _cell_lines(run, same=same)
    numbers = sum(1 for name in right if name not in _COPIED for _ in _numbers(right[name]))
    if not found:
        return _Part(notes=notes, numbers=numbers)
    return _Part([*_of_another(stored), *found], notes, numbers=max(0, numbers - len(found)))


def _of_another(stored: Mapping[str, Any]) -> Iterator[str]:
    """What to know first where another version may have had other definitions."""
    writer = _writer(stored) or "of an unknown version"
    if writer == __version__ and _same_fields(stored):
        return
    this = "an older or newer build than this one" if writer == __version__ else __version__
    yield (
        f"written by edgeagent {writer}: metrics recompute differently by this one "
        f"({this}), so verify it with the one that wrote it before you call it edited"
    )


def _cell_lines(run: Recalled, *, same: bool) -> Iterator[str]:
    """Differences between the metrics in cells.jsonl and what its records give."""
    measured = run.measured
    cells = (*measured.cells, *measured.canaries, *measured.arrivals, *measured.steps)
    ids = [cell.cell.cell_id for cell in cells]
    kept: Any = [run.stored_metrics.get(cell_id) for cell_id in ids]
    again: Any = [plain(cell.metrics) for cell in cells]
    if not same:
        kept, again, _ = _in_common(kept, again)
    for cell_id, one, other in zip(ids, kept, again, strict=True):
        yield from verify.differences(one, other, f"cells.jsonl {cell_id}")


def _in_common(stored: Any, recomputed: Any) -> tuple[Any, Any, list[str]]:
    """Both without the fields that one of the two versions does not know, and which those are.

    A field counts as unknown when it stands nowhere: one that is missing in one cell of several was
    taken out, whatever the version. Sentences are left out as well: versions word them differently,
    and what they say stands beside them as numbers.
    """
    stored, recomputed = _wordless(stored), _wordless(recomputed)
    there, here = set(_places(stored)), set(_places(recomputed))
    notes = [_WORDING]
    if not_then := _outermost(here - there):
        notes.append(f"not in a result of that version: {_listed(not_then)}")
    if unknown := _outermost(there - here):
        notes.append(f"not known to this version, not checked: {_listed(unknown)}")
    return _without(stored, there - here), _without(recomputed, here - there), notes


def _places(value: Any, where: str = "") -> Iterator[str]:
    """Every key's path, whatever the number in a list."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield (place := f"{where}.{key}".lstrip("."))
            yield from _places(inner, place)
    elif isinstance(value, list):
        for inner in value:
            yield from _places(inner, f"{where}[]")


def _without(value: Any, places: Collection[str], where: str = "") -> Any:
    if isinstance(value, Mapping):
        return {
            key: _without(inner, places, place)
            for key, inner in value.items()
            if (place := f"{where}.{key}".lstrip(".")) not in places
        }
    if isinstance(value, list):
        return [_without(inner, places, f"{where}[]") for inner in value]
    return value


def _wordless(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _wordless(inner) for key, inner in value.items() if key not in _WORDS}
    return [_wordless(inner) for inner in value] if isinstance(value, list) else value


_WORDS = frozenset(("answers", "text", "reason", "note", "notes"))
"""Keys that hold sentences, or nothing but sentences."""

_WORDING = "sentences (answers, reasons) were not compared: versions word them differently"


def _outermost(places: Collection[str]) -> list[str]:
    """Those that are inside no other."""
    return sorted(place for place in places if not any(_inside(place, one) for one in places))


def _inside(place: str, outer: str) -> bool:
    return place.startswith((f"{outer}.", f"{outer}["))


def _listed(names: Sequence[str], most: int = 8) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _numbers(value: Any) -> Iterator[float]:
    if isinstance(value, Mapping):
        for inner in value.values():
            yield from _numbers(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _numbers(inner)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield value


# ------------------------------------------------------------------------------------- signature


def _seal(
    path: Path, stored: Mapping[str, Any], keys: Sequence[signing.PublicKey]
) -> tuple[Seal, _Part]:
    try:
        data = (path / SIGNATURE).read_bytes()
    except FileNotFoundError:
        if not keys:
            return Seal("unsigned"), _Part(notes=[_UNSIGNED])
        text = f"{SIGNATURE}: is missing: a signature was asked for and the run has none"
        return Seal("unsigned", trusted=False), _Part([text])
    except OSError as error:
        text = f"{SIGNATURE}: could not be read ({(error.strerror or '').lower()})"
        return Seal("unchecked"), _Part([text])
    try:
        found = signing.check(data, stored)
    except UsageError as error:
        return Seal("unchecked"), _Part([f"{SIGNATURE}: could not be checked: {error}"])
    return _judged_seal(found, [key.key_id for key in keys])


def _judged_seal(found: signing.Signature, trusted_ids: Sequence[str]) -> tuple[Seal, _Part]:
    """What a signature is worth to somebody who trusts these keys, or has named none."""
    trusted = found.key_id in trusted_ids if trusted_ids else None
    if found.faults:
        seal = Seal("bad", None if trusted is None else False, found.key_id, found.signed_at)
        return seal, _Part([f"{SIGNATURE}: {fault}" for fault in found.faults])
    seal = Seal("good", trusted, found.key_id, found.signed_at)
    if trusted is None:
        return seal, _Part(notes=[_ANYBODY])
    if not trusted:
        given = ", ".join(trusted_ids)
        text = f"{SIGNATURE}: signed by the key {found.key_id}, and what was given is {given}"
        return seal, _Part([text])
    return seal, _Part()


# --------------------------------------------------------------------------------------- details


def _same_fields(stored: Mapping[str, Any]) -> bool:
    """Whether the writer knew the fields that this version knows, no more and no less."""
    return _mapping(stored.get("agent")).get(_FIELDS) == result_fields()


def _writer(stored: Mapping[str, Any]) -> str | None:
    version = _mapping(stored.get("agent")).get("version")
    return version if isinstance(version, str) else None


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
