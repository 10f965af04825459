"""Which engines are on this box, in which version, and can the service start them?

Looked for in the configuration, in PATH and where people put them. A llama-server is asked for its
version; a vLLM would take a minute, so the records of its package are asked. Both have their time.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgeagent.core import diagnosis
from edgeagent.core.diagnosis import Check, Program
from edgeagent.core.model import EngineSpec
from edgeagent.doctor.accounts import Account
from edgeagent.doctor.unit import Unit

LLAMA_SERVER = "EDGEAGENT_LLAMA_SERVER"
VERSION_S = 20.0
LIMIT_S = 3 * VERSION_S
_NAMES = {"llamacpp": "llama-server", "vllm": "vllm"}
_USUAL: Mapping[str, tuple[str, ...]] = {
    "llamacpp": (
        "/usr/local/bin/llama-server",
        "/usr/lib/llama.cpp/llama-server",
        "/opt/llama*/llama-server",
        "/opt/llama*/bin/llama-server",
        "/opt/llama*/build/bin/llama-server",
        "/var/lib/edgeagent/engines/*/llama-server",
        "~/llama.cpp/build/bin/llama-server",
        "/snap/bin/llama-server",
    ),
    "vllm": (
        "/usr/local/bin/vllm",
        "/opt/vllm*/bin/vllm",
        "/opt/venv*/bin/vllm",
        "/var/lib/edgeagent/engines/*/bin/vllm",
        "~/.local/bin/vllm",
        "~/vllm*/bin/vllm",
        "~/.venv/bin/vllm",
    ),
}
_ASK_PACKAGE = "import importlib.metadata as m; print('version: ' + m.version('vllm'))"


@dataclass(frozen=True)
class Asker:
    """In whose rights, and with which environment, programs are asked."""

    environ: Mapping[str, str]
    user: Account | None = None
    """None: in ours."""
    limit_s: float = VERSION_S
    """For each of them."""

    def run(self, argv: Sequence[str]) -> tuple[int, str]:
        """Return status and all that was said. Raises OSError, TimeoutExpired."""
        rights: dict[str, object] = {}
        if self.user is not None:
            rights = {
                "user": self.user.uid,
                "group": self.user.gid,
                "extra_groups": sorted(self.user.gids),
                "cwd": "/",
            }
        done = subprocess.run(  # type: ignore[call-overload]  # because the rights are optional
            argv,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=self.limit_s,
            check=False,
            # LLAMA_ARG_... would be obeyed even here
            env={n: v for n, v in self.environ.items() if not n.startswith("LLAMA_")},
            **rights,
        )
        said = (done.stderr + done.stdout).decode("utf-8", "replace")
        return done.returncode, said


# ----------------------------------------------------------------------------- in PATH, and nearby


def llama_server(environ: Mapping[str, str]) -> Program:
    """Find the llama-server that a sweep would take and ask it for its version."""
    named = environ.get(LLAMA_SERVER)
    path = shutil.which(named or "llama-server", path=environ.get("PATH"))
    if path is None:
        why = f"{LLAMA_SERVER} names {named}, which is no program" if named else None
        return Program(named, reason=why)
    return asked(path, Asker(environ))


def vllm(environ: Mapping[str, str]) -> Program:
    """Find the vLLM that a sweep would take, and its version if its package tells it."""
    path = shutil.which("vllm", path=environ.get("PATH"))
    return Program(None) if path is None else asked_vllm(path, Asker(environ))


def asked(path: str, asker: Asker) -> Program:
    """Ask a llama-server for its version."""
    try:
        status, said = asker.run([path, "--version"])
    except subprocess.TimeoutExpired:
        return Program(path, reason=f"it did not answer within {asker.limit_s:g} s")
    except OSError as error:
        return Program(path, reason=error.strerror)
    return Program(path, *_version(status, said))


def asked_vllm(path: str, asker: Asker) -> Program:
    """Ask the interpreter that a vLLM is started with for the version of its package."""
    python = interpreter(Path(path))
    if python is None:
        return Program(path, reason="it is no Python script")
    try:
        status, said = asker.run([str(python), "-c", _ASK_PACKAGE])
    except subprocess.TimeoutExpired:
        return Program(path, reason=f"its Python did not answer within {asker.limit_s:g} s")
    except OSError as error:
        return Program(path, reason=f"its Python {python} cannot be started: {error.strerror}")
    return Program(path, *_version(status, said))


def interpreter(script: Path) -> Path | None:
    """Return the program that a script names in its first line; None for anything else."""
    try:
        with script.open("rb") as file:
            first = file.readline(512).decode("utf-8", "replace").strip()
    except OSError:
        return None
    words = first.removeprefix("#!").split()
    if not first.startswith("#!") or not words or not words[0].startswith("/"):
        return None
    return Path(words[0])


def _version(status: int, text: str) -> tuple[str | None, str | None]:
    """Return what follows `version:`, or why there is none."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    told = next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("version:")), None
    )
    if told:
        return told[:200], None
    said = f'it said "{lines[-1][:200]}"' if lines else "it said nothing"
    return None, f"{said} and ended with status {status}" if status else said


