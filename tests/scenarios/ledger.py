"""Is every committed row received, or declared missing; and what does a scenario say in one line?

Numbers of a stream have no holes, so what was committed in a lane is every number up to the last
that its journal, or its spool, ever gave.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from agent_process import SITE
from broker_places import until
from collector import Lane, Store
from pydantic import BaseModel
from scenario_places import AgentProcess

from edgeagent.publish.messages import ClockStepValues, GapValues, LinkValues, SpoolValues


@dataclass(frozen=True)
class Account:
    """What became of all rows of a scenario. `declared` were not received, and said to be gone."""

    scenario: str
    committed: int
    received: int
    duplicates: int
    declared: int
    lost: int
    reused: int = 0
    """Numbers under which two different rows came: must never be."""
    figures: dict[str, str] = field(default_factory=dict)

    def line(self) -> str:
        more = "".join(f"; {name} {value}" for name, value in self.figures.items())
        return (
            f"{self.scenario}: {self.committed:,} committed, {self.received:,} received, "
            f"{self.duplicates:,} duplicates, {self.declared:,} declared, {self.lost:,} lost{more}"
        )


def committed(agents: Iterable[AgentProcess]) -> dict[Lane, int]:
    """Return the last number that was given in each lane."""
    last: dict[Lane, int] = {}
    for each in agents:
        node = f"{SITE}/{each.spec.node}"
        for epoch, stream, seq in each.journal():
            lane = Lane(node, epoch, "R" if stream == "R" else "M")
            last[lane] = max(last.get(lane, 0), seq)
        state = each.state()
        for stream in ("R", "M"):
            lane = Lane(node, state["epoch"], "R" if stream == "R" else "M")
            last[lane] = max(last.get(lane, 0), state["last"][stream])
    return last


def given_twice(agents: Iterable[AgentProcess]) -> int:
    """Return how many numbers of results were given to more than one row."""
    given = Counter(
        (each.spec.node, epoch, seq)
        for each in agents
        for epoch, stream, seq in each.journal()
        if stream == "R"
    )
    return sum(times > 1 for times in given.values())


def arrived(agents: Sequence[AgentProcess], database: Path, patience_s: float = 120.0) -> None:
    """Wait until the spools are empty: each row has its receipt, or the broker's word."""
    with closing(Store(database)) as store:
        until(
            lambda: all(each.state().get("rows") == 0 for each in agents),
            "the spools run empty",
            patience_s,
        )
        until(lambda: not missing(store, committed(agents)), "all is collected", patience_s)


_VALUES: Mapping[str, type[BaseModel]] = {
    "e/gap": GapValues,
    "e/spool": SpoolValues,
    "e/clock_step": ClockStepValues,
    "e/link": LinkValues,
}


def read_as_published(store: Store) -> None:
    """Hold every event against its published model; what does not fit raises."""
    for topic, model in _VALUES.items():
        for value in store.events(topic):
            model.model_validate(value)


def missing(store: Store, last: Mapping[Lane, int]) -> dict[Lane, set[int]]:
    """Return the numbers of each lane that neither came nor were declared missing."""
    found = {}
    for lane, upto in last.items():
        gaps = store.gaps(lane)
        absent = set(range(1, upto + 1)) - store.numbers(lane)
        if left := {seq for seq in absent if not any(gap.covers(seq) for gap in gaps)}:
            found[lane] = left
    return found


def account(
    scenario: str,
    agents: Sequence[AgentProcess],
    database: Path,
    figures: Mapping[str, str] | None = None,
) -> Account:
    """Sum a scenario up and print its line."""
    last = committed(agents)
    with closing(Store(database)) as store:
        read_as_published(store)
        received = {lane: store.numbers(lane) & set(range(1, last[lane] + 1)) for lane in last}
        lost = sum(len(seqs) for seqs in missing(store, last).values())
        everything = sum(last.values())
        came = sum(len(seqs) for seqs in received.values())
        made = Account(
            scenario,
            committed=everything,
            received=came,
            duplicates=store.counted("duplicates"),
            declared=everything - came - lost,
            lost=lost,
            reused=store.counted("reused") + given_twice(agents),
            figures=dict(figures or {}),
        )
    print(made.line())
    return made


def table(accounts: Sequence[Account]) -> str:
    """Return the loss table as Markdown."""
    lines = [
        "| scenario | committed | received | duplicates | declared gaps | lost |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    lines += [
        f"| {each.scenario} | {each.committed:,} | {each.received:,} | {each.duplicates:,} "
        f"| {each.declared:,} | {each.lost:,} |"
        for each in accounts
    ]
    return "\n".join(lines)
