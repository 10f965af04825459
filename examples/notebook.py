"""How many requests at once does a server that runs already take? To be followed in a notebook.

Each `# %%` is a cell: VS Code opens the file as a notebook, and jupytext makes one of it. Jupyter
has an event loop running in every cell; `edgeagent.run` does not mind, since it brings its own.
"""

# %% The server. Whoever started it: nothing of it is started, stopped or reconfigured here.
import os

import edgeagent

url = os.environ.get("SERVER_URL", "http://127.0.0.1:8080")

# %% The plan. Looking at it costs nothing: how many measurements, how long?
plan = edgeagent.plan(
    engines={"server": {"url": url}},
    concurrency=[1, 2, 4],
    requests=8,
    repeats=1,
    output_tokens=16,
    prefix_cache="off",
)
print(f"{len(plan.cells)} measurements, {plan.expected_s[0]:.0f} to {plan.expected_s[1]:.0f} s")


# %% The run. The stop button ends it in order; `edgeagent.run(folder)` would measure the rest.
def show(state: edgeagent.ProgressState) -> None:
    """One line that is written over and over; it comes from the sweep's thread."""
    print(f"\r{state.step}/{state.steps} {state.what:<40}", end="")


run = edgeagent.run(plan, out=os.environ.get("RUN_FOLDER"), on_progress=show)
print(f"\n{run.path}: {run.result.status}")

# %% The answer: tokens a second of all requests together, and the wait for the first one.
for cell in run.result.cells:
    print(cell.concurrency, cell.output_tokens_per_s, "tokens/s", cell.ttft_s.p50, "s", cell.status)

# %% The doubts. A number without them is half of what was measured.
for finding in run.result.findings:
    print(f"{finding.severity}: {finding.text}")

# %% One request, as it happened: when each token came, in seconds from the first one.
trace = next(trace for trace in run.requests() if trace.role == "measured" and trace.event_ns)
print([round((at_ns - trace.event_ns[0]) / 1e9, 4) for at_ns in trace.event_ns])
