"""What installing, upgrading, removing and purging do to a system's files.

dpkg works on a system of its own in a folder, and hands that folder to the scripts (DPKG_ROOT), so
nothing of this machine is touched. What needs a running systemd is tried by packaging/try_install.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="dpkg gives files to root: needs root"),
    pytest.mark.timeout(1800),  # the first test of a session waits for the packages
]


class System:
    """A system with nothing in it but dpkg's own records."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for folder in ("var/lib/dpkg/info", "var/lib/dpkg/updates", "etc", "usr/bin"):
            (root / folder).mkdir(parents=True)
        (root / "var/lib/dpkg/status").touch()

    def dpkg(self, *words: object) -> str:
        done = subprocess.run(
            ["dpkg", f"--root={self.root}", "--force-script-chrootless", "--force-depends",
             "--no-triggers", "--force-unsafe-io", *map(str, words)],
            capture_output=True, encoding="utf-8", check=False, timeout=120,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND": "noninteractive"},
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def path(self, name: str) -> Path:
        return self.root / name.lstrip("/")


@pytest.fixture
def system(tmp_path: Path) -> System:
    return System(tmp_path / "system")


@pytest.fixture(scope="module")
def package(dist: Path) -> Path:
    return next(dist.glob("*_amd64.deb"))


@pytest.fixture(scope="module")
def newer(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The next version, whose configuration file has one line more."""
    folder = tmp_path_factory.mktemp("newer")
    subprocess.run(["dpkg-deb", "-R", package, folder / "tree"], check=True)
    control = folder / "tree/DEBIAN/control"
    control.write_text(re.sub(r"(?m)^Version: .*$", "Version: 99.0-1", control.read_text()))
    with (folder / "tree/etc/edgeagent/edgeagent.toml").open("a") as file:
        file.write("# a new key\n")
    subprocess.run(
        ["dpkg-deb", "-Znone", "--root-owner-group", "-b", folder / "tree", folder / "newer.deb"],
        check=True, capture_output=True,
    )  # fmt: skip
    shutil.rmtree(folder / "tree")
    return folder / "newer.deb"


def test_the_first_installation_makes_users_and_tells_the_next_step_once(
    system: System, package: Path, newer: Path
) -> None:
    told = system.dpkg("--install", package)

    assert told.count("systemctl enable --now edgeagent") == 1
    users = {line.split(":")[0] for line in system.path("/etc/passwd").read_text().splitlines()}
    assert {"edgeagent", "edgeagent-fleet"} <= users
    groups = dict(line.split(":", 1) for line in system.path("/etc/group").read_text().splitlines())
    assert groups["video"].endswith(":edgeagent")
    assert groups["render"].endswith(":edgeagent")
    assert "enable --now" not in system.dpkg("--install", newer)


def test_nothing_that_names_this_machine_is_made_at_installation(
    system: System, package: Path
) -> None:
    system.dpkg("--install", package)

    shipped = subprocess.run(
        ["dpkg-deb", "--fsys-tarfile", package], capture_output=True, check=True
    ).stdout
    names = subprocess.run(
        ["tar", "-t"], input=shipped, capture_output=True, check=True
    ).stdout.decode().split()  # fmt: skip
    known = {str(system.path(name.removeprefix("."))).rstrip("/") for name in names}
    made = {
        str(path)
        for path in system.root.rglob("*")
        if str(path) not in known and "var/lib/dpkg" not in str(path) and not path.is_dir()
    }
    accounts = {"passwd", "group", "shadow", "gshadow", ".pwd.lock"}
    assert {Path(path).name.rstrip("-") for path in made} <= accounts


def test_an_upgrade_brings_the_new_configuration_where_nobody_edited_it(
    system: System, package: Path, newer: Path
) -> None:
    system.dpkg("--install", package)
    system.dpkg("--install", newer)

    assert "# a new key" in system.path("/etc/edgeagent/edgeagent.toml").read_text()


def test_an_upgrade_keeps_an_edited_configuration_and_lays_the_new_one_beside(
    system: System, package: Path, newer: Path
) -> None:
    system.dpkg("--install", package)
    ours = system.path("/etc/edgeagent/edgeagent.toml")
    ours.write_text('[agent]\nsite = "plant7"\n')
    oem = system.path("/etc/edgeagent/conf.d/50-oem.toml")
    oem.write_text("# the OEM's\n")

    system.dpkg("--force-confold", "--install", newer)

    assert ours.read_text() == '[agent]\nsite = "plant7"\n'
    assert "# a new key" in ours.with_suffix(".toml.dpkg-dist").read_text()
    assert oem.read_text() == "# the OEM's\n"


def test_removing_keeps_configuration_and_runs_and_takes_compiled_modules_along(
    system: System, package: Path
) -> None:
    system.dpkg("--install", package)
    kept = system.path("/var/lib/edgeagent/runs/A/result.json")
    kept.parent.mkdir(parents=True)
    kept.write_text("{}")
    compiled = system.path("/usr/lib/edgeagent/app/edgeagent/__pycache__/app.cpython-311.pyc")
    compiled.parent.mkdir()
    compiled.write_bytes(b"")

    system.dpkg("--remove", "edgeagent")

    assert kept.exists()
    assert system.path("/etc/edgeagent/edgeagent.toml").exists()
    assert not system.path("/usr/lib/edgeagent").exists()


def test_purging_leaves_nothing_but_the_users(system: System, package: Path) -> None:
    system.dpkg("--install", package)
    for name in (
        "/var/lib/edgeagent/spool.db", "/var/lib/edgeagent-fleet/fleet.db",
        "/var/cache/edgeagent/x", "/etc/edgeagent/pki/node.key",
        "/etc/edgeagent/conf.d/90-site.toml",
        "/etc/systemd/system/multi-user.target.wants/edgeagent.service",
        "/etc/systemd/system/timers.target.wants/edgeagent-sweep@nightly.timer",
    ):  # fmt: skip
        system.path(name).parent.mkdir(parents=True, exist_ok=True)
        system.path(name).touch()

    system.dpkg("--purge", "edgeagent")

    left = {
        str(path.relative_to(system.root))
        for path in system.root.rglob("*edgeagent*")
        if "var/lib/dpkg" not in str(path)
    }
    assert left == set()
    assert "edgeagent:" in system.path("/etc/passwd").read_text()


def test_purging_does_not_follow_a_link_out_of_the_state_folder(
    system: System, package: Path, tmp_path: Path
) -> None:
    models = tmp_path / "models"
    models.mkdir()
    (models / "model.gguf").touch()
    system.dpkg("--install", package)
    system.path("/var/lib/edgeagent").mkdir(parents=True)
    system.path("/var/lib/edgeagent/models").symlink_to(models)

    system.dpkg("--purge", "edgeagent")

    assert (models / "model.gguf").exists()
    assert not system.path("/var/lib/edgeagent").exists()


def test_the_scripts_are_sound_and_ask_no_network(scripts: Path) -> None:
    for name in ("postinst", "prerm", "postrm"):
        text = (scripts / name).read_text()
        subprocess.run(["sh", "-n", scripts / name], check=True)
        assert text.startswith("#!/bin/sh\n")
        assert "\nset -e\n" in text
        assert not re.search(r"\b(curl|wget|pip3?|apt|apt-get|git|nc)\b", text), name


def test_users_are_made_before_what_is_theirs(scripts: Path) -> None:
    text = (scripts / "postinst").read_text()
    steps = [text.find(word) for word in ("systemd-sysusers", "py3compile -p", "try-restart")]
    assert steps == sorted(steps)
    assert -1 not in steps
    tmpfiles = text.find("systemd-tmpfiles")
    assert tmpfiles == -1 or steps[0] < tmpfiles < steps[1]
