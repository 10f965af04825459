"""What do cells and levels look like as rows for a spreadsheet?

One row a cell, or one row a level; a column is the path of a value in result.json, with dots. A
missing value is an empty field, never 0. Text that a spreadsheet would take for a formula starts
with an apostrophe.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence

from edgeagent.report.reading import mapping, mappings, number, sequence

_FORMULA = ("=", "+", "-", "@", "\t", "\r")

_WHICH = (
    "cell_id", "engine", "model", "concurrency", "prefix_cache", "speculation", "repeat", "status",
    "findings",
)  # fmt: skip
"""What tells a cell from the others stands before what it gave."""

_Row = dict[str, object]


def cells(documents: Iterable[Mapping[str, object]]) -> str:
    """Return one row for each cell of each result, as CSV (RFC 4180) with a line of names."""
    return _csv([row for document in documents for row in _cells(document)])


def levels(documents: Iterable[Mapping[str, object]]) -> str:
    """Return one row for each level; an interval is three columns: mean, low and high (95 %)."""
    return _csv([row for document in documents for row in _levels(document)])


def _cells(document: Mapping[str, object]) -> Iterator[_Row]:
    for cell in mappings(document.get("cells")):
        which = {name: cell.get(name) for name in _WHICH}
        yield {**_of_run(document, cell), **which, **dict(_leaves(cell, ""))}


def _levels(document: Mapping[str, object]) -> Iterator[_Row]:
    for level in mappings(document.get("levels")):
        row = {**_of_run(document, level)}
        row.update({name: value for name, value in level.items() if name != "metrics"})
        for name, interval in mapping(level.get("metrics")).items():
            own = mapping(interval)
            low, high = _pair(own.get("ci95"))
            row.update({f"{name}.mean": own.get("mean"), f"{name}.low": low, f"{name}.high": high})
        yield row


def _of_run(document: Mapping[str, object], part: Mapping[str, object]) -> _Row:
    """Return what a row must say of its run to stand beside rows of other runs."""
    host = mapping(document.get("host"))
    wanted = part.get("engine")
    engine = next((e for e in mappings(document.get("engines")) if e.get("id") == wanted), {})
    sha256 = engine.get("model_sha256")
    models = mappings(document.get("models"))
    model = next((m for m in models if sha256 and m.get("sha256") == sha256), {})
    return {
        "run_id": document.get("run_id"),
        "started_at": document.get("started_at"),
        "agent_version": mapping(document.get("agent")).get("version"),
        "hostname": host.get("hostname"),
        "class": host.get("class"),
        "power_mode": host.get("power_mode"),
        "engine_kind": engine.get("kind"),
        "engine_version": engine.get("version"),
        "quantization": model.get("quantization"),
        "model_sha256": sha256,
    }


def _leaves(value: Mapping[str, object], path: str) -> Iterator[tuple[str, object]]:
    """Yield every value that is no object, under its path; counts by kind stay together."""
    for name, inner in value.items():
        if isinstance(inner, Mapping) and name != "errors":
            yield from _leaves(inner, f"{path}{name}.")
        else:
            yield f"{path}{name}", inner


def _pair(value: object) -> tuple[float | None, float | None]:
    both = sequence(value)
    return (number(both[0]), number(both[1])) if len(both) == 2 else (None, None)  # noqa: PLR2004  # because an interval has two ends


def _csv(rows: Sequence[_Row]) -> str:
    names = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\r\n")
    writer.writerow(names)
    writer.writerows([field(row.get(name)) for name in names] for row in rows)
    return text.getvalue()


def field(value: object) -> str:
    """Return a value as a field that no spreadsheet computes; empty for what is missing."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value):
        return _harmless(" ".join(value))
    if isinstance(value, (list, tuple, Mapping)):
        return _harmless(json.dumps(value)) if value else ""
    return _harmless(str(value))


def _harmless(text: str) -> str:
    return f"'{text}" if text.startswith(_FORMULA) else text
