"""`edgeagent memory`: how much memory a model would take, by arithmetic alone."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeagent.errors import UsageError

if TYPE_CHECKING:
    from edgeagent.sizing import SizingRequest

_EXAMPLES = """\
examples:
  edgeagent memory model.gguf --context 8192 --slots 1,4,8,16
  edgeagent memory model.gguf --context 8192 --kv-type q8_0 --budget 8GiB
  edgeagent memory ./Qwen3-4B --engine vllm --context 4096 --budget 14GiB --json
"""

_MOST_TOKENS = 1 << 30
_MOST_SLOTS = 1024


def add_to(commands: argparse._SubParsersAction[Any]) -> None:
    """Put the command and its options on the command line."""
    memory = commands.add_parser(
        "memory",
        help="predict a model's memory for each number of slots; nothing is started",
        usage="edgeagent memory MODEL [options]",
        description="Predict by arithmetic alone how much memory a model takes with so many slots\n"
        "of so many tokens, and what fits into this box or a budget. Nothing is started.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    memory.set_defaults(run=run)
    add = memory.add_argument
    add("model", metavar="MODEL", help="GGUF file, or Hugging Face folder for vLLM")
    add("--context", type=int, default=4096, metavar="N", help="tokens per slot (4096)")
    add("--slots", default="1,4,8,16", metavar="N,N", help="numbers of slots (1,4,8,16)")
    add("--kv-type", metavar="TYPE", help="type of the cache (f16; for vLLM the model's own)")
    add("--engine", choices=["llamacpp", "vllm"], help="whose rules (default: by kind of model)")
    add(
        "--budget",
        metavar="SIZE",
        help="memory to fit into, e.g. 8GiB (default: what this box has)",
    )
    add("--reserve", metavar="SIZE", help="of it kept free (default: 5 %%, at least 512MiB)")
    add("--compute", metavar="SIZE", help="compute buffers, if known from a run or the engine")
    add("--sharing", choices=["split", "unified"], default="split",
        help="each slot owns its cache, or all share one (llama.cpp; default split)")  # fmt: skip
    add("--draft", metavar="FILE", help="a second GGUF file that drafts tokens (llama.cpp)")
    add("--block-size", type=int, metavar="N", help="tokens per block (vLLM; 16, on a CPU 128)")
    add("--json", action="store_true", help="print the answer as JSON")  # fmt: skip


def run(options: argparse.Namespace) -> int:
    """Print the answer; 0 whether it fits or not."""
    from edgeagent import sizing

    root = Path(os.environ.get("EDGEAGENT_SYSROOT") or "/")
    document = sizing.size(_request(options), root)
    if options.json:
        print(json.dumps(document, indent=2))  # noqa: T201  # because the CLI prints
    else:
        from edgeagent.report.memory import show

        show(document, sys.stdout)
    return 0


def _request(options: argparse.Namespace) -> SizingRequest:
    from edgeagent.core.sizes import amount_bytes
    from edgeagent.sizing import SizingRequest

    def amount(name: str) -> int | None:
        text = getattr(options, name)
        return None if text is None else amount_bytes(text, f"--{name}")

    if options.block_size is not None and not 1 <= options.block_size <= _MOST_TOKENS:
        raise UsageError(f"--block-size {options.block_size} is out of range: give 16, for example")
    if not 1 <= options.context <= _MOST_TOKENS:
        raise UsageError(f"--context {options.context} is out of range: give 1 to {_MOST_TOKENS}")
    return SizingRequest(
        model=Path(options.model),
        context_per_slot=options.context,
        slots=_slots(options.slots),
        engine=options.engine,
        kv_type=options.kv_type,
        sharing=options.sharing,
        budget_bytes=amount("budget"),
        reserve_bytes=amount("reserve"),
        compute_bytes=amount("compute"),
        draft=Path(options.draft) if options.draft else None,
        block_tokens=options.block_size,
    )


def _slots(text: str) -> tuple[int, ...]:
    """`1,4,8` in ascending order. Raises UsageError."""
    words = [word.strip() for word in text.split(",")]
    numbers = {int(word) for word in words if word.isascii() and word.isdigit() and len(word) <= 4}  # noqa: PLR2004  # because 1024 has four digits
    if len(numbers) != len(set(words)) or not all(1 <= n <= _MOST_SLOTS for n in numbers):
        raise UsageError(f"--slots {text!r} is no list of numbers from 1 to 1024: give 1,4,8,16")
    return tuple(sorted(numbers))
