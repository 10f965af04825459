"""What does the operator want to see of a model's memory? A row per number of slots, then advice.

The input is the document of `edgeagent memory --json`; what is missing in it is a dash.
"""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TextIO

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text

NONE = "–"  # noqa: RUF001  # because the dash of a missing value is not a minus

_WITHOUT_TERMINAL = (100, 24)
MIB = 1 << 20
GIB = 1 << 30
_GAP = 3
"""Columns between columns."""
_BESIDE = 30
"""Columns of what stands in every table: margin, slots, fits and headroom."""
_ENGINES = {"llamacpp": "llama.cpp", "vllm": "vLLM"}
_PARTS = {
    "kv": "cache", "state": "state", "output": "output", "metadata": "records", "draft": "draft",
}  # fmt: skip
_CLASSES = {
    "dgpu": "graphics card",
    "uma-nvidia": "memory shared with an NVIDIA GPU",
    "uma-nvgpu": "memory shared with a Jetson's GPU",
    "amd": "box with an AMD GPU",
    "intel": "box with an Intel GPU",
    "cpu": "box without a GPU",
}


def show(document: Mapping[str, Any], stream: TextIO) -> None:
    """Print the document to `stream`; in colour on a terminal, unless NO_COLOR is set."""
    from rich.console import Console  # here, because `--json` can do without

    with suppress(AttributeError):
        stream.reconfigure(errors="replace")  # type: ignore[attr-defined]  # because not every TextIO has it
    width = shutil.get_terminal_size(_WITHOUT_TERMINAL).columns
    _print(Console(file=stream, width=width), document)


def render(document: Mapping[str, Any], width: int) -> str:
    """Return what `show` prints, without colour."""
    from rich.console import Console

    text = io.StringIO()
    _print(Console(file=text, width=width, color_system=None), document)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n"


def _print(console: Console, document: Mapping[str, Any]) -> None:
    for part in _parts(document, console.width):
        console.print(part, highlight=False)


def _parts(document: Mapping[str, Any], width: int) -> Iterable[RenderableType]:
    from rich.padding import Padding
    from rich.text import Text

    yield Text("")
    yield Text(heading(document), style="bold")
    yield Text(asked(document))
    yield Text("")
    if document["reason"] is None:
        yield Padding(_table(document, width), (0, 0, 0, 1))
        yield Text("")
    yield Padding(_grid(closing(document)), (0, 0, 0, 1))


# ------------------------------------------------------------------------------------- the words


@dataclass(frozen=True)
class Line:
    """A sentence under a word that says what it is about; lines of the same word follow it."""

    about: Literal["unknown", "one more", "budget", "fits", "instead", "note"]
    text: str


def heading(document: Mapping[str, Any]) -> str:
    """The model."""
    name = str(document["model"]).rstrip("/").rpartition("/")[2]
    kinds = [str(document[key]) for key in ("architecture", "quantization") if document[key]]
    return f"{name} ({', '.join(kinds)})" if kinds else name


def asked(document: Mapping[str, Any]) -> str:
    """What was asked of it."""
    words = [
        _ENGINES[document["engine"]],
        f"{document['context_per_slot']:,} tokens per slot",
        f"{document['kv_type']} cache",
    ]
    if document["sharing"] == "unified":
        words.append("one cache for all slots")
    return ", ".join(words)


def closing(document: Mapping[str, Any]) -> tuple[Line, ...]:
    """What a slot costs, the budget, what fits into it, what else would, and what to know."""
    lines = [*_cost(document), _budget(document["budget"])]
    if document["reason"] is None and document["budget"]["reason"] is None:
        lines += [*_limits(document), *_advice(document)]
    return (*lines, *_notes(document))


def _cost(document: Mapping[str, Any]) -> Iterable[Line]:
    if document["reason"] is not None:
        yield Line(
            "unknown", f"{document['reason']}; its weights take {_size(document['weights_bytes'])}"
        )
        return
    parts = [
        f"{_size(document[f'{key}_bytes_per_slot'])} {word}"
        for key, word in _PARTS.items()
        if document[f"{key}_bytes_per_slot"]
    ]
    text = f"{_size(document['bytes_per_slot'])}: {', '.join(parts)}"
    if document["engine"] == "vllm":
        blocks, tokens = document["blocks_per_slot"], document["block_tokens"]
        each = _size(document["bytes_per_block"])
        text += f" ({_counted(blocks, 'block')} of {tokens} tokens, {each} each)"
    yield Line("one more", text)


