"""What the process that asks NVML works out for itself."""

from __future__ import annotations

from pathlib import Path

import pynvml
import pytest

from edgeagent.probes.nvml_child import (
    Call,
    Calls,
    UnusableError,
    throttle_fields,
    throttle_metric,
    view,
)


def answering(*answers: object) -> Call:
    """A call that gives one answer after the other; an int among them is an error of NVML's."""
    left = list(answers)

    def ask(_nvml: object, _handle: object) -> object:
        answer = left.pop(0)
        if isinstance(answer, int):
            raise pynvml.NVMLError(answer)
        return answer

    return Call(f"call {id(left)}", ask)


def test_a_source_that_worked_is_kept_to_for_a_counter_must_not_jump() -> None:
    newer = answering(pynvml.NVML_ERROR_NOT_SUPPORTED, "newer")
    older = answering("older", "older still", pynvml.NVML_ERROR_NOT_SUPPORTED)
    calls = Calls(pynvml, None, again_s=0.0)

    seen = [calls.ask(newer, older) for _ in range(3)]

    assert seen == [("older", ""), ("older still", ""), (None, "not_supported")]


def test_another_call_is_only_tried_where_it_may_help() -> None:
    calls = Calls(pynvml, None, again_s=0.0)

    forbidden = calls.ask(answering(pynvml.NVML_ERROR_NO_PERMISSION), answering("older"))
    lacking = calls.ask(
        answering(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND),
        answering(pynvml.NVML_ERROR_NOT_SUPPORTED),
    )

    assert forbidden == (None, "no_permission")
    assert lacking == (None, "not_supported")


def test_a_failure_that_may_pass_is_not_asked_again_at_once() -> None:
    calls = Calls(pynvml, None, again_s=600.0)
    flaky = answering(pynvml.NVML_ERROR_TIMEOUT, "never asked here")

    assert [calls.ask(flaky) for _ in range(3)] == [(None, "timeout")] * 3


def test_a_driver_replaced_meanwhile_ends_the_process() -> None:
    with pytest.raises(UnusableError, match="lib_rm_version_mismatch"):
        Calls(pynvml, None, 0.0).ask(answering(pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH))


def test_a_lost_device_is_not_asked_call_by_call() -> None:
    calls = Calls(pynvml, None, again_s=600.0)

    lost = calls.ask(answering(pynvml.NVML_ERROR_GPU_IS_LOST))
    other = calls.ask(answering("never asked"))

    assert lost == other == (None, "gpu_is_lost")
    assert not calls.is_gone


@pytest.mark.parametrize(
    ("driver", "fields"),
    [
        ("535.183.01", ()),
        ("570.86.15", ()),  # 251 is power smoothing there
        ("575.51.03", (251, 252, 253)),
        ("580.65.06", (251, 252, 253)),
        ("580.76.05", ()),  # between the two, and not known
        ("580.82.07", (269, 270, 271)),
        ("595.78", (269, 270, 271)),
        ("None", ()),
    ],
)
def test_the_throttle_counters_are_asked_by_the_drivers_own_numbers(
    driver: str, fields: tuple[int, ...]
) -> None:
    assert throttle_fields(driver) == fields
    assert [call.name for call in throttle_metric(driver).calls][-1] == "thermal_violation"


def test_the_pid_namespace_is_known_by_its_number(tmp_path: Path) -> None:
    namespace = tmp_path / "self/ns/pid"
    namespace.parent.mkdir(parents=True)

    assert view(tmp_path, str(tmp_path)) == "whole"  # a recorded tree has no namespaces
    namespace.symlink_to("pid:[4026531836]")
    assert view(tmp_path, str(tmp_path)) == "whole"
    namespace.unlink()
    namespace.symlink_to("pid:[4026532177]")
    assert view(tmp_path, str(tmp_path)) == "namespace"


def test_wsl_is_known_by_its_kernel(tmp_path: Path) -> None:
    release = tmp_path / "proc/sys/kernel/osrelease"
    release.parent.mkdir(parents=True)
    release.write_text("5.15.153.1-microsoft-standard-WSL2\n")

    assert view(tmp_path, str(tmp_path / "proc")) == "wsl"
