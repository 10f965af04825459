"""docs/library.md says what the library has: a change of either is seen here."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest

import edgeagent
from edgeagent import api, errors

PAGE = (Path(__file__).parents[2] / "docs" / "library.md").read_text(encoding="utf-8")


def surface(source: str) -> dict[str, str]:
    """Public functions and what is public of classes, by name, in one form of writing."""
    found: dict[str, str] = {}
    for node in ast.parse(source).body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            found[node.name] = signature(node)
        elif isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{name}": text for name, text in members(node)}
    return {name: text for name, text in found.items() if not re.search(r"(^|\.)_", name)}


def members(node: ast.ClassDef) -> list[tuple[str, str]]:
    listed: list[tuple[str, str]] = []
    for inner in node.body:
        if isinstance(inner, ast.AnnAssign) and isinstance(inner.target, ast.Name):
            listed.append((inner.target.id, ast.unparse(inner.annotation)))
        elif isinstance(inner, (ast.FunctionDef, ast.AsyncFunctionDef)):
            of_value = any("property" in ast.unparse(one) for one in inner.decorator_list)
            assert inner.returns is not None
            text = ast.unparse(inner.returns) if of_value else signature(inner)
            listed.append((inner.name, text))
    return listed


def signature(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    assert node.returns is not None
    kind = "async " if isinstance(node, ast.AsyncFunctionDef) else ""
    return f"{kind}({ast.unparse(node.args)}) -> {ast.unparse(node.returns)}"


def documented() -> dict[str, str]:
    block = re.search(r"<!-- api -->\n```python\n(.*?)```", PAGE, re.DOTALL)
    assert block
    return surface(block[1])


NOT_FOR_USE = {"Plan.preview"}
"""How the parts hold together; nobody should rely on it."""


def test_the_page_has_every_function_and_every_member_as_the_code_has_them() -> None:
    in_code = {
        name: text
        for name, text in surface(inspect.getsource(api)).items()
        if not name.split(".")[0].endswith("Options") and name not in NOT_FOR_USE
    }
    assert documented() == in_code


@pytest.mark.parametrize("name", sorted(set(edgeagent.__all__) - {"__version__"}))
def test_the_page_tells_of_every_public_name(name: str) -> None:
    assert f"`{name}`" in PAGE


@pytest.mark.parametrize("name", sorted(set(edgeagent.__all__) - {"__version__"}))
def test_every_public_name_says_what_it_is(name: str) -> None:
    value = getattr(edgeagent, name)
    assert inspect.getdoc(value)
    own = vars(value) if inspect.isclass(value) and value.__module__ == api.__name__ else {}
    for member, inner in own.items():
        if not member.startswith("_") and inspect.isfunction(inner):
            assert inspect.getdoc(inner), f"{name}.{member}"


def test_every_error_is_public() -> None:
    ours = {name for name, value in vars(errors).items() if inspect.isclass(value)}
    assert ours == {name for name in edgeagent.__all__ if name.endswith("Error")}


def test_the_first_example_of_the_page_asks_for_what_may_be_asked_for() -> None:
    block = re.search(r"```python\n(import edgeagent.*?)```", PAGE, re.DOTALL)
    assert block
    calls = [n for n in ast.walk(ast.parse(block[1])) if isinstance(n, ast.Call)]
    (planned,) = [c for c in calls if ast.unparse(c.func) == "edgeagent.plan"]
    words = {keyword.arg for keyword in planned.keywords}
    assert words - {"engines"} <= set(edgeagent.SweepOptions.__annotations__)
