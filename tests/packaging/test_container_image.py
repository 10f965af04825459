"""The container image, made of its Containerfile without a container engine, and started.

Every RUN, COPY and ENV is carried out on a minimal Debian; what was made is then started as a
container engine would: its own processes and mounts, a root that is read-only, the user of the
image, no capability. packaging/container/try does the same with Buildah and Podman themselves.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil
import pytest
from containerfile import Builder, Image, copied, instructions

ROOT = Path(__file__).parents[2]
CONTAINER = ROOT / "packaging/container"
TEXT = (CONTAINER / "Containerfile").read_text()
QUADLET = (CONTAINER / "edgeagent.container").read_text()

ALWAYS_THERE = {"apt-get", "dpkg-deb", "install", "groupadd", "useradd", "rm"}
"""In every Debian and Ubuntu image: apt, dpkg, coreutils, passwd."""

# podman-systemd.unit(5) of Podman 4.6, as far as somebody might want it here.
QUADLET_KEYS = {
    "AddCapability", "AddDevice", "Annotation", "ContainerName", "DropCapability", "Environment",
    "EnvironmentFile", "Exec", "ExposeHostPort", "Group", "HealthCmd", "HealthInterval",
    "HealthOnFailure", "HealthRetries", "HealthStartPeriod", "HealthTimeout", "HostName", "IP",
    "Image", "Label", "LogDriver", "Mount", "Network", "NoNewPrivileges", "Notify", "PodmanArgs",
    "PublishPort", "Pull", "ReadOnly", "RunInit", "Secret", "SecurityLabelDisable", "ShmSize",
    "Timezone", "Tmpfs", "User", "UserNS", "Volume", "WorkingDir",
}  # fmt: skip


# ---------------------------------------------------------------------------------- what it says


def test_everything_that_is_copied_from_the_checkout_is_there_or_made_by_the_build() -> None:
    here = [copied(one) for one in instructions(TEXT) if one.word == "COPY"]
    sources = [source for one in here if one.stage is None for source in one.sources]
    assert len(sources) == 2
    for source in sources:
        made = source == "dist/edgeagent_*_${TARGETARCH}.deb"
        assert made or (ROOT / source).is_file(), source


def test_every_command_of_a_run_is_in_the_base_image_or_installed_by_it() -> None:
    ours = {"python3"}
    for one in instructions(TEXT):
        if one.word == "RUN":
            words = [part.split()[0] for part in one.text.split("&&")]
            assert set(words) <= ALWAYS_THERE | ours, one.text


def test_a_start_is_the_daemon_by_an_ordinary_user_with_a_health_check() -> None:
    words = {one.word: one.text for one in instructions(TEXT)}
    assert json.loads(words["ENTRYPOINT"]) == ["/usr/bin/edgeagent"]
    assert json.loads(words["CMD"]) == ["daemon"]
    assert words["USER"] == "3737:3737"
    assert json.loads(words["VOLUME"]) == [words["WORKDIR"]]
    checked = json.loads(words["HEALTHCHECK"].split(" CMD ")[1])
    assert Path(checked[-1]).name == "health.py"


def sections(text: str) -> dict[str, list[tuple[str, str]]]:
    """Keys by section; lines with a # before them are included, they are to be copied."""
    found: dict[str, list[tuple[str, str]]] = {}
    for line in text.splitlines():
        if line.startswith("["):
            found[line.strip("[]")] = []
        elif "=" in line and not line.startswith("# "):
            key, _, value = line.lstrip("#").partition("=")
            found[list(found)[-1]].append((key, value))
    return found


def test_the_quadlet_unit_has_only_keys_that_quadlet_knows() -> None:
    keys = {key for key, _ in sections(QUADLET)["Container"]}
    assert keys <= QUADLET_KEYS
    assert set(sections(QUADLET)) == {"Unit", "Container", "Service", "Install"}


def test_the_quadlet_unit_and_the_image_agree() -> None:
    words = {one.word: one.text for one in instructions(TEXT)}
    unit = dict(sections(QUADLET)["Container"])
    assert unit["HealthCmd"].split() == json.loads(words["HEALTHCHECK"].split(" CMD ")[1])
    assert unit["Exec"] == json.loads(words["CMD"])[0]
    volumes = [value for key, value in sections(QUADLET)["Container"] if key == "Volume"]
    assert f"edgeagent-state:{json.loads(words['VOLUME'])[0]}" in volumes


