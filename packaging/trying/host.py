"""Does the package install, run, upgrade and go, on a real Debian with a real systemd?

    packaging/try_install --release bookworm|trixie --deb FILE [--quick] [--arch arm64]
                          [--engine FOLDER --model FILE] [--results FILE] [--keep]

Makes a root file system (packaging/rootfs, kept in the cache), boots it with systemd-nspawn, and
runs packaging/trying/scenarios.py inside of it. Prints a table. Exit status: 0 nothing failed, 1
something did, 2 wrong call, 75 this machine cannot boot a system at all (said in one sentence).

Needs root, mmdebstrap and systemd-container; for another processor qemu-user-static and arch-test,
and no system is booted then: the program is run, not the service. --engine is a folder with
bin/llama-server in it, --model a GGUF file: with both, the full run also sweeps the real engine.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

TRYING = Path(__file__).resolve().parent
_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
_PATIENCE_S = {"quick": 900, "full": 2400}
_CANNOT, _WRONG = 75, 2
_DETAIL = 900
_UNREACHED = "was not reached: "
_RUNS_THE_SCENARIOS = """\
[Unit]
Description=Try what was installed
After=multi-user.target
[Service]
Type=oneshot
TimeoutStartSec=infinity
ExecStart=/usr/bin/python3 /try/scenarios.py {kinds}
StandardOutput=append:/try/log
StandardError=append:/try/log
ExecStopPost=/bin/systemctl --no-block poweroff
[Install]
WantedBy=multi-user.target
"""
_OEM = """\
[agent]
site = "oem"
node = "from-the-factory"
"""
_NAMES = """\
import sys
sys.dont_write_bytecode = True
sys.path.insert(0, sys.argv[1])
import inside, scenarios
print("\\n".join(one.name for one in inside.chosen(tuple(sys.argv[2:]))))
"""

Record = dict[str, Any]


class CannotError(Exception):
    """Why this machine cannot do it at all."""


def main() -> int:
    options = _options()
    wrong = _wrong_with(options)
    if wrong:
        _say(wrong)
        return _WRONG
    # not below /tmp, which is memory on some machines
    place = Path(tempfile.mkdtemp(prefix="edgeagent-try-", dir="/var/tmp"))
    begun = time.monotonic()
    try:
        records = _tried(options, place)
    except CannotError as why:
        _say(str(why))
        return _CANNOT
    finally:
        if options.keep:
            _say(f"kept: {place}")
        else:
            shutil.rmtree(place, ignore_errors=True)
    _table(records, options, time.monotonic() - begun)
    if options.results:
        options.results.write_text("".join(json.dumps(one) + "\n" for one in records))
    return 1 if any(one["outcome"] == "failed" for one in records) else 0


def _say(text: str) -> None:
    print(f"packaging/try_install: {text}", file=sys.stderr)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="packaging/try_install", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--release", choices=("bookworm", "trixie"), required=True)
    parser.add_argument("--deb", type=Path, required=True, help="the package")
    parser.add_argument("--arch", choices=tuple(_MACHINES), default="amd64")
    parser.add_argument("--quick", action="store_true", help="what CI has time for")
    parser.add_argument("--engine", type=Path, help="folder with bin/llama-server")
    parser.add_argument("--model", type=Path, help="GGUF file")
    parser.add_argument("--results", type=Path, help="write the table here, a JSON object a line")
    parser.add_argument("--keep", action="store_true", help="leave the root file system")
    return parser.parse_args()


def _wrong_with(options: argparse.Namespace) -> str | None:
    if os.geteuid() != 0:
        return "only root can boot a system: run it with sudo"
    if not options.deb.is_file():
        return f"{options.deb} is no file: build it with packaging/build"
    return None


def _tried(options: argparse.Namespace, place: Path) -> list[Record]:
    for tool in ("mmdebstrap", "systemd-nspawn"):
        if shutil.which(tool) is None:
            raise CannotError(
                f"{tool} is not installed: apt-get install mmdebstrap systemd-container"
            )
    laid = place / "try"
    _lay_down(options, laid)
    if _MACHINES[options.arch] != platform.machine():
        root = _root(options, place / "root")
        return _in_order(laid, ("emulated",), lambda: _emulated(root, laid))
    kinds = ("quick",) if options.quick else ("quick", "full")
    root = _root(options, place / "root")
    records = _in_order(laid, kinds, lambda: _booted(root, laid, kinds))
    if all(one["detail"].startswith(_UNREACHED) for one in records):
        raise CannotError(f"no system could be booted here: {records[0]['detail']}")
    if not options.quick:
        shutil.rmtree(root)
        root = _root(options, place / "root")
        _bake(root, laid)
        records += _in_order(laid, ("image",), lambda: _booted(root, laid, ("image",)))
    return records


# ------------------------------------------------------------------------- what the system is given


def _lay_down(options: argparse.Namespace, laid: Path) -> None:
    laid.mkdir()
    laid.chmod(0o755)
    shutil.copy(options.deb, laid / "package.deb")
    for name in ("inside.py", "scenarios.py", "prober.py"):
        shutil.copy(TRYING / name, laid / name)
    if options.quick:
        (laid / "quick").touch()
        return
    for name, suffix in (("newer", "+try1"), ("newest", "+try2")):
        _repacked(options.deb, laid / f"{name}.deb", suffix)
    if options.engine and options.model:
        shutil.copytree(options.engine, laid / "llama", symlinks=True)
        shutil.copy(options.model, laid / "model.gguf")


def _repacked(deb: Path, target: Path, suffix: str) -> None:
    """The same package under a higher version, with another configuration file."""
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        tree = Path(folder) / "tree"
        subprocess.run(["dpkg-deb", "-R", deb, tree], check=True)
        control = tree / "DEBIAN/control"
        lines = control.read_text().splitlines()
        changed = [f"{line}{suffix}" if line.startswith("Version:") else line for line in lines]
        control.write_text("\n".join(changed) + "\n")
        config = tree / "etc/edgeagent/edgeagent.toml"
        config.write_text(f"{config.read_text()}# newer {suffix}\n")
        subprocess.run(
            ["dpkg-deb", "--root-owner-group", "-Zgzip", "-z1", "-b", tree, target],
            check=True,
            stdout=subprocess.DEVNULL,
        )


def _root(options: argparse.Namespace, root: Path) -> Path:
    made = subprocess.run(
        [TRYING.parent / "rootfs", options.release, options.arch],
        check=False,
        stdout=subprocess.PIPE,
        text=True,
    )
    if made.returncode != 0:
        raise CannotError("the root file system could not be made; see above")
    root.mkdir()
    subprocess.run(["tar", "-xf", made.stdout.strip(), "-C", root], check=True)
    shutil.copy("/etc/resolv.conf", root / "etc/resolv.conf")
    # nothing of this system is to outlast a power cut, and each file's way to the disk takes long
    (root / "etc/dpkg/dpkg.cfg.d").mkdir(exist_ok=True)
    (root / "etc/dpkg/dpkg.cfg.d/try").write_text("force-unsafe-io\n")
    (root / "etc/apt/apt.conf.d/90try").write_text(_apt_settings())
    return root


def _apt_settings() -> str:
    """How this machine's apt reaches a mirror, proxies and all."""
    told = subprocess.run(["apt-config", "dump"], check=False, stdout=subprocess.PIPE, text=True)
    names = ("Acquire::http", "Acquire::https", "Acquire::Check")
    lines = [
        line for line in told.stdout.splitlines() if line.startswith(names) and ' ""' not in line
    ]
    return "\n".join(lines) + "\n"


