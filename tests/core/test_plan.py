"""What the plan promises: which cells, in which order, and when they count as the same."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeagent.core.model import (
    Cooldown,
    EngineConfig,
    EngineIdentity,
    EngineSpec,
    Measure,
    ModelIdentity,
    Plan,
    Prime,
    ResetCache,
    StartEngine,
    StopEngine,
    SweepSpec,
    Warmup,
    WorkloadSpec,
)
from edgeagent.core.plan import configurations, context_per_slot, expand, remaining, requests_for
from edgeagent.errors import UsageError

LLAMA = EngineSpec("llamacpp", "llamacpp", ("llama-server",), "m.gguf")
OTHER = EngineSpec("vllm", "vllm", ("vllm",), "m")
SPEC = SweepSpec(engines=(LLAMA,), concurrency=(1, 4), repeats=2, memory_repeats=0, canary=0)


def identity(config: EngineConfig, binary: str = "b1", model: str = "m1") -> EngineIdentity:
    return EngineIdentity(
        id=config.engine.id,
        kind=config.engine.kind,
        version="1",
        binary_sha256=binary,
        argv=("llama-server", "-np", str(config.slots)),
        env=(),
        attached=False,
        model=ModelIdentity("m", "m.gguf", sha256=model),
    )


def plan(spec: SweepSpec = SPEC, binary: str = "b1", model: str = "m1") -> Plan:
    return expand(spec, {c: identity(c, binary, model) for c in configurations(spec)})


def kinds(a_plan: Plan) -> list[str]:
    return [step.kind for step in a_plan.steps]


def test_every_combination_becomes_one_cell() -> None:
    spec = replace(SPEC, engines=(LLAMA, OTHER), repeats=3)
    # 2 engines x 2 levels x cache off and on x 3 repeats
    assert len(plan(spec).cells) == 24
    assert len({cell.cell_id for cell in plan(spec).cells}) == 24


def test_a_cold_launch_warms_up_once_then_measures_each_level() -> None:
    spec = replace(SPEC, prefix_cache=("off",), repeats=1)
    assert kinds(plan(spec)) == [
        "start", "warmup", "measure", "cooldown", "measure", "cooldown", "stop",
    ]  # fmt: skip


def test_a_warm_level_forgets_and_is_primed_before_it_is_measured() -> None:
    spec = replace(SPEC, prefix_cache=("on",), repeats=1, cooldown_s=0.0)
    assert kinds(plan(spec)) == [
        "start", "warmup", "reset_cache", "prime", "measure", "reset_cache", "prime", "measure",
        "stop",
    ]  # fmt: skip
    primes = [step for step in plan(spec).steps if isinstance(step, Prime)]
    assert [prime.phases[0].requests for prime in primes] == [1, 4]


def test_the_warm_up_reaches_the_widest_load_of_its_launch() -> None:
    warmups = [step for step in plan().steps if isinstance(step, Warmup)]
    assert {warmup.cell.concurrency for warmup in warmups} == {4}
    assert {warmup.phases[0].requests for warmup in warmups} == {4}


def test_odd_repeats_run_engines_and_levels_backwards() -> None:
    spec = replace(SPEC, engines=(LLAMA, OTHER), prefix_cache=("off",))
    order = [(cell.config.engine.id, cell.concurrency, cell.repeat) for cell in plan(spec).cells]
    assert order == [
        ("llamacpp", 1, 0), ("llamacpp", 4, 0), ("vllm", 1, 0), ("vllm", 4, 0),
        ("vllm", 4, 1), ("vllm", 1, 1), ("llamacpp", 4, 1), ("llamacpp", 1, 1),
    ]  # fmt: skip


def test_each_repeat_starts_the_engine_anew() -> None:
    starts = [step for step in plan().steps if isinstance(step, StartEngine)]
    assert [(s.config.prefix_cache, s.replicate) for s in starts] == [
        ("off", 0), ("on", 0), ("on", 1), ("off", 1),
    ]  # fmt: skip


def test_sustained_load_is_led_in_and_fan_out_is_not() -> None:
    sustained = next(step for step in plan().steps if isinstance(step, Measure))
    assert [phase.role for phase in sustained.phases] == ["lead_in", "measured"]
    waves = replace(SPEC, workload=WorkloadSpec(shape="fanout"))
    fanout = next(step for step in plan(waves).steps if isinstance(step, Measure))
    assert [phase.role for phase in fanout.phases] == ["measured"]


@pytest.mark.parametrize(
    ("shape", "asked", "concurrency", "expected"),
    [
        ("sustained", None, 1, 20),
        ("sustained", None, 16, 64),
        ("sustained", 10, 16, 10),
        ("fanout", None, 8, 32),
        ("fanout", None, 3, 21),  # 20 rounded up to whole waves of 3
        ("fanout", 10, 4, 12),
    ],
)
def test_requests_of_a_cell(shape: str, asked: int | None, concurrency: int, expected: int) -> None:
    work = WorkloadSpec(shape="fanout" if shape == "fanout" else "sustained", requests=asked)
    assert requests_for(replace(SPEC, workload=work), concurrency) == expected


def test_a_cell_bounded_by_seconds_has_no_number_of_requests() -> None:
    spec = replace(SPEC, workload=WorkloadSpec(seconds=5.0))
    assert {cell.requests for cell in plan(spec).cells} == {None}


def test_the_same_question_gives_the_same_ids() -> None:
    assert plan() == plan()


@pytest.mark.parametrize(
    "changed",
    [
        plan(binary="b2"),
        plan(model="m2"),
        plan(replace(SPEC, workload=WorkloadSpec(output_tokens=65))),
        plan(replace(SPEC, workload=WorkloadSpec(seed=1))),
        plan(replace(SPEC, context=4096)),
        plan(replace(SPEC, engines=(replace(LLAMA, slots=32),))),
    ],
    ids=["binary", "model", "workload", "seed", "context", "slots"],
)
def test_whatever_determines_a_cell_changes_its_id(changed: Plan) -> None:
    assert not {c.cell_id for c in changed.cells} & {c.cell_id for c in plan().cells}


def test_what_does_not_determine_a_cell_leaves_its_id() -> None:
    more = plan(replace(SPEC, repeats=3, concurrency=(1, 4, 8), cooldown_s=9.0))
    fixed = replace(SPEC, engines=(replace(LLAMA, slots=8),))
    wider = plan(replace(fixed, repeats=3, concurrency=(1, 4, 8)))
    assert {c.cell_id for c in plan(fixed).cells} <= {c.cell_id for c in wider.cells}
    # Without explicit slots a wider sweep launches wider engines: other cells, rightly.
    assert not {c.cell_id for c in plan().cells} & {c.cell_id for c in more.cells}


def test_resuming_measures_exactly_the_missing_cells_and_warms_up_again() -> None:
    whole = plan()
    done = {cell.cell_id for cell in whole.cells[:-1]}
    left = remaining(whole, done)
    assert [s.kind for s in left.steps] == ["start", "warmup", "measure", "cooldown", "stop"]
    assert [s.cell for s in left.steps if isinstance(s, Measure)] == [whole.cells[-1]]


@given(st.sets(st.integers(0, 7)))
def test_whatever_is_done_the_rest_is_measured_once(done: set[int]) -> None:
    whole = plan()
    ids = {whole.cells[index].cell_id for index in done}
    left = remaining(whole, ids)
    measured = [s.cell.cell_id for s in left.steps if isinstance(s, Measure)]
    assert sorted(measured) == sorted(c.cell_id for c in whole.cells if c.cell_id not in ids)
    depth = 0
    for step in left.steps:
        depth += isinstance(step, StartEngine) - isinstance(step, StopEngine)
        assert depth in (0, 1)
        assert depth == 1 or isinstance(step, StopEngine | Cooldown)
    assert depth == 0
    resets = sum(isinstance(step, ResetCache) for step in left.steps)
    assert resets == sum(isinstance(step, Prime) for step in left.steps)


def test_the_context_is_what_a_request_needs_rounded_up() -> None:
    # 256 + 64 + 64 = 384, padded to 512
    assert context_per_slot(SPEC) == 512


def test_a_context_too_small_for_a_request_is_refused_with_the_number_that_would_do() -> None:
    with pytest.raises(UsageError, match="at least 384"):
        context_per_slot(replace(SPEC, context=383))
    assert context_per_slot(replace(SPEC, context=384)) == 384
