r"""Which bytes stand for a JSON value, however it was laid out in its file?

What is signed must not depend on spaces or on the order of keys. The canonical form, after
RFC 8785 but for numbers and the order of rare keys:

- UTF-8, no spaces, no line break at the end.
- Keys of an object in the order of their code points, each once.
- Strings: `"` and `\` get a backslash; \b \f \n \r \t are written so, other characters below
  U+0020 as \u00xx; everything else stands for itself. Half a surrogate pair, which UTF-8 cannot
  hold (a path that is not UTF-8 becomes such), is written \udxxx.
- Integers as decimal digits. Other numbers as Python's `repr`: the shortest digits that give the
  same double again, always with a point or an exponent (0.1, 1.0, 1e-07). RFC 8785 would write
  1.0 as 1, so a count and a measurement would look alike.
- No NaN, no infinity.

So it is, in one line of Python:
    json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        .encode("utf-8", "backslashreplace")
"""

from __future__ import annotations

import hashlib
import json


def canonical(value: object) -> bytes:
    """The one way to write a JSON value. Raises ValueError for NaN and infinity."""
    text = json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    return text.encode("utf-8", "backslashreplace")


def digest(value: object) -> str:
    """SHA-256 of the canonical form, as `sha256:` and hexadecimal digits."""
    return f"sha256:{hashlib.sha256(canonical(value)).hexdigest()}"
