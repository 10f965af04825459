"""What does the plant keep of its boxes, and how is it written and read?

One database by URL: `sqlite:///var/lib/edgeagent-fleet/fleet.db` (nothing to install) or
`postgresql://…` (several collectors). The tables stand in migrations.py. Whoever reads writes plain
SQL with `?` for values and asks `dialect` only where the two databases differ.

A row is known by (node, epoch, stream, seq): writing it twice changes nothing. The watermark of a
stream is the number up to which everything is stored or declared lost; it is computed inside the
transaction that stores, so that a receipt never says more than what is on disk.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

from edgeagent.errors import UnreachableError, UsageError

Dialect = Literal["sqlite", "postgres"]
Purpose = Literal["collect", "write", "read"]
"""collect: the one that stores (on SQLite there may be one); write: retire and the like; read."""
StreamKey: TypeAlias = tuple[str, str, str]
"""Node, epoch, stream."""

TELEMETRY_KINDS = ("mem_1m", "gpu_1m")
"""Minutes that table telemetry has; of any other kind a row is kept as it came."""

DEFAULT_URL = "sqlite:///var/lib/edgeagent-fleet/fleet.db"


class StoreAwayError(UnreachableError):
    """The database does not answer or takes nothing now; what was to be written was not."""


class RowRefusedError(Exception):
    """The database takes a value of the batch under no circumstances; the batch was not written."""


class MessageRow(NamedTuple):
    """A row of stream R, or one of any stream whose schema nobody here knows, as it came.

    `ts_ms` is the box's, repaired when it could not know the time; the payload has what it said.
    `payload` is None for a result that stands in table run.
    """

    node: str
    epoch: str
    stream: str
    seq: int
    schema: str
    kind: str
    ts_ms: int
    rx_ms: int
    boot: str
    mono_ms: int
    clk: str
    payload: str | None


class TelemetryRow(NamedTuple):
    """A minute of telemetry; `v` is JSON of numbers, `box_ms` the time that the box gave."""

    node: str
    epoch: str
    stream: str
    seq: int
    kind: str
    ts_ms: int
    box_ms: int
    rx_ms: int
    clk: str
    v: str


class PointRow(NamedTuple):
    """One level of concurrency of one run, flat; `v` is JSON of everything that it said."""

    node: str
    epoch: str
    seq: int
    run: str
    point: str
    engine: str | None
    engine_ver: str | None
    model: str | None
    quant: str | None
    ctx: int | None
    slots: int | None
    concurrency: int
    prefix_cache: str | None
    speculation: str | None
    ts_ms: int
    output_tokens_per_s: float | None
    ttft_p50_s: float | None
    ttft_p95_s: float | None
    tpot_p50_s: float | None
    tpot_p95_s: float | None
    e2e_p95_s: float | None
    goodput_per_s: float | None
    requests_ok: int | None
    requests_failed: int | None
    memory_bytes_per_slot: float | None
    max_slots: int | None
    v: str


class RunRow(NamedTuple):
    """A result; `document` is JSON of the result itself, `class_` the box's (result.host.class).

    `comparison` and `findings` are those of the document: nobody has to read the whole of it for
    their sake.
    """

    node: str
    run_id: str
    epoch: str
    seq: int
    status: str
    extent: str
    started_at: str | None
    finished_at: str | None
    class_: str | None
    ts_ms: int
    rx_ms: int
    result_sha256: str | None
    result_file: str | None
    document: str
    comparison: str | None = None
    findings: str | None = None


class GapRow(NamedTuple):
    """Numbers that will not come, both ends inclusive; multiples of `every` are not meant."""

    node: str
    epoch: str
    stream: str
    first: int
    last: int
    every: int | None
    reason: str
    rx_ms: int


class UnclearRow(NamedTuple):
    """A row whose box did not know the time; put right once a later row of the boot knows it."""

    node: str
    boot: str
    epoch: str
    stream: str
    seq: int
    mono_ms: int


class BootRow(NamedTuple):
    """Of a boot: wall clock minus monotonic clock, as its latest row with a true clock says."""

    node: str
    boot: str
    offset_ms: int
    mono_ms: int


class Quarantined(NamedTuple):
    """A message that was not stored as a box's row, and why; `payload` is its beginning."""

    rx_ms: int
    topic: str
    reason: str
    payload: str
    size: int


