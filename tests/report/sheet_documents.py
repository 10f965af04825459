"""Result documents for the sheet: a real comparison, and what happens to it."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

from edgeagent.report.plots_values import Missing, Plot, Table
from edgeagent.report.sheet_run import SheetRun

_HERE = Path(__file__).parent
_EXAMPLE = _HERE.parents[1] / "docs" / "examples" / "llamacpp-vllm-cpu" / "result.json"

HOSTILE = (
    "</title></style><script>window.struck = 1</script>",
    "\"><img src=x onerror='window.struck=2'>",
    "'-alert(1)-' {{ 7 * 7 }} {% raw %}",
    "n" * 300,
    "صندوق الحافة \u202e gnp.exe \u2066",
    "&lt;b&gt; ]]> <!-- --> \x07 \ufffe",
)


def real() -> dict[str, Any]:
    """A real run of two engines over five levels, as it was stored."""
    document: dict[str, Any] = json.loads(_EXAMPLE.read_bytes())
    return document


def full() -> dict[str, Any]:
    """The same, with every further question answered."""
    document = real()
    extras = json.loads((_HERE / "sheet_extras.json").read_bytes())
    answers = extras.pop("answers")
    document["answers"].update(answers)
    return {**document, **extras}


def small() -> dict[str, Any]:
    """The same with one item in each list, where many sheets are made of it."""
    return {key: value[:1] if isinstance(value, list) else value for key, value in full().items()}


def partial() -> dict[str, Any]:
    """A run that was interrupted: one engine has two levels, the other did not start."""
    document = real()
    document["status"] = "partial"
    document["finished_at"] = None
    document["levels"] = document["levels"][:2]
    document["cells"] = [
        cell
        for cell in document["cells"]
        if cell["engine"] == "llamacpp" and cell["concurrency"] in {1, 4}
    ]
    document["levels"][1]["replicates"] = 1
    vllm = document["engines"][1]
    vllm.update(
        version=None, binary_sha256=None, reason="vllm did not start: no module", launches=[]
    )
    for key in ("memory", "comparison", "knee"):
        document[key] = []
    document["answers"]["7"] = {"text": "not measured: name two engines in one sweep", "cells": []}
    return document


def failed() -> dict[str, Any]:
    """A run that gave nothing."""
    document = partial()
    document["status"] = "failed"
    document["levels"] = []
    document["cells"] = []
    document["canary"] = []
    document["models"] = []
    return document


def hostile() -> dict[str, Any]:
    """Every text of a full result replaced by one that would like to be markup."""
    strings = iter(range(10**9))

    def worse(value: Any, key: str) -> Any:
        if isinstance(value, dict):
            return {inner: worse(one, inner) for inner, one in value.items()}
        if isinstance(value, list):
            return [worse(one, key) for one in value]
        if isinstance(value, str) and key != "schema":
            return f"{HOSTILE[next(strings) % len(HOSTILE)]}{value}"
        return value

    document: dict[str, Any] = worse(full(), "")
    document["files"] = {f"{name}{HOSTILE[0]}": value for name, value in document["files"].items()}
    return document


def many(levels: int, repeats: int) -> dict[str, Any]:
    """A result with so many levels and cells."""
    document = real()
    level, cell = document["levels"][0], document["cells"][0]
    document["levels"] = [{**level, "concurrency": n + 1} for n in range(levels)]
    document["cells"] = [
        {**copy.deepcopy(cell), "concurrency": n + 1, "repeat": r, "cell_id": f"{n}-{r}"}
        for n in range(levels)
        for r in range(repeats)
    ]
    ids = [one["cell_id"] for one in document["cells"]]
    for answer in document["answers"].values():
        answer["cells"] = ids
    return document


def runs(*documents: dict[str, Any]) -> list[SheetRun]:
    """Documents as the sheet takes them."""
    return [SheetRun(f"box {place + 1}", one) for place, one in enumerate(documents)]


def pictures() -> list[Plot | Missing]:
    """One plot and one that is missing."""
    svg = (
        '<svg xmlns="http://www.w3.org/2000/svg" class="plot" role="img" aria-label="A line." '
        'viewBox="0 0 400 200" width="100%"><path d="M0 200L400 0" style="stroke: currentColor"/>'
        "</svg>"
    )
    table = Table(("concurrency", "output_tokens_per_s"), ((1, 17.282983), (4, None)))
    return [
        Plot("rate", "Output tokens/s", svg, "A line that rises.", "Higher is better.", table),
        Missing("energy", "Energy per token", "no instrument: run on a box with one"),
    ]
