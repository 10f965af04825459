"""What must hold when the package is installed, run, upgraded and removed?

Run inside of a booted system, in this order: later scenarios stand on what earlier ones have left.
"""

from __future__ import annotations

import grp
import json
import os
import pwd
import re
import signal
import socket
import sqlite3
import stat
import sys
import time
from pathlib import Path
from typing import Any

from inside import (
    CONFIG,
    OURS,
    PLACE,
    SERVICE,
    STATE,
    Failed,
    Left,
    check,
    configure,
    drop_in,
    engines,
    journal,
    must,
    processes_of,
    restart,
    result_of,
    run,
    run_all,
    runs,
    scenario,
    show,
    until,
)

PROBED = STATE / "try/probe.json"
LLAMA, MODEL = PLACE / "llama/bin/llama-server", PLACE / "model.gguf"
NVMAP = Path("/sys/kernel/debug/nvmap/iovmm/clients")

CONFIGURED = """\
[agent]
site = "try"
node = "box"
[mqtt]
enabled = true
host = "127.0.0.1"
port = 1
[mqtt.commands]
hmac_key_file = "credential:commands-key"
[telemetry]
sample_interval_s = 0.5
[schedule]
idle_for_s = 1
max_foreign_cpu = 1.0
max_foreign_gpu = 1.0
[sweep]
concurrency = [1]
prefix_cache = "off"
requests = 4
repeats = 1
warmup = 1
cooldown = 0
prefix_tokens = 48
prompt_tokens = 16
output_tokens = 8
memory_repeats = 0
canary = 0
settle = 0.3
[sweep.profiles.scripted.engines.scripted]
kind = "fake"
command = ["/var/lib/edgeagent/try/prober"]
args = ["--ttft-ms", "60", "--itl-ms", "20"]
[sweep.profiles.long]
seconds = 600
[sweep.profiles.long.engines.scripted]
kind = "fake"
args = ["--ttft-ms", "60", "--itl-ms", "20"]
[sweep.profiles.real]
concurrency = [1, 2]
start_timeout = 240
[sweep.profiles.real.engines.llamacpp]
kind = "llamacpp"
binary = "/opt/llama/bin/llama-server"
model = "/var/lib/edgeagent/models/model.gguf"
args = ["--threads", "2"]
"""

# Short times, so that what happens after a minute on a box is seen in seconds.
HASTE = """\
[Service]
WatchdogSec=8
RestartSec=1s
LoadCredential=commands-key:/etc/edgeagent/commands.key
"""


# ---------------------------------------------------------------------------------- installation


@scenario("install")
def install() -> str:
    quick = (PLACE / "quick").exists()
    if not quick:
        must("apt-get", "update", "-qq")
    recommended = ("--no-install-recommends",) if quick else ()
    text = must("apt-get", "install", "-y", "-q", *recommended, PLACE / "package.deb")
    state = must("dpkg-query", "-W", "-f", "${Status} ${Version}", "edgeagent")
    check(state.startswith("install ok installed"), f"dpkg says {state}")
    check(
        "systemctl" in text or "edgeagent config" in text,
        f"no next step was printed: {text[-400:]}",
    )
    unit = show()
    check(unit["ActiveState"] == "inactive", f"the service is {unit['ActiveState']} already")
    check(unit["UnitFileState"] == "disabled", f"the service is {unit['UnitFileState']}")
    version = must("/usr/bin/edgeagent", "--version", user="nobody").strip()
    return f"{state.split()[-1]}: {version}; not enabled, not started, next step printed"


@scenario("users and groups")
def users() -> str:
    for name in ("edgeagent", "edgeagent-fleet"):
        shell = pwd.getpwnam(name).pw_shell
        check(shell.endswith("nologin"), f"{name} may log in, with {shell}")
    for name in ("video", "render"):
        check("edgeagent" in grp.getgrnam(name).gr_mem, f"edgeagent is not in the group {name}")
    owner = CONFIG.stat()
    check((owner.st_uid, stat.S_IMODE(owner.st_mode)) == (0, 0o644), f"{CONFIG}: {owner}")
    return "edgeagent (video, render) and edgeagent-fleet, without a login"


