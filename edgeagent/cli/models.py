"""`edgeagent models pair`: the same weights for two engines."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path
from typing import Any

_PAIR = """\
Turn one GGUF file into the same weights for both engines: DIR/model-bf16.gguf for llama.cpp and
the folder DIR/hf for vLLM. Every value is unpacked and rounded once, so both files carry the same
numbers; DIR/pair.json has a digest over them, which results repeat.
"""


def add_to(commands: argparse._SubParsersAction[Any]) -> None:
    """Put the command and its options on the command line."""
    models = commands.add_parser(
        "models",
        help="prepare models for a comparison of engines",
        description="Prepare models for a comparison of engines.",
    )
    kinds = models.add_subparsers(title="commands", metavar="COMMAND", required=True)
    pair = kinds.add_parser(
        "pair",
        help="turn one GGUF file into the same weights for llama.cpp and vLLM",
        description=_PAIR,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    pair.add_argument("source", metavar="GGUF", help="the model, quantized or not")
    pair.add_argument("--out", required=True, metavar="DIR", help="folder to make")
    pair.add_argument(
        "--type",
        choices=["bf16", "f16"],
        default="bf16",
        help="type of the weights in both files (bf16)",
    )
    pair.set_defaults(run=run_pair)


def run_pair(options: argparse.Namespace) -> int:
    """Make the pair and say where it is."""
    import os

    from edgeagent.models import hashing, pair

    # A service that is told to end tidies up as one that is interrupted does.
    signal.signal(signal.SIGTERM, _end)
    memory = hashing.cache_file(dict(os.environ))
    made = pair.make(
        Path(options.source),
        Path(options.out),
        options.type,
        lambda path: hashing.sha256(path, memory),
        _progress if sys.stderr.isatty() else None,
    )
    _print(f"llama.cpp  {made.gguf}")
    _print(f"vLLM       {made.hf}")
    _print(f"weights    {made.parameters} in {options.type}, {made.weights_digest}")
    return 0


def _end(*_: object) -> None:
    sys.exit(128 + signal.SIGTERM)


def _progress(done: int, total: int) -> None:
    end = "\n" if done == total else ""
    print(f"\rtensor {done} of {total}", end=end, file=sys.stderr, flush=True)  # noqa: T201  # because the CLI prints


def _print(text: str) -> None:
    print(text)  # noqa: T201  # because the CLI prints
