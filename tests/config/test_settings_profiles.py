"""A sweep with a name: it inherits, checked as a plan is; strangers set numbers only."""

from __future__ import annotations

import pytest
from boxes import Box
from hypothesis import given
from hypothesis import strategies as st

from edgeagent.errors import ConfigError, UsageError
from edgeagent.settings import OVERRIDES, Settings, profile_request

TEXT = """
[sweep]
repeats = 5
requests = 40
output_tokens = 32

[engines.llama]
kind = "llamacpp"
model = "/models/a.gguf"
binary = "/opt/llama-server"
slots = 4

[engines.other]
kind = "llamacpp"
model = "/models/b.gguf"

[sweep.profiles.nightly]
concurrency = [1, 2]

[sweep.profiles.short]
seconds = 10
engines.llama = { slots = 8, command = ["nice", "llama-server"] }
"""


@pytest.fixture
def settings(box: Box) -> Settings:
    return box.load(TEXT)


def test_a_profile_inherits_what_it_does_not_say(settings: Settings) -> None:
    spec = profile_request(settings, "nightly").spec
    assert (spec.concurrency, spec.repeats, spec.workload.requests) == ((1, 2), 5, 40)
    assert spec.workload.output_tokens == 32
    assert [engine.id for engine in spec.engines] == ["llama", "other"]


def test_a_profiles_own_engine_builds_on_the_shared_one(settings: Settings) -> None:
    spec = profile_request(settings, "short").spec
    (engine,) = spec.engines
    assert (engine.id, engine.model, engine.slots) == ("llama", "/models/a.gguf", 8)
    assert engine.command == ("nice", "llama-server")  # not the shared binary as well


def test_of_two_bounds_the_profiles_own_counts(settings: Settings) -> None:
    workload = profile_request(settings, "short").spec.workload
    assert (workload.seconds, workload.requests) == (10.0, None)
    workload = profile_request(settings, "short", {"requests": 8}).spec.workload
    assert (workload.seconds, workload.requests) == (None, 8)


def test_numbers_may_be_set_from_elsewhere(settings: Settings) -> None:
    override = {"concurrency": [1, 2, 4], "repeats": 1, "output_tokens": 16}
    spec = profile_request(settings, "nightly", override).spec
    assert (spec.concurrency, spec.repeats, spec.workload.output_tokens) == ((1, 2, 4), 1, 16)
    assert spec.engines == profile_request(settings, "nightly").spec.engines


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ({"prompts": "/etc/shadow"}, "override prompts is not allowed"),
        ({"engines": {"llama": {"binary": "/bin/sh"}}}, "override engines is not allowed"),
        ({"speculation": "draft:/x"}, "override speculation is not allowed"),
        ({"concurency": [1]}, "did you mean concurrency?"),
        ({"concurrency": "1,2"}, "override concurrency should be a number: it is str"),
        ({"concurrency": []}, "override concurrency should be a number"),
        ({"concurrency": [1, "2"]}, "override concurrency should be a number"),
        ({"concurrency": [0]}, "override concurrency: 0 should be greater than or equal to 1"),
        ({"concurrency": [2, 2]}, "override concurrency names 2 more than once"),
        ({"repeats": True}, "override repeats should be a number: it is bool"),
        ({"repeats": [1]}, "override repeats should be a number: it is list"),
        ({"repeats": 10**6}, "override repeats: 1000000 should be less than or equal to 1000"),
        ({"repeats": 1.5}, "override repeats: 1.5 should be a valid integer"),
        ({"seconds": float("nan")}, "override seconds: nan should be"),
    ],
)
def test_anything_else_is_refused(
    settings: Settings, override: dict[str, object], told: str
) -> None:
    with pytest.raises(UsageError) as caught:
        profile_request(settings, "nightly", override)
    assert told in str(caught.value)


def test_a_profile_that_is_not_configured_is_named_with_those_that_are(settings: Settings) -> None:
    with pytest.raises(UsageError) as caught:
        profile_request(settings, "nightlly")
    assert str(caught.value) == (
        "profile nightlly is not known, did you mean nightly?: profiles are nightly, short"
    )


def test_a_box_without_profiles_says_how_to_write_one(box: Box) -> None:
    with pytest.raises(UsageError, match=r"write a \[sweep.profiles.NAME\]"):
        profile_request(box.load(), "nightly")


def test_a_profile_without_engines_is_a_fault_of_the_configuration(box: Box) -> None:
    with pytest.raises(ConfigError, match="no engine was named"):
        profile_request(box.load("[sweep.profiles.a]\n"), "a")


@given(
    override=st.dictionaries(
        st.sampled_from([*sorted(OVERRIDES), "model", "seed", "prompts", ""]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
            lambda below: st.lists(below, max_size=3),
        ),
        max_size=3,
    )
)
def test_an_override_is_a_sweep_of_the_same_engines_or_one_refusal(
    override: dict[str, object],
) -> None:
    settings = _fixed()
    engines = profile_request(settings, "nightly").spec.engines
    try:
        spec = profile_request(settings, "nightly", override).spec
    except UsageError:
        assert override
    else:
        assert spec.engines == engines
        assert set(override) <= OVERRIDES


def _fixed() -> Settings:
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        return Box(Path(folder)).load(TEXT)
