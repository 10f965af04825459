"""How do runs become rows, for pandas, DuckDB or a spreadsheet?

    python examples/rows_for_pandas.py edgeagent-runs/A edgeagent-runs/B > cells.csv
    python examples/rows_for_pandas.py edgeagent-runs/A --requests > requests.csv

With pandas: `pandas.DataFrame(cell_rows(edgeagent.read("edgeagent-runs/A")))`. Nothing here needs
it. A missing value is None, and an empty field in CSV; it is never 0.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterator

import edgeagent

Row = dict[str, str | float | None]
NS_PER_S = 1e9


def cell_rows(run: edgeagent.Run) -> Iterator[Row]:
    """One row a cell: what it was, and the numbers that most people ask for."""
    for cell in run.result.cells:
        yield {
            "run": run.result.run_id,
            "cell": cell.cell_id,
            "engine": cell.engine,
            "concurrency": cell.concurrency,
            "prefix_cache": cell.prefix_cache,
            "repeat": cell.repeat,
            "status": cell.status,
            "output_tokens_per_s": cell.output_tokens_per_s,
            "ttft_s_p50": cell.ttft_s.p50,
            "ttft_s_p95": cell.ttft_s.p95,
            "tpot_s_p50": cell.tpot_s.p50,
            "cached_prompt_fraction": cell.cached_prompt_fraction,
        }


def request_rows(run: edgeagent.Run) -> Iterator[Row]:
    """One row a measured request, in seconds from when it was sent."""
    for trace in run.requests():
        if trace.role != "measured":
            continue
        yield {
            "run": run.result.run_id,
            "cell": trace.cell_id,
            "request": trace.index,
            "first_token_s": since(trace, trace.event_ns[0] if trace.event_ns else None),
            "last_token_s": since(trace, trace.last_token_ns),
            "output_tokens": trace.tokens,
            "error": trace.error,
        }


def since(trace: edgeagent.RequestTrace, at_ns: int | None) -> float | None:
    """Seconds from the sending of a request to a moment; None where one of them is not known."""
    if trace.sent_ns is None or at_ns is None:
        return None
    return (at_ns - trace.sent_ns) / NS_PER_S


def main() -> int:
    """Write the rows of all runs as CSV."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+")
    parser.add_argument("--requests", action="store_true", help="a row a request, not a cell")
    options = parser.parse_args()
    rows_of = request_rows if options.requests else cell_rows
    writer: csv.DictWriter[str] | None = None
    try:
        for row in (row for path in options.runs for row in rows_of(edgeagent.read(path))):
            if writer is None:
                writer = csv.DictWriter(sys.stdout, list(row))
                writer.writeheader()
            writer.writerow(row)
    except edgeagent.EdgeAgentError as error:
        print(error, file=sys.stderr)
        return error.exit_status
    return 0


if __name__ == "__main__":
    sys.exit(main())
