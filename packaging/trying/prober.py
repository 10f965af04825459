#!/usr/bin/python3 -I
"""An engine that first finds out what an engine can do inside of the service.

Started by the agent like any other engine, so it stands in the service's own sandbox: namespaces,
filters of system calls, groups, cgroup. It writes what it found, then becomes the scripted engine.
"""

import ctypes
import json
import os
import socket
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

FOUND = Path("/var/lib/edgeagent/try/probe.json")
CLOSED = (
    "/etc", "/etc/edgeagent", "/usr", "/usr/lib/edgeagent", "/boot", "/opt", "/srv", "/home",
    "/root", "/run", "/var/lib", "/var/log", "/sys/fs", "/proc/sys/kernel", "/",
)  # fmt: skip
OPEN = ("/var/lib/edgeagent", "/var/cache/edgeagent", "/run/edgeagent", "/tmp")
READ = ("/proc/meminfo", "/proc/1/stat", "/etc/edgeagent/commands.key", "/etc/shadow")
_NEW_USER_NAMESPACE, _MS_BIND = 0x10000000, 4096
_AGENT = ("/usr/lib/edgeagent/app", "/usr/lib/edgeagent/vendor")
_BECOME = (
    f"import sys, runpy; sys.path[:0] = {list(_AGENT)!r}; "
    "runpy.run_module('edgeagent.engines.scripted', run_name='__main__', alter_sys=True)"
)


def _why(what: Callable[[], object]) -> str:
    """Return the kernel's word for why not; "done" when there was none."""
    try:
        what()
    except OSError as error:
        return os.strerror(error.errno or 0)
    return "done"


def _write(folder: str) -> None:
    path = Path(folder) / "edgeagent-was-here"
    path.write_text("x")
    path.unlink()


def _call(name: str, *arguments: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) != 0:
        raise OSError(ctypes.get_errno(), "")


def _set_bit() -> None:
    path = Path("/var/lib/edgeagent/try/setuid")
    path.write_text("")
    try:
        path.chmod(0o4755)
    finally:
        path.unlink()


def _status() -> dict[str, list[str]]:
    names = ("Uid", "Gid", "Groups", "NoNewPrivs", "Seccomp", "CapEff", "CapBnd")
    rows = [line.partition(":") for line in Path("/proc/self/status").read_text().splitlines()]
    return {name: values.split() for name, _, values in rows if name in names}


def _listed(folder: str) -> list[str]:
    return sorted(path.name for path in Path(folder).iterdir())


def probe() -> dict[str, object]:
    credentials = os.environ.get("CREDENTIALS_DIRECTORY")
    return {
        "writes": {folder: _why(partial(_write, folder)) for folder in (*CLOSED, *OPEN)},
        "calls": {
            "mount": _why(lambda: _call("mount", b"/usr", b"/opt", b"", _MS_BIND, None)),
            "unshare": _why(lambda: _call("unshare", _NEW_USER_NAMESPACE)),
            "sethostname": _why(lambda: _call("sethostname", b"x", 1)),
            "setuid bit": _why(_set_bit),
            "packet socket": _why(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW).close()),
            "setuid(0)": _why(lambda: os.setuid(0)),
            "kill the init": _why(lambda: os.kill(1, 0)),
        },
        "reads": {path: _why(Path(path).read_bytes) for path in READ},
        "folders": {path: _why(partial(_listed, path)) for path in ("/home", "/root", "/dev")},
        "credentials": _listed(credentials) if credentials else None,
        "status": _status(),
        "cgroup": Path("/proc/self/cgroup").read_text(),
        "oom_score_adj": Path("/proc/self/oom_score_adj").read_text().strip(),
    }


if "--port" in sys.argv:
    FOUND.write_text(json.dumps(probe(), indent=1))
os.execv("/usr/bin/python3", ["python3", "-I", "-c", _BECOME, *sys.argv[1:]])  # noqa: S606