@scenario("as shipped")
def as_shipped() -> str:
    drop_in("50-try.conf", HASTE.replace("LoadCredential", "#"))
    done = run("systemctl", "start", SERVICE)
    unit = show()
    check(done.status == 0 and unit["ActiveState"] == "active", f"{unit}: {journal()}")
    check("no broker is configured" in unit["StatusText"], f"status: {unit['StatusText']!r}")
    return f"it runs, and says so: {unit['StatusText']}"


@scenario("bad configuration")
def bad_configuration() -> str:
    configure('[mqtt]\nprot = 1\nenabled = "perhaps"\n')
    checked = run("edgeagent", "config", "check")
    check(checked.status == 78, f"config check: {checked}")
    check(f"{OURS}:2" in checked.text, f"config check names no line: {checked.text}")
    done = run("systemctl", "restart", SERVICE)
    check(done.status != 0, "it started with a bad configuration")
    time.sleep(4)  # longer than RestartSec: it has had the time to try again
    unit = show()
    seen = (unit["ExecMainStatus"], unit["NRestarts"], unit["ActiveState"])
    check(seen == ("78", "0", "failed"), f"status, restarts, state: {seen}: {journal()}")
    check("mqtt.prot" in journal(), f"the log does not name the key: {journal()}")
    return "exit 78 once, not tried again; the log names the file, the line and the key"


@scenario("READY")
def ready() -> str:
    key = Path("/etc/edgeagent/commands.key")
    key.write_text("0123456789abcdef0123456789abcdef\n")
    key.chmod(0o400)
    drop_in("50-try.conf", HASTE)
    configure(CONFIGURED)
    place = STATE / "try"
    place.mkdir(parents=True, exist_ok=True)
    place.chmod(0o777)
    (place / "prober").write_bytes((PLACE / "prober.py").read_bytes())
    (place / "prober").chmod(0o755)
    must("edgeagent", "config", "check")
    must("systemctl", "reset-failed", SERVICE)
    begun = time.monotonic()
    restart()
    took_s = time.monotonic() - begun
    unit = show()
    check(unit["ActiveState"] == "active", f"{unit}")
    check("wait for the broker" in unit["StatusText"], f"status: {unit['StatusText']!r}")
    modes = {path: stat.S_IMODE(Path(path).stat().st_mode) for path in
             ("/var/lib/edgeagent", "/run/edgeagent", "/run/edgeagent/control.sock")}  # fmt: skip
    check(list(modes.values()) == [0o2770, 0o755, 0o660], f"modes: {modes}")
    return f"after {took_s:.1f} s: {unit['StatusText']}"


@scenario("who may")
def who_may() -> str:
    ask = ("edgeagent", "trigger", "nothing-of-that-name")
    outside = run(*ask, user="nobody")
    check(outside.status == 69 and "group edgeagent" in outside.text, f"nobody: {outside}")
    must("useradd", "-M", "-G", "edgeagent", "mechanic")
    inside = run(*ask, user="mechanic")
    check(inside.status == 2 and "nothing-of-that-name" in inside.text, f"a member: {inside}")
    return "nobody is told to join the group; a member of it is answered"


# -------------------------------------------------------------------------- a sweep, as the service


def _unit_of(profile: str) -> str:
    return f"edgeagent-sweep@{profile}.service"


def _trigger(profile: str) -> Path:
    """Ask through the template unit until the box has been idle for long enough; the run."""
    before = len(runs())
    accepted = _accepted(profile)

    def begins() -> bool:
        done = run("systemctl", "start", _unit_of(profile))
        check(done.status == 0, f"{_unit_of(profile)}: {done.text} {_words_of(profile)[-500:]}")
        return _accepted(profile) > accepted

    until(begins, "the daemon accepts a sweep")
    until(lambda: len(runs()) > before, "a run folder is made")
    return runs()[-1]


