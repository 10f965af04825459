"""What a package puts into a system, for each architecture: looked at, not run."""

from __future__ import annotations

import json
import re
import struct
import subprocess
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from test_build_lock import PYTHONS, applies, locked, plain

pytestmark = pytest.mark.timeout(1800)  # the first test of a session waits for the packages

MACHINES = {"amd64": 62, "arm64": 183}  # EM_X86_64, EM_AARCH64
TAGS = {"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}
CONFFILES = ["/etc/edgeagent/edgeagent.toml"]


@pytest.fixture
def control(scripts: Path) -> dict[str, str]:
    return dict(HeaderParser().parsestr((scripts / "control").read_text()).items())


def test_the_wheel_that_is_handed_out_is_the_one_inside(dist: Path, unpacked: Path) -> None:
    app = unpacked / "usr/lib/edgeagent/app"
    with zipfile.ZipFile(next(dist.glob("*.whl"))) as wheel:
        names = {name for name in wheel.namelist() if not name.endswith("/")}
        assert names == {str(path.relative_to(app)) for path in app.rglob("*") if path.is_file()}
        for name in names:
            assert (app / name).read_bytes() == wheel.read(name), name


def test_each_locked_distribution_is_there_in_its_version(unpacked: Path) -> None:
    found = set()
    for about in unpacked.glob("usr/lib/edgeagent/vendor/*.dist-info/METADATA"):
        said = HeaderParser().parsestr(about.read_text())
        found.add(f"{plain(str(said['Name']))}=={said['Version']}")
    assert found == {
        f"{plain(one.requirement.name)}{one.requirement.specifier}"
        for one in locked("requirements.lock")
    }


def test_nothing_is_missing_for_any_python(unpacked: Path) -> None:
    about = [
        HeaderParser().parsestr(path.read_text())
        for path in unpacked.glob("usr/lib/edgeagent/*/*.dist-info/METADATA")
    ]
    versions = {plain(str(one["Name"])): str(one["Version"]) for one in about}
    for one in about:
        for wanted in map(Requirement, map(str, one.get_all("Requires-Dist", []))):
            for python in PYTHONS:
                if applies(wanted, python):
                    version = versions[plain(wanted.name)]
                    assert wanted.specifier.contains(version, prereleases=True), (wanted, python)


def test_compiled_modules_are_of_the_architecture_and_for_each_python(
    unpacked: Path, architecture: str
) -> None:
    found = sorted(path for path in unpacked.rglob("*") if ".so" in path.suffixes)
    for path in found:
        head = path.read_bytes()[:20]
        assert head[:6] == b"\x7fELF\x02\x01", path  # 64 bits, little end first
        assert struct.unpack("<H", head[18:20]) == (MACHINES[architecture],), path
    names = {path.name for path in found}
    for python in PYTHONS:
        tag = python.replace(".", "")
        assert f"_pydantic_core.cpython-{tag}-{TAGS[architecture]}.so" in names
    assert len(names) == len(PYTHONS) + 1  # psutil's is one for all of them


def test_both_architectures_have_the_same_modules(dist: Path, tmp_path: Path) -> None:
    def names(architecture: str) -> set[str]:
        listed = subprocess.run(
            ["dpkg-deb", "-c", next(dist.glob(f"*_{architecture}.deb"))],
            check=True, capture_output=True, encoding="utf-8",
        ).stdout  # fmt: skip
        return {line.split()[5].replace(TAGS[architecture], "*") for line in listed.splitlines()}

    assert names("amd64") == names("arm64")


def test_files_are_roots_dated_alike_and_writable_by_root_alone(deb: Path) -> None:
    listed = subprocess.run(
        ["dpkg-deb", "-c", deb], check=True, capture_output=True, encoding="utf-8"
    ).stdout.splitlines()
    assert {line.split()[1] for line in listed} == {"root/root"}
    assert len({tuple(line.split()[3:5]) for line in listed}) == 1
    for line in listed:
        rights, name = line[:10], line.split()[5]
        program = name.startswith(("./usr/bin/", "./usr/share/python3/runtime.d/"))
        example = name.endswith("make-pki.sh")
        wanted = "drwxr-xr-x" if name.endswith("/") else "-rwxr-xr-x" if program else "-rw-r--r--"
        assert rights == wanted or example, line


def test_nothing_of_the_builders_machine_is_inside(unpacked: Path) -> None:
    words = [b"edgeagent-build.", str(Path.home() / ".cache").encode(), b"/site-packages/"]
    for path in unpacked.rglob("*"):
        assert path.name not in {"__pycache__", "RECORD.jws", "INSTALLER", "direct_url.json"}
        if path.is_file() and "vendor" not in path.parts:
            found = [word for word in words[:2] if word in path.read_bytes()]
            assert not found, path
        assert path.suffix != ".pyc"


def test_the_package_asks_for_what_it_needs_and_no_more(control: dict[str, str]) -> None:
    depends = {each.strip() for each in control["Depends"].split(",")}
    assert depends == {
        "python3 (>= 3.10)", "python3 (<< 3.15)", "libc6 (>= 2.17)", "libgcc-s1",
        "systemd | systemd-standalone-sysusers",
    }  # fmt: skip
    recommended = {each.split()[0] for each in control["Recommends"].split(",")}
    assert recommended == {"python3-cryptography", "python3-jinja2", "python3-matplotlib"}
    assert control["Maintainer"]
    assert int(control["Installed-Size"]) < 64 << 10


def test_compiled_modules_need_no_newer_c_library_than_the_package_says(
    unpacked: Path, control: dict[str, str]
) -> None:
    floor = (2, 17)
    assert "libc6 (>= 2.17)" in control["Depends"]
    for path in unpacked.rglob("*.so"):
        asked = {
            tuple(map(int, found.split(b".")))
            for found in re.findall(rb"GLIBC_([0-9]+\.[0-9]+)", path.read_bytes())
        }
        assert max(asked) <= floor, path


def test_the_configuration_is_the_only_conffile(scripts: Path) -> None:
    assert (scripts / "conffiles").read_text().split() == CONFFILES


def test_the_shipped_configuration_sets_nothing(unpacked: Path) -> None:
    lines = (unpacked / "etc/edgeagent/edgeagent.toml").read_text().splitlines()
    assert not [line for line in lines if line.strip() and line[0] not in "#["]
    assert list((unpacked / "etc/edgeagent/conf.d").iterdir()) == []


def test_units_name_pages_and_programs_that_the_package_has(unpacked: Path) -> None:
    units = sorted((unpacked / "usr/lib/systemd/system").iterdir())
    assert {"edgeagent.service", "edgeagent-fleet.service", "edgeagent-sweep@.timer"} <= {
        unit.name for unit in units
    }
    for unit in units:
        text = unit.read_text()
        for page in re.findall(r"^Documentation=file://(/\S+)$", text, re.MULTILINE):
            assert (unpacked / page.lstrip("/")).is_file(), (unit.name, page)
        for program in re.findall(r"^Exec\w+=[-@:+!]*(/\S+)", text, re.MULTILINE):
            ours = program.startswith("/usr/bin/edgeagent")
            assert not ours or (unpacked / program.lstrip("/")).is_file(), (unit.name, program)


def test_users_that_units_run_as_are_made(unpacked: Path) -> None:
    made = re.findall(
        r"^u!? (\S+)", (unpacked / "usr/lib/sysusers.d/edgeagent.conf").read_text(), re.MULTILINE
    )
    for unit in (unpacked / "usr/lib/systemd/system").iterdir():
        for user in re.findall(r"^User=(\S+)", unit.read_text(), re.MULTILINE):
            assert user in made or user == "root", unit.name


def test_every_licence_is_told_with_its_text(unpacked: Path) -> None:
    text = (unpacked / "usr/share/doc/edgeagent/copyright").read_text()
    assert text.startswith("Format: https://www.debian.org/doc/packaging-manuals/copyright-format")
    paragraphs = text.split("\n\n")
    for info in unpacked.glob("usr/lib/edgeagent/vendor/*.dist-info"):
        [own] = [one for one in paragraphs if f"/{info.name}/*" in one]
        assert re.search(r"^Copyright: \S", own, re.MULTILINE), info.name
        licence = own.partition("\nLicense: ")[2]
        known = licence.strip() in {"Apache-2.0", "MPL-2.0"}  # in a paragraph of their own
        assert known or len(licence) > 500, info.name
    crates = next(one for one in paragraphs if "vendor/pydantic_core/*.so" in one)
    assert "pyo3 " in crates
    assert "UNICODE LICENSE V3" in crates


def test_the_list_of_parts_is_that_of_the_lock(dist: Path, unpacked: Path) -> None:
    handed_out = next(dist.glob("*.cdx.json")).read_bytes()
    assert (unpacked / "usr/share/doc/edgeagent/edgeagent.cdx.json").read_bytes() == handed_out
    parts = json.loads(handed_out)
    assert parts["bomFormat"] == "CycloneDX"
    assert "serialNumber" not in parts  # it would be another one each time
    about = parts["metadata"]["component"]
    assert next(dist.glob("*.whl")).name == f"edgeagent-{about['version']}-py3-none-any.whl"
    found = {f"{plain(one['name'])}=={one['version']}" for one in parts["components"]}
    assert found == {
        f"{plain(one.requirement.name)}{one.requirement.specifier}"
        for one in locked("requirements.lock")
    }
    assert all(one["licenses"] and one["purl"] for one in parts["components"])
    [compiled] = [one for one in parts["components"] if plain(one["name"]) == "pydantic-core"]
    assert "pyo3" in {one["name"] for one in compiled["components"]}


def test_the_sums_are_those_of_what_lies_there(dist: Path) -> None:
    subprocess.run(
        ["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"], cwd=dist, check=True
    )
    assert len((dist / "SHA256SUMS").read_text().splitlines()) == 5
