"""The table of `edgeagent memory` can be read: nothing is cut off, and advice names options."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from edgeagent.report.memory import NONE, render

MIB = 1 << 20


def row(slots: int, kv_mib: float, fits: str = "yes", headroom_mib: float = 100) -> dict[str, Any]:
    return {
        "slots": slots,
        "kv_bytes": int(kv_mib * MIB),
        "state_bytes": 0,
        "output_bytes": slots * 192 * 1024,
        "metadata_bytes": slots * 48 * 1024,
        "draft_bytes": 0,
        "weights_bytes": 94 * MIB,
        "compute_bytes": None,
        "total_bytes": int((kv_mib + 94) * MIB) + slots * 240 * 1024,
        "fits": {"yes": True, "no": False, "unknown": None}[fits],
        "headroom_bytes": int(headroom_mib * MIB),
    }


DOCUMENT: dict[str, Any] = {
    "model": "/models/SmolLM2-135M.gguf",
    "engine": "llamacpp",
    "architecture": "llama",
    "quantization": "Q4_1",
    "context_length": 8192,
    "kv_type": "f16",
    "sharing": "split",
    "context_per_slot": 1024,
    "reason": None,
    "weights_bytes": 94 * MIB,
    "most_slots": 256,
    "budget": {
        "total_bytes": 1024 * MIB,
        "reserve_bytes": 512 * MIB,
        "usable_bytes": 512 * MIB,
        "source": "host",
        "class": "cpu",
        "reason": None,
    },
    "kv_bytes_per_slot": int(22.5 * MIB),
    "state_bytes_per_slot": 0,
    "output_bytes_per_slot": 192 * 1024,
    "metadata_bytes_per_slot": 48 * 1024,
    "draft_bytes_per_slot": 0,
    "bytes_per_slot": int(22.5 * MIB) + 240 * 1024,
    "compute_bytes": None,
    "rows": [row(1, 22.5, "yes", 395), row(32, 720, "no", -309.5)],
    "max_slots": 18,
    "max_context_per_slot": 512,
    "advice": [
        {"change": "slots", "slots": 18, "context_per_slot": 1024, "kv_type": "f16",
         "total_bytes": 503 * MIB},
        {"change": "kv_type", "slots": 32, "context_per_slot": 1024, "kv_type": "q8_0",
         "total_bytes": 484 * MIB},
        {"change": "context", "slots": 32, "context_per_slot": 512, "kv_type": "f16",
         "total_bytes": 461 * MIB},
    ],
}  # fmt: skip


def document(**changes: Any) -> dict[str, Any]:
    return {**copy.deepcopy(DOCUMENT), **changes}


def lines(shown: dict[str, Any], width: int = 100) -> list[str]:
    return render(shown, width).splitlines()


def line_with(words: str, shown: dict[str, Any]) -> str:
    found = [line for line in lines(shown) if words in line]
    assert found, render(shown, 100)
    return found[0]


def test_the_whole_of_it() -> None:
    assert (
        render(DOCUMENT, 80)
        == """
SmolLM2-135M.gguf (llama, Q4_1)
llama.cpp, 1,024 tokens per slot, f16 cache

         cache   output   records   weights   total          headroom
 slots     MiB      MiB       MiB       MiB     MiB   fits        MiB
 ────────────────────────────────────────────────────────────────────
     1    22.5      0.2       0.0      94.0   116.7   yes       395.0
    32   720.0      6.0       1.5      94.0   821.5   no       -309.5

 one more  22.7 MiB: 22.5 MiB cache, 192 KiB output, 48.0 KiB records
 budget    1.00 GiB available on this box without a GPU, less 512 MiB in
           reserve: 512 MiB to use
 fits      at most 18 slots of 1,024 tokens
           at most 512 tokens in each of 32 slots
 instead   --slots 18: 18 slots of 1,024 tokens take 503 MiB
           --kv-type q8_0: 32 slots of 1,024 tokens take 484 MiB
           --context 512: 32 slots of 512 tokens take 461 MiB
 note      compute buffers have no formula and are not in the total; the reserve
           is for them
