"""Does the engine run where it was asked to run?

An engine that finds no usable GPU serves from the CPU and calls itself healthy. What is measured
then answers another question than the one asked, so it is refused.
"""

from __future__ import annotations

from typing import Literal

Device = Literal["auto", "cpu", "gpu"]


def device_contradiction(
    asked: Device,
    engine_on_gpu: bool | None,  # noqa: FBT001  # because it is a fact about processes, unknown being one of three answers
    offloaded_layers: int | None,
) -> str | None:
    """What contradicts the device that was asked for, as a clause; None when nothing does.

    `engine_on_gpu` says whether a probe that lists the GPU's processes found one of the engine's
    among them (None: no such list can be had), `offloaded_layers` how many layers the engine says
    that it has on a GPU (None: it does not say). A process on the GPU's list does not contradict
    `cpu`: a build for CUDA opens the device even when all layers stay on the CPU.
    """
    if asked == "gpu":
        if offloaded_layers == 0:
            return "the GPU was asked for and no layer of the model is on one"
        if engine_on_gpu is False:
            return "the GPU was asked for and none of the engine's processes uses one"
    elif asked == "cpu" and offloaded_layers:
        return f"the CPU was asked for and {offloaded_layers} layers of the model are on a GPU"
    return None
