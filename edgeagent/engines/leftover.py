"""Which containers has an agent left behind that was killed, and who ends them?

A container belongs to its runtime: when agent and keeper are killed together, as systemd does with
all of a unit, nobody tells the runtime to end it. So each of ours has a label that says whose it
is, and whoever starts the next one asks for those whose agent has gone, and removes them.

Only an agent of this boot and of our own view of the processes can be known to have gone. Of
anybody else's (a runtime on another machine, an agent in a container of its own) nothing is judged.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

LABEL = "edgeagent.agent"
_PROC = Path("/proc")


def myself() -> str | None:
    """This process, as no other is called: boot, namespace, number, start; None if it is hidden."""
    return _called(os.getpid())


def _called(pid: int) -> str | None:
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text("ascii").strip()
        namespace = os.readlink(_PROC / "self/ns/pid").strip("pid:[]")  # noqa: PTH115  # because what it names is no path
        words = (_PROC / str(pid) / "stat").read_text("latin-1").rpartition(")")[2].split()
    except OSError:
        return None
    state, started = words[0], words[19]
    return None if state in "ZX" else f"{boot}/{namespace}/{pid}/{started}"


def has_gone(owner: str, we: str) -> bool:
    """Whether the agent that a label names has ended; False where we cannot know."""
    theirs, ours = owner.split("/"), we.split("/")
    known = len(theirs) == len(ours) and theirs[:2] == ours[:2] and theirs[2].isdecimal()
    return known and _called(int(theirs[2])) != owner


async def end_left(launcher: Sequence[str], environment: Mapping[str, str]) -> tuple[str, ...]:
    """Remove every container whose agent has gone; return their names. Never raises."""
    we = myself()
    wanted = ("ps", "-a", "--filter", f"label={LABEL}", "--format", "{{.Names}}")
    names = await told((*launcher, *wanted), environment) if we is not None else None
    ended = []
    for name in (names or "").split():
        form = f'{{{{index .Config.Labels "{LABEL}"}}}}'
        owner = await told((*launcher, "inspect", "-f", form, name), environment)
        if we is not None and owner is not None and has_gone(owner, we):
            await told((*launcher, "rm", "-f", name), environment)
            ended.append(name)
    return tuple(ended)


async def told(
    command: Sequence[str], environment: Mapping[str, str], patience_s: float = 20.0
) -> str | None:
    """What a launcher answers; None when it fails or does not answer."""
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=dict(environment),
        )
    except OSError:
        return None
    try:
        said, _ = await asyncio.wait_for(process.communicate(), patience_s)
    except asyncio.TimeoutError:
        return None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    return said.decode("utf-8", "replace").strip() if process.returncode == 0 else None
