"""How do the seven answers read on a terminal?"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

from edgeagent.core.answers import QUESTIONS
from edgeagent.report.reading import mapping, sequence

_INDENT = "   "


def render(document: Mapping[str, object], width: int) -> str:
    """Return question, answer and details, one below the other."""
    answers = mapping(document.get("answers"))
    blocks = []
    for number, question in QUESTIONS.items():
        answer = mapping(answers.get(number))
        lines = [f"{number}  {question}", *_wrapped(str(answer.get("text") or "not in it"), width)]
        for detail in sequence(answer.get("details")):
            lines += _wrapped(f"- {detail}", width, "  ")
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"


def _wrapped(text: str, width: int, hanging: str = "") -> list[str]:
    return textwrap.wrap(
        text,
        max(40, width),
        initial_indent=_INDENT,
        subsequent_indent=_INDENT + hanging,
        break_long_words=False,
        break_on_hyphens=False,
    )
