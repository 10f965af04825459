"""Which name has a box on the plant's broker, and in its results, unless it was given one?"""

from __future__ import annotations

import re

_LONGEST = 63


def node_name(host_name: str) -> str:
    """The host's name as a name of a node: lower case, - for what is not a-z, 0-9 or -.

    Always one that a topic may hold: 2 to 63 characters, none of them - at its beginning.
    """
    name = re.sub(r"[^a-z0-9-]", "-", host_name.lower()).lstrip("-")[:_LONGEST]
    return name if len(name) > 1 else f"node-{name}".rstrip("-")
