"""Two engines side by side, a second operator, and how many requests are served well."""

from __future__ import annotations

from pathlib import Path

import pytest
from agent import edgeagent, fake, result, sentence, sweep

SHORT = ("--requests=6", "--warmup=1", "--cooldown=0", "--prefix-tokens=48", "--prompt-tokens=16",
         "--memory-repeats=0", "--canary=0", "--prefix-cache=off", "--settle=0.3")  # fmt: skip


def two_engines(folder: Path, quick_ms: int, slow_ms: int) -> Path:
    """A plan of two scripted engines that differ in their time between tokens."""
    engines = "".join(
        f"""
[engines.{name}]
kind = "fake"
args = ["--ttft-ms", "40", "--itl-ms", "{itl_ms}"]
"""
        for name, itl_ms in (("quick", quick_ms), ("slow", slow_ms))
    )
    plan = folder / "plan.toml"
    plan.write_text(f"[sweep]\nconcurrency = [1, 2]\n{engines}")
    return plan


def test_two_engines_that_differ_are_told_apart_by_every_metric_that_differs(
    tmp_path: Path,
) -> None:
    plan = two_engines(tmp_path, quick_ms=10, slow_ms=30)
    folder = tmp_path / "run"
    edgeagent("sweep", plan, *SHORT, "--repeats=3", "--output-tokens=8", "--out", folder, "--quiet")
    document = result(folder)
    by_metric = {found["metric"]: found for found in document["comparison"]}
    rates = by_metric["output_tokens_per_s"]
    assert rates["outcome"] in ("a_always", "b_always")
    winner = rates["a"] if rates["outcome"] == "a_always" else rates["b"]
    assert winner == "quick"
    for level in rates["levels"]:
        assert max(level["factor"], 1 / level["factor"]) == pytest.approx(1.9, rel=0.35)
    assert "quick" in document["answers"]["7"]["text"]
    order = [launch for engine in document["engines"] for launch in engine["launches"]]
    assert len(order) == 6, "each repeat restarts both"
    assert edgeagent("verify", folder).returncode == 0
    compared = edgeagent("compare", folder, "--json")
    assert compared.returncode == 0, compared.stderr
    assert "quick" in compared.stdout


def test_one_repeat_is_never_enough_to_tell_two_engines_apart(tmp_path: Path) -> None:
    plan = two_engines(tmp_path, quick_ms=5, slow_ms=30)
    folder = tmp_path / "run"
    edgeagent("sweep", plan, *SHORT, "--repeats=1", "--output-tokens=4", "--out", folder, "--quiet")
    outcomes = {found["outcome"] for found in result(folder)["comparison"]}
    assert outcomes == {"unresolved"}


def test_a_second_operator_who_stalls_the_others_is_measured_as_such(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    engine = fake("--stall-ms=600", "--stall-tokens=150", ttft_ms=40, itl_ms=20)
    sweep(
        folder, engine, "--prefix-cache=off", "--concurrency=2", "--second-operator",
        "--context=512", "--output-tokens=8",
    )  # fmt: skip
    document = result(folder)
    (found,) = document["interference"]
    # How exactly a stall is measured is tested where nothing else runs (test_second_operator.py);
    # here, on a box that others share, a single launch may have a window spoiled.
    assert 0.3 < found["effects"]["gap_typical_s"]["value"] < 0.9
    assert found["operator"]["failed"] == 0
    assert found["effects"]["lost_tokens"]["value"] > 0
    assert "second operator" in document["answers"]["6"]["text"]
    assert edgeagent("verify", folder).returncode == 0


def test_the_capacity_is_looked_for_beyond_the_listed_levels_up_to_the_slots(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "run"
    sweep(
        folder, fake(ttft_ms=20, itl_ms=5), "--prefix-cache=off", "--concurrency=1", "--slots=3",
        "--capacity", "--slo=ttft=30",
    )  # fmt: skip
    document = result(folder)
    (found,) = document["capacity"]
    assert (found["concurrency"], found["limited_by"]) == (3, "slots")
    assert [one["concurrency"] for one in found["evaluations"]] == [1, 2, 3]
    assert {cell["concurrency"] for cell in document["cells"]} == {1}
    assert "serves 3 at once" in document["answers"]["2"]["text"]
    assert edgeagent("verify", folder).returncode == 0


def test_a_limit_that_nobody_keeps_is_a_capacity_of_none(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    sweep(
        folder, fake(ttft_ms=60, itl_ms=5), "--prefix-cache=off", "--concurrency=1",
        "--capacity", "--slo=ttft=0.001",
    )  # fmt: skip
    (found,) = result(folder)["capacity"]
    assert (found["concurrency"], found["limited_by"]) == (0, "slo")


def test_a_capacity_without_a_limit_is_refused(tmp_path: Path) -> None:
    done = sweep(tmp_path / "run", fake(), "--capacity")
    assert done.returncode == 2
    assert "--slo" in sentence(done)


def test_help_names_the_further_questions() -> None:
    done = edgeagent("sweep", "--help")
    assert "--second-operator" in done.stdout
    assert "--capacity" in done.stdout