def _words_of(profile: str) -> str:
    run("journalctl", "--sync")
    return run("journalctl", "-u", _unit_of(profile), "-o", "cat", "--no-pager").text


def _accepted(profile: str) -> int:
    """How often the daemon has said so: systemd forgets a unit that has ended well."""
    return _words_of(profile).count("accepted")


def _swept(profile: str, patience_s: float = 120) -> tuple[Path, dict[str, Any]]:
    folder = _trigger(profile)
    until((folder / "result.json").exists, f"{folder} has a result", patience_s)
    until(lambda: "measuring" not in show()["StatusText"], "the service is idle again")
    found = result_of(folder)
    check(found["status"] == "complete", f"{folder}: {found['status']}: {found.get('findings')}")
    return folder, found


def _in_the_spool(run_id: str) -> int:
    with sqlite3.connect(f"file:{STATE}/spool.db?mode=ro", uri=True) as spool:
        query = "SELECT count(*) FROM q WHERE stream = 'R' AND instr(topic || payload, ?) > 0"
        return int(spool.execute(query, (run_id,)).fetchone()[0])


def _groups(folder: Path) -> list[dict[str, Any]]:
    """The cgroups that the engines of a run had, as the run's own records tell."""
    text = (folder / "environment.json").read_text(encoding="utf-8")
    found: list[dict[str, Any]] = []

    def look(value: object) -> None:
        if isinstance(value, dict):
            if isinstance(value.get("cgroup"), dict):
                found.append(value["cgroup"])
            for below in value.values():
                look(below)
        elif isinstance(value, list):
            for below in value:
                look(below)

    look(json.loads(text))
    return found


@scenario("sweep, scripted engine")
def sweep_scripted() -> str:
    folder, found = _swept("scripted")
    rows = _in_the_spool(folder.name)
    check(rows > 0, f"nothing of {folder.name} is in the spool")
    owner = pwd.getpwuid(folder.stat().st_uid).pw_name
    check(owner == "edgeagent", f"the run belongs to {owner}")
    check(not engines(), f"engines are left: {engines()}")
    cells = found["cells"]
    return f"by edgeagent-sweep@scripted: complete, {len(cells)} cells, {rows} rows in the spool"


@scenario("an engine's cgroup")
def engine_cgroup() -> str:
    control = show()["ControlGroup"]
    told = _probed()["cgroup"]
    own = next(line.removeprefix("0::") for line in told.splitlines() if line.startswith("0::"))
    check(own == f"{control}/engine-1", f"the engine was in {own}, the service is {control}")
    main = Path(f"/proc/{show()['MainPID']}/cgroup").read_text()
    check(f"0::{control}/agent\n" in main, f"the agent is in {main}")
    (group, *_) = _groups(runs()[-1]) or [{}]
    check(str(group.get("folder", "")).endswith(f"{control}/engine-1"), f"the run says {group}")
    (place,) = [root for root in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified")
                if Path(f"{root}{control}").is_dir()][:1]  # fmt: skip
    left = [path.name for path in Path(f"{place}{control}").glob("engine-*")]
    check(not left, f"left behind: {left}")
    return f"the engine in {own.rpartition('/')[2]}, the agent in agent, nothing left after it"


def _probed() -> dict[str, Any]:
    if not PROBED.exists():
        raise Failed("the engine that looks around was not run")
    found: dict[str, Any] = json.loads(PROBED.read_text())
    return found


