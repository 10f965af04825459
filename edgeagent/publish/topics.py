"""Where does each message stand in the plant's topic tree?

The prefix is a template with `{node}` and, mostly, `{site}`; everything below it is fixed, with a
fixed number of levels, so that one wildcard subscription works for a whole fleet. No topic that
carries a message has children: some SCADA systems overwrite the one with the other.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from edgeagent.errors import ConfigError

DEFAULT_PREFIX = "edgeagent/v1/{site}/{node}"

# because ids with wildcards passed pattern ACLs in old brokers (CVE-2017-7650), and a slash would
# shift every level after it
_ID = re.compile(r"[a-z0-9][a-z0-9-]{1,62}\Z")
_LEVEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z")
_PLACES = {"{site}", "{node}"}


@dataclass(frozen=True)
class Identity:
    """Which box speaks: plant site and node, both sound ids (see `checked_id`)."""

    site: str
    node: str

    def __post_init__(self) -> None:
        checked_id("site", self.site)
        checked_id("node", self.node)


@dataclass(frozen=True)
class Topics:
    """The topics of one node; `prefix` is already filled in."""

    prefix: str

    def full(self, below: str) -> str:
        """Return the whole topic for one below the prefix, such as "r/run/ID"."""
        return f"{self.prefix}/{below}"

    def below(self, topic: str) -> str | None:
        """Return what stands below the prefix, or None for a topic of somebody else."""
        head = f"{self.prefix}/"
        return topic[len(head) :] if topic.startswith(head) else None

    @property
    def status(self) -> str:
        """Birth, death and everything between, retained."""
        return self.full("status")

    @property
    def receipts(self) -> str:
        """Where the collector says how far it has got."""
        return self.full("rx")

    @property
    def commands(self) -> str:
        """The filter for requests to this node."""
        return self.full("cmd/#")


def topics(template: str, identity: Identity) -> Topics:
    """Fill the template in; ConfigError for one that is not sound.

    `{node}` has to stand in it, as a level of its own: two nodes must never share a topic.
    """
    levels = template.split("/")
    if "{node}" not in levels:
        raise ConfigError(
            f'mqtt.topic_prefix is "{template}" and lacks {{node}} as a level of its own; '
            f"write for example {DEFAULT_PREFIX}"
        )
    for level in levels:
        if level not in _PLACES and not _LEVEL.match(level):
            raise ConfigError(
                f'mqtt.topic_prefix is "{template}": the level "{level}" has to be {{site}}, '
                "{node} or letters, digits, dots, - and _, at most 63 of them"
            )
    filled = {"{site}": identity.site, "{node}": identity.node}
    return Topics("/".join(filled.get(level, level) for level in levels))


def checked_id(what: str, text: str) -> str:
    """Return `text` if it is a sound id: a-z, 0-9 and -, 2 to 63 characters; else ConfigError."""
    if not _ID.match(text):
        raise ConfigError(
            f'{what} is "{text}"; it has to be 2 to 63 characters of a-z, 0-9 and -, '
            "starting with a letter or digit"
        )
    return text


def kind(below: str) -> str:
    """Return the first two levels, which say what a message is: "r/run", "m/mem_1m", "e/gap"."""
    return "/".join(below.split("/", 2)[:2])