def _bake(root: Path, laid: Path) -> None:
    """Install without a running systemd, as a builder of images does."""
    folder = root / "etc/edgeagent/conf.d"  # the OEM's own file is there before the package is
    folder.mkdir(parents=True)
    (folder / "50-oem.toml").write_text(_OEM)
    install = "apt-get install -y -q --no-install-recommends /try/package.deb"
    words = f"{install} && systemctl enable edgeagent"
    failure = _nspawn(root, laid, "/bin/sh", "-c", words, patience_s=_PATIENCE_S["full"])
    if failure:
        _say(f"the image: {failure}")


# ---------------------------------------------------------------------------------- how it is run


def _booted(root: Path, laid: Path, kinds: tuple[str, ...]) -> str | None:
    unit = root / "etc/systemd/system/try-install.service"
    unit.write_text(_RUNS_THE_SCENARIOS.format(kinds=" ".join(kinds)))
    wanted = root / "etc/systemd/system/multi-user.target.wants"
    wanted.mkdir(exist_ok=True)
    (wanted / unit.name).symlink_to(f"../{unit.name}")
    patience_s = _PATIENCE_S["quick" if kinds == ("quick",) else "full"]
    return _nspawn(root, laid, "-b", patience_s=patience_s)


def _emulated(root: Path, laid: Path) -> str | None:
    words = ("/usr/bin/python3", "/try/scenarios.py", "emulated")
    return _nspawn(root, laid, *words, patience_s=_PATIENCE_S["full"])