@scenario("sandbox")
def sandbox() -> str:
    found = _probed()
    writes, calls, reads = found["writes"], found["calls"], found["reads"]
    folders, status = found["folders"], found["status"]
    own = ("/var/lib/edgeagent", "/var/cache/edgeagent", "/run/edgeagent", "/tmp")
    taken = [name for name, why in writes.items() if why == "done" and name not in own]
    check(not taken, f"an engine can write to {taken}")
    closed = [f"{name}: {writes[name]}" for name in own if writes[name] != "done"]
    check(not closed, f"an engine cannot write to {closed}")
    allowed = [name for name, why in calls.items() if why == "done"]
    check(not allowed, f"an engine can {allowed}")
    check(reads["/proc/meminfo"] == reads["/proc/1/stat"] == "done", f"it cannot see: {reads}")
    secrets = [
        name for name in ("/etc/edgeagent/commands.key", "/etc/shadow") if reads[name] == "done"
    ]
    check(not secrets, f"an engine can read {secrets}")
    check(folders["/home"] != "done" and folders["/root"] != "done", f"it can list {folders}")
    check(folders["/dev"] == "done", "it cannot list /dev")
    one = {name: status[name][0] for name in ("NoNewPrivs", "Seccomp", "CapEff", "CapBnd")}
    check(
        one == {"NoNewPrivs": "1", "Seccomp": "2", "CapEff": "0" * 16, "CapBnd": "0" * 16}, f"{one}"
    )
    groups = {grp.getgrgid(int(number)).gr_name for number in status["Groups"]}
    check(groups <= {"edgeagent", "video", "render"} and "video" in groups, f"groups: {groups}")
    return (
        f"from within an engine: {len(writes) - len(own)} places closed to writing, {len(calls)} "
        "calls refused, /home and /root hidden, no capability, /proc/meminfo seen"
    )


@scenario("credentials")
def credentials() -> str:
    found = _probed()["credentials"]
    check(found == ["commands-key"], f"the service's credentials: {found}")
    folder = Path("/run/credentials/edgeagent.service")
    seen = run("cat", folder / "commands-key", user="mechanic")
    check(seen.status != 0, "another user can read the credential")
    asked = must("edgeagent", "config", "show", "--origin")
    check("0123456789abcdef" not in asked, "config show tells the secret")
    return "root's 0400 file is read by the service as a credential, by nobody else"


@scenario("sweep, real llama-server", "full")
def sweep_real() -> str:
    if not (LLAMA.exists() and MODEL.exists()):
        raise Left("no llama-server was given: --engine FOLDER --model FILE")
    target = Path("/opt/llama")
    must("cp", "-a", PLACE / "llama", target)
    models = STATE / "models"
    must("install", "-d", "-o", "edgeagent", "-g", "edgeagent", "-m", "2770", models)
    must("install", "-o", "edgeagent", "-g", "edgeagent", "-m", "640", MODEL, models / "model.gguf")
    folder, found = _swept("real", 600)
    rows = _in_the_spool(folder.name)
    check(rows > 0, f"nothing of {folder.name} is in the spool")
    cells, kinds = found["cells"], [engine["kind"] for engine in found["engines"]]
    check(kinds == ["llamacpp"], f"engines: {kinds}")
    speeds = [cell["output_tokens_per_s"] for cell in cells]
    check(all(speeds), f"output_tokens_per_s: {speeds}")
    (group, *_) = _groups(folder) or [{}]
    check("folder" in group, f"the engine's cgroup: {group}")
    told = ", ".join(
        f"{cell['concurrency']}: {cell['output_tokens_per_s']:.0f} tokens/s" for cell in cells
    )
    return f"as the service's user: {told}; {rows} rows in the spool"


# ------------------------------------------------------------------------------------ how it ends


def _long_sweep() -> list[int]:
    """A sweep that is in the middle of its measuring; its engine's processes."""
    folder = _trigger("long")
    raw = folder / "requests.jsonl"
    until(lambda: raw.exists() and raw.stat().st_size, "the first request is answered")
    until(engines, "an engine runs")
    return engines()