"""
    )


@pytest.mark.parametrize("width", [80, 100, 120])
def test_no_number_is_cut_off(width: int) -> None:
    large = document(rows=[row(16, 40_000)])
    large["rows"][0] |= {"state_bytes": 3 * MIB, "draft_bytes": 5 * MIB, "compute_bytes": MIB}
    for shown in (DOCUMENT, large):
        text = render(shown, width)
        assert "…" not in text
        assert max(map(len, text.splitlines())) <= width


def test_large_totals_are_in_gib() -> None:
    shown = document(rows=[row(16, 40_000)])
    assert "GiB" in line_with("slots     GiB", shown)
    assert "39.06" in line_with("    16", shown)


def test_columns_that_say_nothing_are_left_out() -> None:
    text = render(DOCUMENT, 100)
    for word in ("state", "draft", "compute\n"):
        assert word not in text
    hybrid = document(rows=[{**row(1, 22.5), "state_bytes": 75 * MIB, "compute_bytes": 15 * MIB}])
    heading = line_with("weights", hybrid)
    assert "state" in heading
    assert "compute" in heading


def test_an_unknown_budget_says_so_and_judges_nothing() -> None:
    budget = dict.fromkeys(DOCUMENT["budget"]) | {"class": "dgpu", "reason": "give --budget"}
    text = render(document(budget=budget, advice=[], max_slots=None), 100)
    assert "budget    give --budget" in text
    assert "headroom" not in text
    assert "at most" not in text
    assert "lie in host memory, not on the card" in text


def test_what_cannot_be_computed_is_said_in_place_of_a_table() -> None:
    text = render(document(reason="this cannot be computed: it is odd"), 120)
    assert "unknown  this cannot be computed: it is odd; its weights take 94.0 MiB" in text
    assert "headroom" not in text


def test_an_unknown_answer_is_a_dash() -> None:
    assert f" {NONE} " in line_with("     1 ", document(rows=[row(1, 22.5, "unknown")]))


def test_blocks_are_told_for_vllm() -> None:
    shown = document(
        engine="vllm",
        model="/models/SmolLM2/",
        sharing=None,
        output_bytes_per_slot=None,
        metadata_bytes_per_slot=0,
        block_tokens=128,
        bytes_per_block=2_949_120,
        blocks_per_slot=8,
        rows=[{**row(4, 92.8), "blocks": 33}],
    )
    assert lines(shown)[1] == "SmolLM2 (llama, Q4_1)"
    assert "(8 blocks of 128 tokens, 2.81 MiB each)" in line_with("one more", shown)
    assert "--num-gpu-blocks-override 33 holds 4 slots" in render(shown, 120)


def test_limits_that_are_not_the_budgets_are_told() -> None:
    shown = document(max_slots=256, max_context_per_slot=8192, advice=[])
    assert "256 slots of 1,024 tokens (more is not looked for)" in line_with("at most 256", shown)
    assert "8,192 tokens in each of 32 slots, all it was trained for" in line_with("8,192", shown)


def test_where_nothing_fits_a_smaller_model_is_the_advice() -> None:
    found = {"change": "weights", "slots": 1, "context_per_slot": 256, "kv_type": "f16",
             "total_bytes": 99 * MIB}  # fmt: skip
    shown = document(max_slots=0, max_context_per_slot=0, advice=[found])
    assert "neither one slot of 1,024 tokens nor 32 of any" in line_with("neither", shown)
    assert "a smaller model: 1 slot of 256 tokens of this one take 99.0 MiB" in line_with(
        "instead", shown
    )


def test_more_context_than_the_model_knows_is_noted() -> None:
    assert "was trained for 512 tokens" in line_with("note", document(context_length=512))


def test_markup_in_a_name_is_a_name() -> None:
    assert "[bold]x.gguf" in render(document(model="/m/[bold]x.gguf"), 100)