def _budget(budget: Mapping[str, Any]) -> Line:
    if budget["reason"] is not None:
        return Line("budget", budget["reason"])
    where = {
        "given": "given",
        "host": f"available on this {_CLASSES.get(budget['class'], 'box')}",
        "cgroup": "allowed by this control group's memory limit",
        "GPU": "free on the GPU",
    }[budget["source"]]
    return Line(
        "budget",
        f"{_size(budget['total_bytes'])} {where}, less {_size(budget['reserve_bytes'])} in reserve:"
        f" {_size(budget['usable_bytes'])} to use",
    )


def _limits(document: Mapping[str, Any]) -> Iterable[Line]:
    context, most = document["context_per_slot"], _most(document)
    slots, longest = document["max_slots"], document["max_context_per_slot"]
    if slots:
        limit = " (more is not looked for)" if slots == document["most_slots"] else ""
        yield Line("fits", f"at most {_counted(slots, 'slot')} of {context:,} tokens{limit}")
    if longest:
        limit = ", all it was trained for" if longest == document["context_length"] else ""
        yield Line("fits", f"at most {longest:,} tokens in each of {_counted(most, 'slot')}{limit}")
    if not slots and not longest:
        yield Line("fits", f"neither one slot of {context:,} tokens nor {most} of any context")


def _advice(document: Mapping[str, Any]) -> Iterable[Line]:
    """What the lines above have not said yet: with how much memory, and by which options."""
    for found in document["advice"]:
        needs = _size(found["total_bytes"])
        what = f"{_counted(found['slots'], 'slot')} of {found['context_per_slot']:,} tokens"
        option = {
            "slots": f"--slots {found['slots']}",
            "kv_type": f"--kv-type {found['kv_type']}",
            "context": f"--context {found['context_per_slot']}",
            "slots_and_context": f"--slots 1 --context {found['context_per_slot']}",
            "weights": "",
        }[found["change"]]
        if option:
            yield Line("instead", f"{option}: {what} take {needs}")
        else:
            yield Line("instead", f"a smaller model: {what} of this one take {needs}")


def _notes(document: Mapping[str, Any]) -> Iterable[Line]:
    trained = document["context_length"]
    if trained is not None and document["context_per_slot"] > trained:
        yield Line("note", f"the model was trained for {trained:,} tokens, more is of no use to it")
    if document["reason"] is not None:
        return
    if document["weights_bytes"] is None:
        yield Line("note", "no weights are in the folder, so they are not in the total")
    if document["compute_bytes"] is None:
        kept = "; the reserve is for them" if document["budget"]["reserve_bytes"] else ""
        yield Line("note", f"compute buffers have no formula and are not in the total{kept}")
    if document["engine"] == "vllm":
        rows = document["rows"]
        row = next((row for row in reversed(rows) if row["fits"]), rows[-1])
        yield Line(
            "note",
            "vLLM takes its whole pool at the start, whatever is in it: "
            f"--num-gpu-blocks-override {row['blocks']} holds {_counted(row['slots'], 'slot')}",
        )
    if document["budget"]["class"] == "dgpu" and document["engine"] == "llamacpp":
        yield Line("note", "output and records lie in host memory, not on the card")


def _most(document: Mapping[str, Any]) -> int:
    return int(max(row["slots"] for row in document["rows"]))


# ------------------------------------------------------------------------------------- the table


@dataclass(frozen=True)
class Column:
    """A heading and the fields of a row whose sum it shows."""

    heading: str
    fields: tuple[str, ...]
    shown: Literal["always", "unless_zero", "if_known"] = "always"

    def of(self, row: Mapping[str, Any]) -> int | None:
        """The amount; None where nothing of it is known."""
        known = [row[field] for field in self.fields if row[field] is not None]
        return sum(known) if known else None