def _nothing_left(patience_s: float = 30) -> None:
    until(lambda: not processes_of("edgeagent"), "all its processes end", patience_s)


@scenario("watchdog")
def watchdog() -> str:
    _long_sweep()
    before = show()
    pid = int(before["MainPID"])
    running = engines()
    os.kill(pid, signal.SIGSTOP)
    begun = time.monotonic()
    until(
        lambda: show()["NRestarts"] == str(int(before["NRestarts"]) + 1),
        "systemd starts it again",
        60,
    )
    took_s = time.monotonic() - begun
    until(lambda: show()["ActiveState"] == "active", "READY again")
    check(show()["MainPID"] != str(pid), "it is the same process")
    check(not set(running) & set(engines()), "the engine has outlived the agent")
    check(
        "Watchdog timeout" in must("journalctl", "-u", SERVICE, "--no-pager", "-o", "cat"),
        "no word of it",
    )
    return (
        f"a stopped main process is killed and started again after {took_s:.0f} s (WatchdogSec=8)"
    )


@scenario("agent killed")
def agent_killed() -> str:
    _long_sweep()
    before = show()
    running = engines()
    os.kill(int(before["MainPID"]), signal.SIGKILL)
    until(
        lambda: show()["NRestarts"] == str(int(before["NRestarts"]) + 1),
        "systemd starts it again",
        60,
    )
    until(lambda: show()["ActiveState"] == "active", "READY again")
    check(not set(running) & set(engines()), "an engine has outlived the agent")
    return "kill -9 of the agent ends its engines; it is READY again"


@scenario("stop")
def stop() -> str:
    _long_sweep()
    folder = runs()[-1]
    begun = time.monotonic()
    must("systemctl", "stop", SERVICE)
    took_s = time.monotonic() - begun
    _nothing_left(1)
    unit = show()
    check((unit["ActiveState"], unit["Result"]) == ("inactive", "success"), f"{unit}: {journal()}")
    status = result_of(folder)["status"]
    check(status in ("partial", "failed"), f"the run is {status}, and was not at its end")
    check(_in_the_spool(folder.name) > 0, "what was measured is not in the spool")
    restart()
    return (
        f"{took_s:.1f} s in the middle of a sweep: no process left, what was measured in the spool"
    )


@scenario("timer")
def timer() -> str:
    unit = "edgeagent-sweep@scripted.timer"
    must("systemctl", "enable", "--now", unit)
    listed = must("systemctl", "list-timers", "--no-pager", unit)
    check("edgeagent-sweep@scripted.service" in listed, listed)
    return f"next at {' '.join(listed.splitlines()[1].split()[:3])}"


@scenario("doctor")
def doctor() -> str:
    text = run("edgeagent", "doctor", user="edgeagent")
    check(text.status in (0, 1) and "Traceback" not in text.text, f"{text}")
    told = run("edgeagent", "doctor", "--json", user="edgeagent")
    document = json.loads(told.text[told.text.index("{") :])
    checks = document["checks"]
    worst = [one["name"] for one in checks if one["state"] not in ("ok", "missing", "warning")]
    check(checks, "no checks")
    return (
        f"as the service's user: {len(checks)} checks, status {text.status}, {worst or 'no faults'}"
    )


