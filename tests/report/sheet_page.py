"""A finished sheet as a test looks at it: elements, their texts, where values say they are from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

_VOID = {"meta", "link", "br", "img", "input", "hr"}


@dataclass
class Element:
    """An element and what is in it, in order."""

    tag: str
    attributes: dict[str, str]
    children: list[Element | str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(c if isinstance(c, str) else c.text for c in self.children)

    def all(self, tag: str | None = None, **attributes: str | None) -> Iterator[Element]:
        """Every element inside with this tag and these attributes, in the order of the page."""
        for child in self.children:
            if isinstance(child, str):
                continue
            wanted = {name.replace("_", "-"): value for name, value in attributes.items()}
            if tag in {None, child.tag} and all(
                name in child.attributes and value in {None, child.attributes[name]}
                for name, value in wanted.items()
            ):
                yield child
            yield from child.all(tag, **attributes)

    def open_texts(self, skipped: Sequence[str], tags: Sequence[str]) -> Iterator[str]:
        """Texts that stand in no element with one of these attributes or tags."""
        for child in self.children:
            if isinstance(child, str):
                yield child
            elif child.tag not in tags and not set(skipped) & set(child.attributes):
                yield from child.open_texts(skipped, tags)


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.root = Element("", {})
        self.open = [self.root]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {name: value or "" for name, value in attrs})
        self.open[-1].children.append(element)
        if tag not in _VOID:
            self.open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open[-1].children.append(Element(tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open[-1].tag == tag, f"</{tag}> closes <{self.open[-1].tag}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.open[-1].children.append(data)


def parsed(html: str) -> Element:
    """The page as elements; every one of them is closed where it should be."""
    reader = _Reader()
    reader.feed(html)
    reader.close()
    assert [element.tag for element in reader.open] == [""]
    return reader.root


def looked_up(documents: Sequence[Any], pointer: str) -> Any:
    """What a document has at a place: the run's number, then a JSON pointer."""
    run, *steps = pointer.split("/")
    value: Any = documents[int(run)]
    for step in steps:
        key = step.replace("~1", "/").replace("~0", "~")
        value = value[int(key)] if isinstance(value, list) else value[key]
    return value
