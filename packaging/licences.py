"""Under which licences is what the package contains?

Writes debian/copyright in Debian's machine-readable form (DEP-5): edgeagent itself, then each
vendored distribution with its own notices and the full text of its licence, as its wheel brings it.
Apache-2.0, MPL-2.0, which Debian has in /usr/share/common-licenses, are named there. The crates
that are compiled into pydantic-core are listed from the list of parts in its wheel; texts that the
wheel does not bring are in packaging/licences. A licence or a text that is missing ends the build:
somebody has to look.

    packaging/licences.py VENDOR          (writes to standard output)
"""

from __future__ import annotations

import json
import re
import sys
import textwrap
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path

HOME = "usr/lib/edgeagent"
SOURCE = "the source distribution of the same version, made by the same build"

# Debian's short names where they are not SPDX's
_DEBIAN = {"MIT": "Expat", "BSD": "BSD-3-clause", "BSD-3-Clause": "BSD-3-clause",
           "BSD-2-Clause": "BSD-2-clause", "PSF-2.0": "Python-2.0"}  # fmt: skip
_CLASSIFIERS = {"License :: OSI Approved :: MIT License": "MIT"}
# What every Debian system has; their long texts are not repeated (Debian policy, 12.5).
_COMMON = ("Apache-2.0", "MPL-2.0")
# Those of crates that we know, and have a text for, by preference.
_OF_CRATES = ("MIT", "Unicode-3.0", "Zlib")
# Works while others are compiled, and leaves only what it made of their own text.
_NOT_IN_THE_BINARY = {"unicode-ident"}
_EXPAT = "The text is that of pydantic-core above, with the copyright of these authors."
# Whose wheel has no file of its own for the licence: it opens this module.
_IN_MODULE = {"nvidia-ml-py": "pynvml.py"}


@dataclass(frozen=True)
class Distribution:
    """One vendored distribution."""

    name: str
    version: str
    licence: str
    """SPDX expression."""

    files: tuple[str, ...]
    """Below the vendor tree, as patterns."""

    texts: tuple[str, ...]
    """Its licence files, whole."""


def distributions(vendor: Path) -> list[Distribution]:
    """Every distribution of a vendor tree. Ends the build when one's licence is not clear."""
    return [_read(info) for info in sorted(vendor.glob("*.dist-info"))]


def _read(info: Path) -> Distribution:
    about = HeaderParser().parsestr((info / "METADATA").read_text(encoding="utf-8"))
    name, version = str(about["Name"]), str(about["Version"])
    texts = tuple(
        path.read_text(encoding="utf-8")
        for path in sorted({*info.glob("licenses/**/*"), *info.glob("LICEN[CS]E*")})
        if path.is_file() and path.name != "AUTHORS"
    )
    if not texts and name in _IN_MODULE:
        texts = (_opening(info.parent / _IN_MODULE[name]),)
    licence = _licence(about)
    if not licence or not texts:
        raise SystemExit(f"licences: {name} {version} has no licence, or not its text: look at it")
    return Distribution(name, version, licence, tuple(_files(info)), texts)


def _licence(about: Message) -> str | None:
    named = about["License-Expression"] or about["License"]
    if named:
        return "BSD-3-Clause" if named == "BSD" else str(named)
    found = [_CLASSIFIERS.get(str(one)) for one in about.get_all("Classifier", [])]
    return next((one for one in found if one), None)


def _opening(module: Path) -> str:
    """The comment that a module begins with."""
    lines = module.read_text(encoding="utf-8").splitlines()
    end = next(n for n, line in enumerate(lines) if n and not line.startswith("# ") and line != "#")
    return "\n".join(line.lstrip("# ") for line in lines[1:end])


def _files(info: Path) -> Iterator[str]:
    """Its modules and folders, of which a tree without RECORD keeps only the names."""
    top = info / "top_level.txt"
    stem = info.name.split("-")[0]
    known = {"nvidia_ml_py": ["pynvml"], "paho_mqtt": ["paho"], "markdown_it_py": ["markdown_it"]}
    names = known.get(stem) or (top.read_text().split() if top.exists() else [stem])
    for name in names:
        if (info.parent / name).is_dir():
            yield f"{name}/*"
        elif (info.parent / f"{name}.py").exists():
            yield f"{name}.py"
        else:
            raise SystemExit(f"licences: where are the modules of {info.name}?")
    yield f"{info.name}/*"


# ------------------------------------------------------------------------------------------- DEP-5