@scenario("nvmap helper")
def nvmap() -> str:
    if not Path("/sys/kernel/debug").is_dir():
        raise Left("there is no /sys/kernel/debug to lay a stand-in over")
    must("mount", "-t", "tmpfs", "-o", "mode=0700", "nvmap", "/sys/kernel/debug")
    table = "CLIENT  PROCESS  PID  SIZE\nuser  llama-server  4711  1623040K\ntotal  1623040K\n"
    NVMAP.parent.mkdir(parents=True)
    NVMAP.write_text(table)
    NVMAP.chmod(0o400)
    must("systemctl", "start", "edgeagent-nvmap.socket")
    where = "/run/edgeagent-nvmap.sock"
    told = must("python3", "-c", _ASK, where, user="edgeagent")
    check(
        told == table,
        f"it said {told!r}: {run('journalctl', '-n', '20', '--no-pager').text[-800:]}",
    )
    check(run("python3", "-c", _ASK, where, user="nobody").status != 0, "everybody may ask")
    must("systemctl", "stop", SERVICE)
    check(must("python3", "-c", _ASK, where, user="edgeagent") == table, "gone with the service")
    must("umount", "/sys/kernel/debug")
    must("systemctl", "stop", "edgeagent-nvmap.socket")
    check(not Path(where).exists(), "the socket's file is left")
    restart()
    check(not Path(where).exists(), "the helper runs where there is nothing to tell")
    return (
        "the group is told, nobody else; outlives the service; stays away where there is no nvmap"
    )


_ASK = """
import socket, sys
with socket.socket(socket.AF_UNIX) as one:
    one.connect(sys.argv[1])
    sys.stdout.write(b"".join(iter(lambda: one.recv(65536), b"")).decode())
"""


# ------------------------------------------------------------------------- what an operator may add


@scenario("drop-ins", "full")
def drop_ins() -> str:
    source = Path("/usr/share/edgeagent/dropins")
    names = sorted(path.name for path in source.glob("*.conf"))
    check(len(names) >= 5, f"{source}: {names}")
    folder = Path(f"/etc/systemd/system/{SERVICE}.d")
    for name in ("10-devices.conf", "20-models.conf", "30-oom.conf"):
        text = (source / name).read_text().replace("/home/USER", "/home/mechanic")
        (folder / f"6{name}").write_text(text)
    models = Path("/home/mechanic/models")
    models.mkdir(parents=True, exist_ok=True)
    (models / "model.gguf").write_text("x")
    must("systemctl", "daemon-reload")
    main = restart()
    inside = ("nsenter", "-t", main, "-m")
    seen = must(*inside, "find", "/home", "-type", "f").split()
    check(seen == [str(models / "model.gguf")], f"of /home the service sees {seen}")
    check(run(*inside, "touch", models / "new").status != 0, "it can write to /home")
    _swept("scripted")
    for path in folder.glob("6*.conf"):
        path.unlink()
    must("systemctl", "daemon-reload")
    restart()
    return (
        "devices, models, oom: the service starts and measures; of /home it sees the models alone"
    )


@scenario("engine's memory limit", "full")
def engine_limit() -> str:
    text = Path("/usr/share/edgeagent/dropins/40-engine-memory.conf").read_text()
    drop_in("70-try.conf", text.replace("=12G", "=512M"))
    restart()
    folder = _trigger("scripted")
    until((folder / "result.json").exists, "a result")
    until(lambda: "measuring" not in show()["StatusText"], "the service is idle again")
    Path(f"/etc/systemd/system/{SERVICE}.d/70-try.conf").unlink()
    must("systemctl", "daemon-reload")
    restart()
    groups = _groups(folder)
    told = (folder / "result.json").read_text()
    if groups and "memory.max" in groups[0].get("set", []):
        return f"memory.max is set on the engine's cgroup: {groups[0]}"
    check(
        "cannot be kept" in told,
        f"neither set nor refused: {groups} {result_of(folder)['findings']}",
    )
    return "no memory controller here: the engine is not started, with the reason in the result"


POLICY = """\
operations = []
profiles = []
issuers = []
max_runs_per_day = 10
cooldown_s = 0
production_units = ["vllm.service"]
[[windows]]
from = "00:00"
to = "24:00"
"""


