"""What does a key-value cache of 8 bits save in memory, and what does it cost in speed?

    python examples/compare_two_settings.py MODEL.gguf --binary /opt/llama/llama-server

Both settings are measured in one sweep, in turns, so that a box that slowly warms up favours none
of them. It prints a line a setting and level; everything else is in the run folder that it names.
"""

from __future__ import annotations

import argparse
import sys

import edgeagent

MIB = 2**20


def planned(options: argparse.Namespace) -> edgeagent.Plan:
    """Two engines that differ in one key, and no reuse of prompts that would hide it."""
    engine: edgeagent.EngineOptions = {"kind": options.kind, "model": options.model}
    if options.binary:
        engine["binary"] = options.binary
    engines: dict[str, edgeagent.EngineOptions] = {
        "cache-f16": {**engine, "kv_type": "f16"},
        "cache-q8_0": {**engine, "kv_type": "q8_0"},
    }
    if not options.quick:
        return edgeagent.plan(engines=engines, concurrency=options.concurrency, prefix_cache="off")
    return edgeagent.plan(
        engines=engines,
        concurrency=options.concurrency,
        prefix_cache="off",
        requests=4,
        repeats=1,
        output_tokens=8,
        cooldown=0,
        canary=0,
        memory_repeats=0,
    )


def table(run: edgeagent.Run) -> list[str]:
    """One line a setting and level; `-` is what was not measured."""
    lines = [f"{'setting':<12} {'at once':>7} {'tokens/s':>9} {'+-':>7} {'first token, s':>14}"]
    for level in run.result.levels:
        rate = level.metrics["output_tokens_per_s"]
        first = level.metrics["ttft_s.p50"]
        half = None if rate.ci95 is None else (rate.ci95[1] - rate.ci95[0]) / 2
        lines.append(
            f"{level.engine:<12} {level.concurrency:>7} {shown(rate.mean):>9} {shown(half):>7} "
            f"{shown(first.mean, 3):>14}"
        )
    for cost in run.result.memory:
        size = cost.measured_bytes_per_slot
        mib = None if size is None else size / MIB
        lines.append(f"{cost.engine:<12} {shown(mib, 2)} MiB {cost.domain} memory per slot")
    return lines


def shown(value: float | None, digits: int = 1) -> str:
    """A number for people."""
    return "-" if value is None else f"{value:.{digits}f}"


def main() -> int:
    """Measure and print; 1 when a part of it is in doubt, as `edgeagent sweep` has it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--binary", help="the engine's program (default: from PATH)")
    parser.add_argument("--kind", choices=["llamacpp", "fake"], default="llamacpp",
        help="fake: an engine of edgeagent's own that needs no model, to try this out")  # fmt: skip
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--quick", action="store_true",
        help="a few requests, once, and no memory: to see that it works")  # fmt: skip
    parser.add_argument("--out")
    options = parser.parse_args()
    try:
        plan = planned(options)
        print(f"{len(plan.cells)} measurements, some {plan.expected_s[1] / 60:.0f} min at most")
        run = edgeagent.run(plan, out=options.out, on_note=lambda text: print(f"  {text}"))
    except edgeagent.EdgeAgentError as error:
        print(error, file=sys.stderr)
        return error.exit_status
    print("\n".join(table(run)))
    print(f"all of it: {run.path}")
    return 0 if run.message is None else 1


if __name__ == "__main__":
    sys.exit(main())