def copyright_file(vendor: Path) -> str:
    """The whole of debian/copyright."""
    found = distributions(vendor)
    parts = [
        _paragraph(
            Format="https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/",
            **{"Upstream-Name": "edgeagent", "Source": SOURCE},
            Comment=f"{HOME}/vendor holds what edgeagent depends on,\n as the wheels of the Python "
            "Package Index have it; edgeagent.cdx.json beside this\n file lists it with versions.",
        ),
        _paragraph(Files="*", Copyright="the authors of edgeagent", License="Apache-2.0"),
        *(_of(one) for one in found),
        *_crates(vendor),
        _paragraph(License="Apache-2.0\n" + _common("Apache-2.0")),
        _paragraph(License="MPL-2.0\n" + _common("MPL-2.0")),
    ]  # fmt: skip
    return "\n".join(parts)


def _of(one: Distribution) -> str:
    files = "\n ".join(f"{HOME}/vendor/{pattern}" for pattern in one.files)
    holders = "\n ".join(_holders(one.texts)) or "the authors of " + one.name
    name = _short(one.licence)
    if one.licence in _COMMON:
        return _paragraph(Files=files, Copyright=holders, License=name)
    return _paragraph(
        Files=files,
        Copyright=holders,
        License=f"{name}\n" + "\n .\n".join(_text(text) for text in one.texts),
    )


def _short(expression: str) -> str:
    words = expression.replace("(", "").replace(")", "").split()
    return " ".join(_DEBIAN.get(word, word.lower() if word in {"OR", "AND"} else word)
                    for word in words)  # fmt: skip


def _holders(texts: Sequence[str]) -> list[str]:
    """The lines that say whose it is, each once."""
    found: dict[str, None] = {}
    for line in "\n".join(texts).splitlines():
        match = re.match(r"\W*Copyright\s+(?:\([cC]\)|©)?\s*(.*\b(?:19|20)\d\d\b.*)", line)
        match = match or re.match(r"\W*Copyright\s+(Joyent.*)", line)
        if match:
            found[re.sub(r"\[(.*?)\]\(.*?\)", r"\1", match[1]).strip(" .#*")] = None
    return list(found)


def _text(text: str) -> str:
    """A licence's text as a field; Apache's long one by its place on every Debian system."""
    if re.search(r"Apache License\s+Version 2\.0, January 2004", text):
        return _common("Apache-2.0")
    return _indented(text)


def _indented(text: str) -> str:
    lines = (line.rstrip().expandtabs() for line in text.strip("\n").splitlines())
    return "\n".join(f" {line}" if line else " ." for line in lines)


def _common(name: str) -> str:
    return f" The text is in /usr/share/common-licenses/{name} on every Debian system."


def _paragraph(**fields: str) -> str:
    return "".join(f"{name}: {value}\n" for name, value in fields.items())


def _crates(vendor: Path) -> Iterator[str]:
    """What Rust has compiled into pydantic-core: by the licence that is used, with its text."""
    for path in sorted(vendor.glob("pydantic_core-*.dist-info/sboms/*.json")):
        used: dict[str, list[str]] = defaultdict(list)
        holders: dict[str, set[str]] = defaultdict(set)
        for part in json.loads(path.read_text(encoding="utf-8"))["components"]:
            if part.get("scope") == "excluded" or part["name"] in _NOT_IN_THE_BINARY:
                continue
            name = _choice(part["name"], part["licenses"])
            used[name].append(f"{part['name']} {part['version']}")
            authors = re.sub(r" *<[^>]*>", "", part.get("author", "")).split(", ")
            holders[name].update(filter(None, authors))
        yield _paragraph(
            Files=f"{HOME}/vendor/pydantic_core/*.so",
            Copyright="\n ".join(
                textwrap.wrap("; ".join(sorted(set().union(*holders.values()))), 76)
            ),
            License=" and ".join(_DEBIAN.get(name, name) for name in sorted(used))
            + "\n"
            + "\n .\n".join(_of_crates(name, parts) for name, parts in sorted(used.items())),
        )


def _of_crates(name: str, crates: Sequence[str]) -> str:
    """The crates that are used under one licence, and its text."""
    text = Path(__file__).parent / "licences" / f"{name}.txt"
    said = text.read_text(encoding="utf-8") if text.exists() else _EXPAT
    listed = textwrap.fill(
        f"{_DEBIAN.get(name, name)}: {', '.join(sorted(crates))}", 78, break_on_hyphens=False
    )
    return _indented(f"{listed}\n\n{said}")


def _choice(crate: str, licences: Sequence[Mapping[str, str]]) -> str:
    """The licence of those offered under which a crate is used here. Ends the build without one."""
    offered = {name for one in licences for name in one["expression"].split(" OR ")}
    for name in _OF_CRATES:
        if name in offered:
            return name
    raise SystemExit(f"licences: {crate} is offered under {' '.join(sorted(offered))}: look at it")


if __name__ == "__main__":
    sys.stdout.write(copyright_file(Path(sys.argv[1])))
