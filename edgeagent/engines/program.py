"""Is there a program behind the first word of a command?"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from edgeagent.errors import UsageError


def find(name: str, what: str, remedy: str) -> Path:
    """The file, as it is named, made absolute; links are not followed.

    `what` is what it should be ("a llama-server"), `remedy` what to do when PATH has none. Raises
    UsageError.
    """
    path = Path(name)
    if os.sep not in name:
        found = shutil.which(name)
        if found is None:
            raise UsageError(f"{name} was looked for in PATH and is not there: {remedy}")
        path = Path(found)
    if not path.exists():
        raise UsageError(f"--binary {path} does not exist: give the path of {what}")
    if path.is_dir():
        raise UsageError(f"--binary {path} is a folder: give the path of the program in it")
    if not os.access(path, os.X_OK):
        raise UsageError(f"--binary {path} is not executable: chmod +x it, or give another")
    return path.absolute()
