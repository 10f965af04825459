"""What is a sweep to find out, kept in its folder before it begins?

A sweep that is started on somebody's behalf finds its question there, and goes on from it as after
an interruption.
"""

from __future__ import annotations

from pydantic_core import to_jsonable_python

from edgeagent.config import SweepRequest
from edgeagent.store.runfolder import RunFolder

PLAN = "plan.json"
PLAN_SCHEMA = "edgeagent.plan/1"
RESULT = "result.json"


def write_question(folder: RunFolder, request: SweepRequest) -> None:
    """Keep what is asked, for a sweep that begins later as if it went on."""
    asked = to_jsonable_python(request)
    folder.write_document(PLAN, {"schema": PLAN_SCHEMA, "request": asked})