def _nspawn(root: Path, laid: Path, *words: str, patience_s: float) -> str | None:
    """Run it; None, or what went wrong in a sentence."""
    command = ["systemd-nspawn", "-q", "-D", str(root), "--register=no", "--keep-unit",
               "--console=pipe", f"--bind={laid}:/try", *words]  # fmt: skip
    # systemd in version 2 of the cgroups, whatever this machine uses for itself
    environ = {**os.environ, "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1"}
    log = laid / "console"
    with log.open("ab") as out, subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
        env=environ,
    ) as process:  # fmt: skip
        try:
            status = process.wait(patience_s)
        except subprocess.TimeoutExpired:
            _end(process)
            return f"it did not end within {patience_s:g} s; its last words: {_tail(log)}"
    return None if status == 0 else f"systemd-nspawn ended with {status}: {_tail(log)}"


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()


def _tail(log: Path) -> str:
    return " ".join(log.read_text("utf-8", "replace").split())[-400:]


# ------------------------------------------------------------------------------- what came of it


def _in_order(laid: Path, kinds: tuple[str, ...], work: Callable[[], str | None]) -> list[Record]:
    """Let it work; the records of these scenarios, with one for each that was never reached."""
    results = laid / "results.jsonl"
    results.write_text("")
    failure = work()
    records: list[Record] = [json.loads(line) for line in results.read_text().splitlines()]
    reached = {one["scenario"] for one in records}
    why = f"{_UNREACHED}{failure or 'the system went down'}"
    return records + [
        {"scenario": name, "outcome": "failed", "detail": why, "seconds": 0.0}
        for name in _known(kinds)
        if name not in reached
    ]


def _known(kinds: tuple[str, ...]) -> list[str]:
    told = subprocess.run(
        [sys.executable, "-c", _NAMES, TRYING, *kinds],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return told.stdout.splitlines()


def _table(records: list[Record], options: argparse.Namespace, took_s: float) -> None:
    width = max(len(one["scenario"]) for one in records)
    print(f"Debian {options.release}, {options.arch}, {options.deb.name}")
    for one in records:
        detail = " ".join(one["detail"].split())[:_DETAIL]
        print(f"{one['scenario']:<{width}}  {one['outcome']:<7} {one['seconds']:6.1f} s  {detail}")
    outcomes = [one["outcome"] for one in records]
    counts = ", ".join(f"{outcomes.count(word)} {word}" for word in ("ok", "failed", "skipped"))
    print(f"{counts}; {took_s:.0f} s in all")


if __name__ == "__main__":
    sys.exit(main())
