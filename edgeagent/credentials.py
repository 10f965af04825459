"""Is a file one that systemd keeps for this service?

Such a file is guarded by its folder: the access list that lets the service in shows as a right of
the group (mode 0440, systemd 257), and says nothing about others.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

FOLDER_VARIABLE = "CREDENTIALS_DIRECTORY"
"""Where systemd puts what LoadCredential= names."""


def is_credential(path: Path, environ: Mapping[str, str]) -> bool:
    """Whether the file lies in the folder of this service's credentials."""
    folder = environ.get(FOLDER_VARIABLE)
    return bool(folder) and path.resolve().parent == Path(str(folder)).resolve()
