"""Are these the weights of a pair, and of which?

pair.json lies beside both forms of a model. Its `weights_digest` is one digest over the values
that both carry: two results with the same one were measured on equal weights.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

SCHEMA = "edgeagent.pair/1"
DESCRIPTION = "pair.json"
FOLDER = "hf"
_MAX_BYTES = 1 << 20
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def weights_digest(path: Path, sha256: str | None = None) -> str | None:
    """The digest of the pair that a GGUF file or a model folder is one form of, else None.

    `sha256` is that of the weights at `path`; when given it must be the one that the pair was
    written with, so that a file put there later does not pass for it.
    """
    found = _described(path.absolute().parent / DESCRIPTION)
    form = found.get("hf" if path.is_dir() else "gguf")
    digest = found.get("weights_digest")
    if found.get("schema") != SCHEMA or not isinstance(form, Mapping):
        return None
    if form.get("path") != path.absolute().name:
        return None
    if sha256 is not None and form.get("sha256") != sha256:
        return None
    return digest if isinstance(digest, str) and _DIGEST.fullmatch(digest) else None


def _described(file: Path) -> Mapping[str, object]:
    """What pair.json says; nothing when there is none or it is damaged."""
    try:
        if not file.is_file() or file.stat().st_size > _MAX_BYTES:
            return {}
        found = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