@scenario("the plant's own service", "full")
def production_unit() -> str:
    if not Path("/usr/share/polkit-1/rules.d").is_dir():
        raise Left("polkit is not installed")
    for name in ("vllm", "other"):
        Path(f"/etc/systemd/system/{name}.service").write_text(
            "[Service]\nExecStart=/bin/sleep 9999\n"
        )
    must("systemctl", "daemon-reload")
    must("systemctl", "start", "vllm", "other")
    stop_it = ("systemctl", "--no-ask-password", "stop", "vllm.service")
    check(run(*stop_it, user="edgeagent").status != 0, "it may stop services without a rule")
    (rule,) = Path("/usr/share/edgeagent").rglob("edgeagent-production.rules.disabled")
    target = Path("/etc/polkit-1/rules.d/60-edgeagent-production.rules")
    target.write_text(rule.read_text())
    target.chmod(0o644)
    run("systemctl", "restart", "polkit")
    until(
        lambda: run(*stop_it, user="edgeagent").status == 0,
        "the rule lets it stop vllm.service",
        30,
    )
    other = run("systemctl", "--no-ask-password", "stop", "other.service", user="edgeagent")
    check(other.status != 0, "the rule lets it stop other.service as well")
    must("systemctl", "start", "vllm")
    Path("/etc/edgeagent/commands.toml").write_text(POLICY)
    configure(CONFIGURED.replace("[schedule]\n", '[schedule]\nproduction_unit = "vllm.service"\n'))
    restart()
    _long_sweep()
    check(show("vllm.service")["ActiveState"] != "active", "vllm.service runs beside the sweep")
    os.kill(int(show()["MainPID"]), signal.SIGKILL)
    until(lambda: show("vllm.service")["ActiveState"] == "active", "it is started again", 60)
    until(lambda: show()["ActiveState"] == "active", "READY again")
    configure(CONFIGURED)
    restart()
    return "polkit's rule allows that one service; stopped for a sweep, started again after kill -9"


# ------------------------------------------------------------------- upgrade, removal, purge


@scenario("upgrade, configuration untouched", "full")
def upgrade_untouched() -> str:
    before = show()["MainPID"]
    must("apt-get", "install", "-y", "-q", "--no-install-recommends", PLACE / "newer.deb")
    check("# newer" in CONFIG.read_text(), "the new configuration file is not there")
    until(lambda: show()["ActiveState"] == "active", "it runs again")
    check(show()["MainPID"] != before, "the old program still runs")
    return "the new file is in place; what ran was started anew"


@scenario("upgrade, configuration edited", "full")
def upgrade_edited() -> str:
    must("systemctl", "stop", SERVICE)
    CONFIG.write_text(CONFIG.read_text() + "# of the plant\n")
    must("apt-get", "install", "-y", "-q", "--no-install-recommends",
         "-o", "Dpkg::Options::=--force-confold", PLACE / "newest.deb")  # fmt: skip
    check("# of the plant" in CONFIG.read_text(), "the edit is lost")
    check(Path(f"{CONFIG}.dpkg-dist").exists(), "the new file is not laid beside it")
    check(OURS.read_text() == CONFIGURED, "conf.d was changed")
    check(show()["ActiveState"] == "inactive", "the upgrade started a stopped service")
    restart()
    return "the edit stays, the new file lies beside it; a stopped service stays stopped"


@scenario("remove")
def remove() -> str:
    _long_sweep()
    kept = runs()[-1]
    must("apt-get", "remove", "-y", "-q", "edgeagent")
    _nothing_left(5)
    check(not Path("/usr/lib/edgeagent").exists(), "/usr/lib/edgeagent is left: "
          + run("find", "/usr/lib/edgeagent").text[:300])  # fmt: skip
    check(CONFIG.exists() and OURS.exists() and kept.exists(), "configuration or runs are gone")
    loaded = run("systemctl", "list-units", "--all", "--no-legend", "edgeagent*").text
    alive = [
        line for line in loaded.splitlines() if re.search(r" (active|activating|failed) ", line)
    ]
    check(not alive, f"units that still are: {alive}")
    return "in the middle of a sweep: engines ended, units stopped; configuration and runs stay"


