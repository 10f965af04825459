"""The packages, built once for all tests of this folder."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that packaging/build has filled: EDGEAGENT_TEST_DIST, or made now."""
    named = os.environ.get("EDGEAGENT_TEST_DIST")
    if named:
        return Path(named)
    if shutil.which("dpkg-deb") is None:
        if os.environ.get("EDGEAGENT_REQUIRE_PACKAGES") == "1":
            pytest.fail("dpkg-deb is missing: packages are built on Debian and its children")
        pytest.skip("dpkg-deb is missing: packages are built on Debian and its children")
    folder = tmp_path_factory.mktemp("packages") / "dist"
    done = subprocess.run(
        [ROOT / "packaging/build", "--out", folder], capture_output=True, encoding="utf-8",
        check=False, timeout=1500,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="session", params=["amd64", "arm64"])
def architecture(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def deb(dist: Path, architecture: str) -> Path:
    """The package of one architecture, then of the other."""
    return next(dist.glob(f"edgeagent_*_{architecture}.deb"))


@pytest.fixture(scope="session")
def unpacked(deb: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the package puts into a system, in a folder."""
    folder = tmp_path_factory.mktemp("unpacked") / "root"
    subprocess.run(["dpkg-deb", "-x", deb, folder], check=True)
    return folder


@pytest.fixture(scope="session")
def scripts(deb: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the package says about itself: control, its scripts, its conffiles."""
    folder = tmp_path_factory.mktemp("scripts") / "control"
    subprocess.run(["dpkg-deb", "-e", deb, folder], check=True)
    return folder


@pytest.fixture(scope="session")
def here(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package of this machine's architecture, unpacked: it can be run."""
    word = {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine]
    folder = tmp_path_factory.mktemp("here") / "root"
    subprocess.run(["dpkg-deb", "-x", next(dist.glob(f"*_{word}.deb")), folder], check=True)
    return folder