class HourMark(NamedTuple):
    """An hour of telemetry of which rows came, so that it has to be summed up (again)."""

    node: str
    kind: str
    hour_ms: int


class NodeNews(NamedTuple):
    """What a batch says about a box itself; None where it says nothing."""

    node: str
    site: str
    rx_ms: int
    status: Mapping[str, Any] | None = None
    meta: Mapping[str, Any] | None = None
    live: Mapping[str, Any] | None = None
    """Last live values by their name; never in a table of their own."""
    clk: str | None = None
    lag_ms: int | None = None
    """Our clock minus the box's when it came; None for replays, which are late by nature."""


@dataclass(frozen=True)
class Batch:
    """What is written together, wholly or not at all."""

    messages: Sequence[MessageRow] = ()
    telemetry: Sequence[TelemetryRow] = ()
    points: Sequence[PointRow] = ()
    runs: Sequence[RunRow] = ()
    gaps: Sequence[GapRow] = ()
    boots: Sequence[BootRow] = ()
    unclear: Sequence[UnclearRow] = ()
    hours: Sequence[HourMark] = ()
    nodes: Sequence[NodeNews] = ()
    quarantined: Sequence[Quarantined] = ()
    now_ms: int = 0


@dataclass(frozen=True)
class Watermark:
    """How far a stream of a box is stored; `seen` is the highest number that came or was declared.

    `touched_ms` changes with each batch that has rows of it, even if all of them were known.
    """

    node: str
    epoch: str
    stream: str
    wm: int
    seen: int
    born_ms: int
    touched_ms: int


@dataclass(frozen=True)
class Taken:
    """What became of a batch; rows that were known already are `known`."""

    stored: int
    known: int
    watermarks: Mapping[StreamKey, int] = field(default_factory=dict)
    """Of the streams that the batch had rows of."""


class Store(Protocol):
    """A database of the fleet. Every method raises StoreAwayError when it does not answer."""

    @property
    def dialect(self) -> Dialect:
        """Which SQL it speaks."""
        ...

    def take(self, batch: Batch) -> Taken:
        """Write a batch in one transaction, durably; RowRefusedError if it cannot be written."""
        ...

    def claim(self, node: str, site: str) -> str:
        """Return the site that owns a node: `site` itself if nobody did, or it was retired."""
        ...

    def owners(self) -> dict[str, str]:
        """Return the site of every node."""
        ...

    def watermarks(self, since_ms: int = 0) -> list[Watermark]:
        """Return the watermarks touched at or after this moment (the collector's clock)."""
        ...

    def leads(self) -> bool:
        """Return whether this one may send receipts: one of all that share the database."""
        ...

    def tidy(self, now_ms: int, keep_ms: int, most: int) -> int:
        """Sum hours of telemetry up, `most` at a time, and return how many it were.

        Where nothing else is due, some of what is too old is dropped: minutes after `keep_ms`.
        """
        ...

    def query(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Read: SQL with `?` for values. JSON columns come as text in both databases."""
        ...

    def change(self, sql: str, values: Sequence[object] = ()) -> int:
        """Write one statement in a transaction of its own; return how many rows it changed."""
        ...

    def close(self) -> None:
        """Let go of it."""
        ...


def open_store(url: str, purpose: Purpose = "read") -> Store:
    """Open by URL; "collect" and "write" lay out or migrate the tables first.

    Raises StoreAwayError, ConfigError (psycopg is missing), UsageError (no such kind of URL, or
    nothing there to read), BusyError (a second collector on one SQLite file).
    """
    # Here, not above: psycopg is an extra, and each of the two is used alone.
    if url.startswith("sqlite:///"):
        from edgeagent.fleet.store_sqlite import open_sqlite

        return open_sqlite(url.removeprefix("sqlite://"), purpose)
    if url.startswith(("postgresql://", "postgres://")):
        from edgeagent.fleet.store_postgres import open_postgres

        return open_postgres(url, purpose)
    raise UsageError(
        f'"{shown(url)}" names no store; write {DEFAULT_URL} or postgresql://USER@HOST/DATABASE'
    )


def shown(url: str) -> str:
    """Return a URL without its password, for messages and logs."""
    head, at, tail = url.rpartition("@")
    scheme, slashes, user = head.partition("://")
    if not at or not slashes:
        return url
    return f"{scheme}://{user.partition(':')[0]}@{tail}"