@scenario("purge")
def purge() -> str:
    for path in Path(f"/etc/systemd/system/{SERVICE}.d").glob("*-try.conf"):
        path.unlink()
    Path(f"/etc/systemd/system/{SERVICE}.d").rmdir()
    must("apt-get", "purge", "-y", "-q", "edgeagent")
    must("systemctl", "daemon-reload")
    pruned = ["/proc", "/sys", "/try", "/var/log", "/var/cache/apt", "/opt", "/tmp"]
    skip = [word for path in pruned for word in ("-path", path, "-prune", "-o")]
    left = [
        line for line in must("find", "/", *skip, "-name", "*edgeagent*", "-print").splitlines()
        # the test's own, and systemd's private folders of this boot
        if not line.startswith(("/etc/polkit-1/", "/usr/share/polkit-1/", "/home/"))
        and not re.search(r"/systemd-private|/\.edgeagent", line)
    ]  # fmt: skip
    check(not left, f"left: {left}")
    user = "user edgeagent stays" if _exists("edgeagent") else "no user either"
    return f"no file of it is left ({user}, as is Debian's habit)"


def _exists(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


@scenario("installed again", "full")
def again() -> str:
    must("apt-get", "install", "-y", "-q", "--no-install-recommends", PLACE / "package.deb")
    configure(CONFIGURED.replace('hmac_key_file = "credential:commands-key"\n', ""))
    restart()
    return f"after the purge: {show()['StatusText']}"


# ------------------------------------------------------------------ an image, another processor


@scenario("image: baked in, first boot", "image")
def image() -> str:
    until(lambda: show()["ActiveState"] == "active", "it runs")
    status = must("edgeagent", "config", "show", "--origin")
    check("50-oem.toml" in status, "the OEM's configuration does not count")
    failed = must("systemctl", "--failed", "--no-legend", "--plain").split()
    ours = [word for word in failed if word.startswith("edgeagent")]
    check(not ours, f"failed: {ours}")
    return f"enabled without a running systemd, identity preseeded: {show()['StatusText']}"


@scenario("emulated: install", "emulated")
def emulated_install() -> str:
    must(
        "apt-get",
        "install",
        "-y",
        "-q",
        "--no-install-recommends",
        PLACE / "package.deb",
        timeout_s=1200,
    )
    return must("edgeagent", "--version").strip() + f" on {os.uname().machine}"


@scenario("emulated: doctor", "emulated")
def emulated_doctor() -> str:
    done = run("edgeagent", "doctor")
    check(done.status in (0, 1) and "Traceback" not in done.text, f"{done}")
    return f"status {done.status}, {len(done.text.splitlines())} lines"


@scenario("emulated: sweep, scripted engine", "emulated")
def emulated_sweep() -> str:
    out = "/tmp/run"
    words = ("edgeagent", "sweep", "--engine", "fake", "--concurrency", "1", "--requests", "4",
             "--repeats", "1",
             "--warmup", "1", "--memory-repeats", "0", "--canary", "0", "--prefix-cache", "off",
             "--prompt-tokens", "16", "--prefix-tokens", "48", "--output-tokens", "8", "--out", out,
             "--no-report", "--engine-arg", "fake=--ttft-ms",
             "--engine-arg", "fake=200")  # fmt: skip
    done = run(*words, timeout_s=1200)
    found = result_of(Path(out))
    check(done.status in (0, 1), f"{done}")
    check(found["status"] == "complete", f"{found['status']}: {done.text[-500:]}")
    return f"complete, exit {done.status}"


@scenario("emulated: purge", "emulated")
def emulated_purge() -> str:
    must("apt-get", "purge", "-y", "-q", "edgeagent", timeout_s=1200)
    check(not Path("/usr/lib/edgeagent").exists(), "/usr/lib/edgeagent is left")
    return "nothing left in /usr/lib"


if __name__ == "__main__":
    socket.setdefaulttimeout(60)
    run_all(tuple(sys.argv[1:]))