# ------------------------------------------------------------------------------- what it makes


def refuse(why: str) -> None:
    why = f"the image was not made and started: {why}"
    if os.environ.get("EDGEAGENT_REQUIRE_NSPAWN") == "1":
        pytest.fail(why)
    pytest.skip(why)


@pytest.fixture(scope="module")
def image(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    """The image on Debian 12, whose tarball the tests of the service use as well."""
    made = subprocess.run(
        [ROOT / "packaging/rootfs", "bookworm"], capture_output=True, encoding="utf-8",
        check=False, timeout=900,
    )  # fmt: skip
    if made.returncode:
        refuse(made.stderr.strip())
    if subprocess.run(["unshare", "-m", "-p", "-f", "true"], check=False).returncode:
        refuse("this machine lets nobody have processes and mounts of their own (unshare)")
    work = tmp_path_factory.mktemp("image")

    base = work / "base"
    base.mkdir()
    tarball = made.stdout.strip()
    subprocess.run(["tar", "-xf", tarball, "-C", base, "--exclude=./dev/*"], check=True)
    shutil.copy("/etc/resolv.conf", base / "etc/resolv.conf")  # as every engine does

    def unpack(name: str, root: Path) -> None:
        assert name == "docker.io/library/debian:13-slim"
        subprocess.run(["cp", "-al", f"{base}/.", root], check=True)  # stages append to logs alone

    context = work / "context"
    context.mkdir()
    (context / "dist").symlink_to(dist)
    (context / "packaging").symlink_to(ROOT / "packaging")
    (work / "stages").mkdir()
    word = {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine]
    yield Builder(context, work / "stages", unpack, {"TARGETARCH": word}).build(TEXT)
    subprocess.run(["rm", "-rf", work], check=True)


START = """
root="$1" state="$2" configuration="$3"; shift 3
mount --bind "$root" "$root"
mount -o remount,bind,ro "$root"
mount -t proc proc "$root/proc"
mount --bind /dev "$root/dev"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
mount --bind "$state" "$root/var/lib/edgeagent"
mount --bind "$configuration" "$root/etc/edgeagent/conf.d"
exec chroot "$root" /usr/bin/setpriv --reuid 3737 --regid 3737 --clear-groups --no-new-privs \\
  --bounding-set=-all --inh-caps=-all "$@"
"""


class Container:
    """A process with the image as its world; it is number 1 there."""

    def __init__(self, image: Image, folder: Path, words: Sequence[str]) -> None:
        self._image = image
        self._root = image.root
        self.state, configuration = folder / "state", folder / "conf.d"
        self.state.mkdir(exist_ok=True)
        os.chown(self.state, 3737, 3737)
        configuration.mkdir(exist_ok=True)
        folder.chmod(0o755)
        self.process = subprocess.Popen(
            ["unshare", "--mount", "--pid", "--ipc", "--fork", "--propagation", "private",
              "sh", "-ec", START, "start", image.root, self.state, configuration,
             *self._with_environment([*image.words["ENTRYPOINT"], *words])],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def _with_environment(self, words: Sequence[str]) -> list[str]:
        given = {"PATH": "/usr/bin:/bin", **self._image.environment}
        variables = [f"{name}={value}" for name, value in given.items()]
        return ["env", "-i", f"--chdir={self._image.words['WORKDIR'][0]}", *variables, *words]

    @property
    def first(self) -> int | None:
        """The process that is number 1 inside, as this machine numbers it."""
        children = psutil.Process(self.process.pid).children()
        return children[0].pid if children else None

    def exec(self, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Run something beside it, as `docker exec` does."""
        return subprocess.run(
            ["nsenter", "-t", str(self.first), "-m", "-p", "chroot", "--userspec=3737:3737",
             self._root, *self._with_environment(words)],
            capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip

    def ended(self, within_s: float = 120) -> tuple[int, str, str]:
        """Wait for its end: exit status, standard output and error."""
        out, told = self.process.communicate(timeout=within_s)
        return self.process.returncode, out, told


@contextlib.contextmanager
def container(image: Image, folder: Path, *words: str) -> Iterator[Container]:
    """Start one and see that nothing of it is left."""
    one = Container(image, folder, words)
    try:
        yield one
    finally:
        if one.process.poll() is None:
            # Whoever has changed its user is not tied to its parent's life any more.
            os.kill(one.first or one.process.pid, signal.SIGKILL)
            one.process.communicate()


def eventually(happened: Callable[[], object]) -> bool:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if happened():
            return True
        time.sleep(0.1)
    return False


SWEEP = (
    "sweep", "--engine=fake", "--concurrency=2", "--repeats=1", "--requests=4", "--warmup=0",
    "--cooldown=0", "--prefix-cache=off", "--output-tokens=4", "--memory-repeats=0", "--canary=0",
    "--settle=0.3", "--no-report", "--quiet",
)  # fmt: skip


def test_it_runs_on_a_read_only_root_as_its_user(image: Image, tmp_path: Path) -> None:
    with container(image, tmp_path, "--version") as one:
        status, out, told = one.ended()
    assert (status, told) == (0, "")
    assert out.startswith("edgeagent ")


def test_a_sweep_leaves_its_run_in_the_volume(image: Image, tmp_path: Path) -> None:
    with container(image, tmp_path, *SWEEP, "--out=run") as one:
        status, _, told = one.ended()
    assert status in (0, 1), told  # 1: a busy box may raise a doubt
    document = json.loads((tmp_path / "state/run/result.json").read_text())
    assert document["status"] == "complete"
    assert (tmp_path / "state/run/result.json").stat().st_uid == 3737


def test_the_daemon_is_healthy_until_it_is_stopped(image: Image, tmp_path: Path) -> None:
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "conf.d/90-site.toml").write_text('[agent]\nnode = "box-1"\n')
    check = image.words["HEALTHCHECK"]
    with container(image, tmp_path, *image.words["CMD"]) as one:
        assert eventually(lambda: one.first is not None and one.exec(check).returncode == 0)
        assert "answers; " in one.exec(check).stdout
        first = one.first
        assert first is not None
        os.kill(first, signal.SIGTERM)
        status, _, told = one.ended()
    assert status == 0, told
    assert (tmp_path / "state/spool.db").exists()


def test_without_a_daemon_the_health_check_says_so(image: Image, tmp_path: Path) -> None:
    check = image.words["HEALTHCHECK"]
    sleeping = (*SWEEP, "--engine-arg=fake=--load-s", "--engine-arg=fake=600", "--out=run")
    with container(image, tmp_path, *sleeping) as one:
        assert eventually(lambda: one.first is not None and (tmp_path / "state/run").exists())
        found = one.exec(check)
    assert found.returncode == 1
    assert found.stdout.startswith("the daemon does not answer at /tmp/edgeagent.sock: ")


def test_a_wrong_configuration_ends_it_with_78(image: Image, tmp_path: Path) -> None:
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "conf.d/90-site.toml").write_text("[mqtt]\nhots = 1\n")
    with container(image, tmp_path, *image.words["CMD"]) as one:
        status, _, told = one.ended()
    assert status == 78
    assert "mqtt.hots" in told


def is_engine(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return "edgeagent.engines.scripted" in " ".join(process.cmdline())
    return False


def test_a_kill_of_the_container_leaves_no_engine(image: Image, tmp_path: Path) -> None:
    slow = (*SWEEP, "--engine-arg=fake=--itl-ms", "--engine-arg=fake=5000", "--out=run")
    with container(image, tmp_path, *slow) as one:
        assert eventually((tmp_path / "state/run/environment.json").exists)
        first = one.first
        assert first is not None
        assert eventually(
            lambda: any(map(is_engine, psutil.Process(first).children(recursive=True)))
        )
        family = psutil.Process(first).children(recursive=True)
        os.kill(first, signal.SIGKILL)
        one.ended()
    _, alive = psutil.wait_procs(family, timeout=60)
    assert alive == []