def usual(root: Path, environ: Mapping[str, str], kind: str) -> tuple[str, ...]:
    """Return programs of this kind that stand where people put them."""
    home = environ.get("HOME", "")
    found: list[str] = []
    for pattern in _USUAL[kind]:
        if pattern.startswith("~") and not home.startswith("/"):
            continue
        placed = pattern.replace("~", home, 1) if pattern.startswith("~") else pattern
        paths = sorted(root.glob(placed.lstrip("/")))
        found += [f"/{path.relative_to(root)}" for path in paths if os.access(path, os.X_OK)]
    return tuple(dict.fromkeys(found))


def present(root: Path, environ: Mapping[str, str]) -> Iterator[Check]:
    """Judge what a sweep by hand would take, and name what stands elsewhere."""
    for kind, program, judge in (
        ("llamacpp", llama_server(environ), diagnosis.llama_server),
        ("vllm", vllm(environ), diagnosis.vllm),
    ):
        nearby = usual(root, environ, kind) if program.path is None else ()
        if nearby:
            text = f"no {_NAMES[kind]} in PATH; there is {', '.join(nearby[:3])}"
            hint = f"give --binary {shlex.quote(nearby[0])}, or put its folder into PATH"
            yield Check(f"engine.{kind}", "missing", text, hint)
        else:
            yield judge(program)


# -------------------------------------------------------------------------------- as configured


@dataclass(frozen=True)
class Stand:
    """Where configured engines are started."""

    asker: Asker
    path: str
    """Where programs without a folder are looked for."""
    unit: Unit | None = None
    """The service's, where it is the service that starts them."""
    whose: str = ""
    """Who starts them, where that is not the user who asks."""


def program_of(spec: EngineSpec, path: str) -> str | None:
    """Return the file that an engine is started with, None when there is none."""
    word = spec.command[0]
    return word if os.sep in word else shutil.which(word, path=path)


def configured(spec: EngineSpec, stand: Stand, refused: str | None = None) -> Check:
    """Judge an engine of the configuration; `refused` says why its user may not start it."""
    name = f"configured.{spec.id}"
    if spec.url is not None:
        return Check(name, "ok", f"a server at {spec.url}, which is asked when a sweep begins")
    if spec.kind == "fake" or not spec.command:
        return Check(name, "ok", "the scripted engine, which is part of the agent")
    file = program_of(spec, stand.path)
    if file is None or not os.path.exists(file):  # noqa: PTH110  # because Path raises where a folder is closed
        return _not_there(name, spec, stand, refused)
    outside = _outside(name, Path(file), stand.unit)
    if outside is not None:
        return outside
    if refused is not None:
        whose = stand.whose or "you"
        hint = f"make it executable for {whose} (chmod a+rx), with every folder above it"
        return Check(name, "fault", f"{file} cannot be started by {whose}: {refused}", hint)
    return _alive(name, spec, file, stand.asker)


def _not_there(name: str, spec: EngineSpec, stand: Stand, refused: str | None) -> Check:
    word = spec.command[0]
    if os.sep in word:
        closed = refused is not None and refused.startswith("the folder ")
        text = f"{word}: {refused}" if closed else f"{word} is not there"
        return Check(name, "fault", text, "correct binary or command in the configuration")
    service = "the service's " if stand.unit is not None else ""
    text = f"{word} is not in {service}PATH ({stand.path})"
    hint = f'name its file: [engines.{spec.id}] binary = "/…/{word}"'
    return Check(name, "fault", text, hint)


def _outside(name: str, file: Path, unit: Unit | None) -> Check | None:
    """Judge whether the service's sandbox hides the program, what it links to, or its Python."""
    if unit is None:
        return None
    script = interpreter(file)
    for path in (file, file.resolve(), *([script, script.resolve()] if script else [])):
        line = unit.hides(path)
        if line is not None:
            through = "" if path == file else f" (which needs {path})"
            text = f"{file}{through} lies outside of the service's sandbox: {line} hides it"
            hint = (
                "install it below /opt or /usr/local, or bind it in a drop-in: "
                f"BindReadOnlyPaths={path.parent}"
            )
            return Check(name, "fault", text, hint)
    return None


def _alive(name: str, spec: EngineSpec, file: str, asker: Asker) -> Check:
    if len(spec.command) > 1:
        return Check(name, "ok", f"{shlex.join(spec.command)}; its version is asked at its start")
    if spec.kind == "vllm":
        found = asked_vllm(file, asker)
        told = found.version or f"its version is asked at its start ({found.reason})"
        return Check(name, "ok", f"{told} at {file}")
    found = asked(file, asker)
    if found.version is None:
        text = f"{file} does not tell its version: {found.reason}"
        hint = "run it with --version yourself: it has to start on this box"
        return Check(name, "fault", text, hint)
    return Check(name, "ok", f"{found.version} at {file}")
