"""Which parts, with which versions and licences, is the package made of?

Makes the list of parts (SBOM, CycloneDX) with cyclonedx-py: edgeagent, and every distribution of
the vendor tree. To pydantic-core it adds the crates that are compiled into it, as the list in its
wheel has them, and checks the whole against CycloneDX's schema. The same input gives the same
bytes.

    packaging/sbom.py APP VENDOR PYPROJECT      (writes to standard output)
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any

from cyclonedx.schema import OutputFormat, SchemaVersion
from cyclonedx.validation import make_schemabased_validator

_SPEC = SchemaVersion.V1_6


def listed(app: Path, vendor: Path, pyproject: Path) -> str:
    """The list of parts as JSON. Ends the build when it does not keep to the schema."""
    with tempfile.TemporaryDirectory(prefix="edgeagent-sbom-") as place:
        python = _environment(Path(place) / "environment", app, vendor)
        version = next(app.glob("edgeagent-*.dist-info")).name.split("-")[1].removesuffix(".dist")
        about = Path(place) / "pyproject.toml"
        about.write_text(_static(pyproject.read_text(encoding="utf-8"), version), encoding="utf-8")
        found = json.loads(_cyclonedx(python, about))
    for inner in sorted(vendor.glob("pydantic_core-*.dist-info/sboms/*.json")):
        _nest(found, "pydantic-core", json.loads(inner.read_text(encoding="utf-8")))
    text = json.dumps(found, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
    faults = make_schemabased_validator(OutputFormat.JSON, _SPEC).validate_str(text)
    if faults:
        raise SystemExit(f"sbom: the list of parts does not keep to the schema: {faults}")
    return text


def _environment(folder: Path, *trees: Path) -> Path:
    """A virtual environment that holds the trees and nothing else: what cyclonedx-py reads."""
    venv.create(folder, symlinks=True)
    for tree in trees:
        shutil.copytree(tree, next(folder.glob("lib/*/site-packages")), dirs_exist_ok=True)
    return folder / "bin/python"


def _static(pyproject: str, version: str) -> str:
    """The project's own table, with the version that hatchling would have looked up."""
    return pyproject.replace('dynamic = ["version"]', f'version = "{version}"')


def _cyclonedx(python: Path, pyproject: Path) -> str:
    """What cyclonedx-py finds; not checked yet, for that is done once, when all is in it."""
    done = subprocess.run(
        [
            Path(sys.executable).with_name("cyclonedx-py"), "environment", "--output-reproducible",
            "--spec-version", _SPEC.to_version(), "--output-format", "JSON", "--no-validate",
            "--mc-type", "application", "--pyproject", pyproject, python,
        ],
        check=False, capture_output=True, encoding="utf-8",
    )  # fmt: skip
    if done.returncode != 0:
        raise SystemExit(f"sbom: cyclonedx-py has failed: {done.stderr.strip()}")
    return done.stdout


def _nest(found: dict[str, Any], name: str, inner: dict[str, Any]) -> None:
    """Put the parts of a compiled distribution into it, and what they need beside the rest."""
    outer = next(one for one in found["components"] if one["name"].replace("_", "-") == name)
    outer["components"] = [one for one in inner["components"] if one.get("scope") != "excluded"]
    kept = {one["bom-ref"] for one in outer["components"]}
    needs = {
        one["ref"]: sorted(kept.intersection(one.get("dependsOn", [])))
        for one in inner["dependencies"]
    }
    found["dependencies"] += [
        {"ref": ref, "dependsOn": after} for ref, after in sorted(needs.items()) if ref in kept
    ]


if __name__ == "__main__":
    sys.stdout.write(listed(*map(Path, sys.argv[1:4])))
