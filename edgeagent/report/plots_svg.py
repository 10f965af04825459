"""How does an SVG that matplotlib wrote become part of a page?

It is read and built anew from what is known: the elements and attributes that a drawing needs, no
others. So nothing in it can run, load or reach out of the page, whatever a name contained. On the
way
    ids       are made unique in the page (a prefix), and only those that are referred to stay;
    colours   become the page's variables (plot_style.py), with fallbacks;
    words     take the place of `t0`, `t1`, …, and the page's font;
    numbers   lose the decimals that nobody sees.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal
from xml.etree import ElementTree as ET

from edgeagent.report.plot_style import FONT, REFERENCES, TEXT
from edgeagent.report.plots_words import clean

_SVG = "{http://www.w3.org/2000/svg}"
_XLINK = "{http://www.w3.org/1999/xlink}href"

_ELEMENTS = frozenset({"svg", "g", "defs", "path", "use", "clipPath", "rect", "text"})
_ATTRIBUTES = frozenset(
    {"id", "d", "x", "y", "width", "height", "transform", "clip-path", "style", "viewBox"}
)
_DECIMALS = re.compile(r"-?\d+\.\d{3,}")
_REFERENCE = re.compile(r"url\(#([^)]+)\)")
_PLACE = re.compile(r"t(\d+)")
_COLOUR = re.compile(r"#[0-9a-f]{6}")
_HALO = "paint-order: stroke; stroke: var(--plot-paper, #ffffff); stroke-width: 3px"


@dataclass(frozen=True)
class Words:
    """What is written at one place."""

    text: str
    weight: Literal["plain", "strong"] = "plain"


def inlined(svg: str, prefix: str, words: Sequence[Words], label: str) -> str:
    """Return an SVG element to stand in an HTML page; `label` is what a screen reader says."""
    root = ET.fromstring(svg)  # noqa: S314  # because what is read was written by us
    names = {old: f"{prefix}-{n}" for n, old in enumerate(_referred(root))}
    drawn = _built(root, names, words)
    for size in ("width", "height"):
        drawn.attrib.pop(size, None)
    drawn.attrib = {
        "xmlns": _SVG.strip("{}"),
        "class": "plot",
        "role": "img",
        "aria-label": clean(label),
        "width": "100%",
        **drawn.attrib,
        "style": f"font-family: {FONT}; stroke-linejoin: round; stroke-linecap: butt",
    }
    return ET.tostring(drawn, encoding="unicode")


def _referred(root: ET.Element) -> tuple[str, ...]:
    """Return the ids that something refers to, in their order."""
    found: dict[str, None] = {}
    for element in root.iter():
        for name, value in element.attrib.items():
            if name in {_XLINK, "href"}:
                found[value.removeprefix("#")] = None
            found.update(dict.fromkeys(_REFERENCE.findall(value)))
    return tuple(found)


def _built(element: ET.Element, names: Mapping[str, str], words: Sequence[Words]) -> ET.Element:
    made = ET.Element(element.tag.removeprefix(_SVG))
    for name, value in element.attrib.items():
        if name == "id":
            if value in names:
                made.set("id", names[value])
        elif name in {_XLINK, "href"}:
            made.set("href", f"#{names[value.removeprefix('#')]}")
        elif name in _ATTRIBUTES:
            made.set(name, _value(name, value, names))
    if made.tag == "text":
        _write(made, element.text or "", words)
        return made
    for child in element:
        if str(child.tag).removeprefix(_SVG) in _ELEMENTS:
            inner = _built(child, names, words)
            if inner.tag == "g" and not inner.attrib:
                made.extend(inner)  # because a group that says nothing is nothing
            else:
                made.append(inner)
    return made


def _value(name: str, value: str, names: Mapping[str, str]) -> str:
    value = _REFERENCE.sub(lambda found: f"url(#{names[found.group(1)]})", value)
    if name == "style":
        value = _COLOUR.sub(lambda found: REFERENCES.get(found.group(), found.group()), value)
    elif name != "viewBox":
        value = _DECIMALS.sub(lambda found: _shorter(float(found.group())), value)
    return " ".join(value.split())


def _shorter(number: float) -> str:
    return f"{number:.2f}".rstrip("0").rstrip(".")


def _write(made: ET.Element, place: str, words: Sequence[Words]) -> None:
    """Set the words of one place, in the page's font."""
    found = _PLACE.fullmatch(place.strip())
    chosen = words[int(found.group(1))] if found else Words("")
    made.text = clean(chosen.text)
    style = made.get("style", "")
    kept = [
        part.strip()
        for part in style.split(";")
        if part.strip() and not part.strip().startswith("font")
    ]
    weight = ["font-weight: 600"] if chosen.weight == "strong" else []
    made.set("style", "; ".join([f"font-size: {TEXT:g}px", *weight, *kept, _HALO]))
    # rotate(-0 x y) turns nothing
    if re.fullmatch(r"rotate\(-?0 [^)]*\)", made.get("transform", "")):
        del made.attrib["transform"]