_CACHE = Column("cache", ("kv_bytes",))
_STATE = Column("state", ("state_bytes",), "unless_zero")
_DRAFT = Column("draft", ("draft_bytes",), "unless_zero")
_WEIGHTS = Column("weights", ("weights_bytes",))
_TOTAL = Column("total", ("total_bytes",))
_WIDE = (
    _CACHE,
    _STATE,
    Column("output", ("output_bytes",), "if_known"),
    Column("records", ("metadata_bytes",), "unless_zero"),
    _DRAFT,
    _WEIGHTS,
    Column("compute", ("compute_bytes",), "if_known"),
    _TOTAL,
)
_OTHER = Column("other", ("output_bytes", "metadata_bytes", "compute_bytes"), "unless_zero")
_NARROW = (_CACHE, _STATE, _DRAFT, _WEIGHTS, _OTHER, _TOTAL)


def columns(rows: Sequence[Mapping[str, Any]], width: int) -> tuple[Column, ...]:
    """Those that have something to say; small ones in one where there is no room for all."""
    wide = tuple(column for column in _WIDE if _says(column, rows))
    unit = _unit(rows)
    words = [[column.heading, *(unit.of(column.of(row)) for row in rows)] for column in wide]
    room = width - _BESIDE - sum(max(map(len, column)) + _GAP for column in words)
    return wide if room >= 0 else tuple(column for column in _NARROW if _says(column, rows))


def _says(column: Column, rows: Sequence[Mapping[str, Any]]) -> bool:
    values = [column.of(row) for row in rows]
    if column.shown == "unless_zero":
        return any(values)
    return column.shown == "always" or any(value is not None for value in values)


def _table(document: Mapping[str, Any], width: int) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    rows = document["rows"]
    shown, unit = columns(rows, width), _unit(rows)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1))
    table.add_column("slots", justify="right", no_wrap=True)
    for column in shown:
        table.add_column(f"{column.heading}\n{unit.name}", justify="right", no_wrap=True)
    judged = document["budget"]["reason"] is None
    if judged:
        table.add_column("fits", no_wrap=True)
        table.add_column(f"headroom\n{unit.name}", justify="right", no_wrap=True)
    for row in rows:
        words = [Text(str(row["slots"])), *(Text(unit.of(column.of(row))) for column in shown)]
        if judged:
            words += [_verdict(row["fits"]), Text(unit.of(row["headroom_bytes"]))]
        table.add_row(*words)
    return table


@dataclass(frozen=True)
class Unit:
    """One unit for a whole table, so that its columns can be compared."""

    name: str
    size_bytes: int
    digits: int

    def of(self, amount_bytes: int | None) -> str:
        """The amount in this unit."""
        if amount_bytes is None:
            return NONE
        return f"{amount_bytes / self.size_bytes:,.{self.digits}f}"


def _unit(rows: Sequence[Mapping[str, Any]]) -> Unit:
    largest = max(row["total_bytes"] for row in rows)
    return Unit("GiB", GIB, 2) if largest >= 10 * GIB else Unit("MiB", MIB, 1)


def _verdict(fits: bool | None) -> Text:  # noqa: FBT001  # because unknown is one of three answers
    from rich.text import Text

    if fits is None:
        return Text(NONE)
    return Text("yes", style="green") if fits else Text("no", style="red")


def _grid(lines: Iterable[Line]) -> Table:
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    before = ""
    for line in lines:
        style = "yellow" if line.about in {"unknown", "instead"} else ""
        grid.add_row(
            Text("" if line.about == before else line.about, style="dim"),
            Text(line.text, style=style),
        )
        before = line.about
    return grid


def _size(amount_bytes: int | None) -> str:
    """An amount with three digits that mean something."""
    if amount_bytes is None:
        return NONE
    unit = next((unit for unit in _UNITS if abs(amount_bytes) >= unit.size_bytes), _UNITS[-1])
    value = amount_bytes / unit.size_bytes
    digits = 0 if value >= 100 or unit.digits == 0 else 1 if value >= 10 else 2  # noqa: PLR2004  # because of three digits
    return f"{value:,.{digits}f} {unit.name}"


_UNITS = (Unit("GiB", GIB, 2), Unit("MiB", MIB, 1), Unit("KiB", 1 << 10, 1), Unit("B", 1, 0))


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number:,} {what}s"
