"""An engine that is not where it was asked to be is found out."""

from __future__ import annotations

import pytest

from edgeagent.core.device import Device, device_contradiction


@pytest.mark.parametrize(
    ("asked", "on_gpu", "layers", "words"),
    [
        ("gpu", None, 0, "no layer of the model is on one"),
        ("gpu", True, 0, "no layer of the model is on one"),
        ("gpu", False, None, "none of the engine's processes uses one"),
        ("gpu", False, 31, "none of the engine's processes uses one"),
        ("cpu", None, 31, "31 layers of the model are on a GPU"),
    ],
)
def test_what_contradicts_is_said(
    asked: Device,
    on_gpu: bool | None,  # noqa: FBT001  # because it is one of three answers
    layers: int | None,
    words: str,
) -> None:
    assert words in (device_contradiction(asked, on_gpu, layers) or "")


@pytest.mark.parametrize(
    ("asked", "on_gpu", "layers"),
    [
        ("gpu", True, 31),
        ("gpu", None, 31),
        ("gpu", True, None),  # vLLM does not tell layers
        ("gpu", None, None),  # nothing is known, so nothing contradicts
        ("cpu", None, 0),
        ("cpu", True, 0),  # a build for CUDA opens the device all the same
        ("cpu", False, None),
        ("auto", False, 0),
        ("auto", True, 31),
    ],
)
def test_what_does_not_contradict_is_believed(
    asked: Device,
    on_gpu: bool | None,  # noqa: FBT001  # because it is one of three answers
    layers: int | None,
) -> None:
    assert device_contradiction(asked, on_gpu, layers) is None
