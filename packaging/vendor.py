"""What lies in /usr/lib/edgeagent/vendor?

One tree an architecture that serves every Python of `PYTHONS`: what requirements.lock names, taken
from wheels alone, once for each Python, and laid over each other. Compiled modules carry their
Python in their names, so they lie side by side; everything else must be the same for all, and it is
checked. No compiler and no emulation is needed.

    packaging/vendor.py ARCHITECTURE FOLDER      (amd64 or arm64; FOLDER is made)
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
PLATFORMS = {"amd64": "x86_64-manylinux_2_17", "arm64": "aarch64-manylinux_2_17"}
STRIP = {"amd64": "x86_64-linux-gnu-strip", "arm64": "aarch64-linux-gnu-strip"}
_UNUSED = ("--strip-unneeded", "--remove-section=.comment", "--remove-section=.note")
LOCK = Path(__file__).with_name("requirements.lock")

# uv's own note, programs that nobody calls from a private tree, an example of nvidia-ml-py
_LEFT_OUT = (".lock", "bin", "example.py")
# says who installed it, and what; both of another place than the package's
_NOTES = ("INSTALLER", "REQUESTED", "RECORD", "direct_url.json", "uv_cache.json")


def make(architecture: str, folder: Path) -> None:
    """Make the tree for an architecture at `folder`, which must not exist."""
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".vendor-") as place:
        tree = Path(place) / "tree"
        tree.mkdir()
        for python in PYTHONS:
            single = Path(place) / python
            _install(architecture, python, single)
            _lay_over(single, tree)
            shutil.rmtree(single)
        _settle(tree, STRIP[architecture])
        tree.rename(folder)


def _install(architecture: str, python: str, target: Path) -> None:
    subprocess.run(
        [
            os.environ.get("UV", "uv"), "pip", "install", "--quiet", "--no-config", "--no-deps",
            "--no-compile-bytecode", "--require-hashes", "--only-binary", ":all:",
            "--link-mode", "copy", "--python-platform", PLATFORMS[architecture],
            "--python-version", python, "--target", target, "-r", LOCK,
        ],
        check=True,
    )  # fmt: skip


def _lay_over(single: Path, tree: Path) -> None:
    for source in sorted(single.rglob("*")):
        name = source.relative_to(single)
        if name.parts[0] in _LEFT_OUT or "__pycache__" in name.parts or name.name in _NOTES:
            continue
        target = tree / name
        if source.is_dir():
            target.mkdir(exist_ok=True)
        elif not target.exists():
            shutil.copyfile(source, target)
        elif source.read_bytes() != target.read_bytes() and not _of_one_wheel(name):
            raise SystemExit(
                f"vendor: {name} is not the same for every Python: it cannot be shared"
            )


def _of_one_wheel(name: Path) -> bool:
    """What differs between wheels of one version by its nature: the first one's stays.

    WHEEL names the wheel's tag. A list of parts (sboms/) has the number and the time of its making.
    """
    return name.parts[0].endswith(".dist-info") and name.parts[1] in {"WHEEL", "sboms"}


def _settle(tree: Path, strip: str) -> None:
    """The same bytes and rights, whoever makes it: no symbols, no rights of the maker's umask."""
    for path in sorted(tree.rglob("*")):
        if path.suffix == ".so":
            subprocess.run([strip, *_UNUSED, path], check=True)
        path.chmod(0o755 if path.is_dir() else 0o644)
    tree.chmod(0o755)


if __name__ == "__main__":
    make(sys.argv[1], Path(sys.argv[2]).absolute())
