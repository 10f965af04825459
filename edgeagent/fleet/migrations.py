"""How are the fleet's tables laid out, and how did they come to be so?

Numbered steps, each applied once, in a transaction, the same for both databases; where they differ
stands a word in braces. A step that was released is never changed: add the next.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from edgeagent.errors import UsageError
from edgeagent.fleet.store import Dialect, Purpose

_PART = "CASE WHEN json_valid(document) THEN json_extract(document, '$.{}') END"
_WORDS: Mapping[Dialect, Mapping[str, str]] = {
    "sqlite": {
        "json": "TEXT",
        "id": "INTEGER PRIMARY KEY AUTOINCREMENT",
        "box_in_key": "",
        "comparison": _PART.format("comparison"),
        "findings": _PART.format("findings"),
    },
    "postgres": {
        "json": "JSONB",
        "id": "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
        "box_in_key": "",
        "comparison": "document -> 'comparison'",
        "findings": "document -> 'findings'",
    },
}

STEPS: tuple[str, ...] = (
    """
CREATE TABLE node (
  node TEXT PRIMARY KEY,
  site TEXT NOT NULL,
  first_rx_ms BIGINT NOT NULL,
  last_rx_ms BIGINT NOT NULL,
  state TEXT,
  session_n BIGINT,
  status_ms BIGINT,
  status {json},
  meta {json},
  live {json},
  clk TEXT,
  lag_ms BIGINT,
  cert_not_after_ms BIGINT,
  backlog_rows BIGINT,
  health TEXT,
  version TEXT,
  class TEXT,
  retired_ms BIGINT
);
CREATE TABLE message (
  node TEXT NOT NULL,
  epoch TEXT NOT NULL,
  stream TEXT NOT NULL,
  seq BIGINT NOT NULL,
  schema TEXT NOT NULL,
  kind TEXT NOT NULL,
  ts_ms BIGINT NOT NULL,
  rx_ms BIGINT NOT NULL,
  boot TEXT NOT NULL,
  mono_ms BIGINT NOT NULL,
  clk TEXT NOT NULL,
  payload TEXT,
  PRIMARY KEY (node, epoch, stream, seq)
);
CREATE INDEX message_kind ON message (kind, ts_ms);
CREATE TABLE telemetry (
  node TEXT NOT NULL,
  epoch TEXT NOT NULL,
  stream TEXT NOT NULL,
  seq BIGINT NOT NULL,
  kind TEXT NOT NULL,
  ts_ms BIGINT NOT NULL,
  box_ms BIGINT NOT NULL,
  rx_ms BIGINT NOT NULL,
  clk TEXT NOT NULL,
  v {json} NOT NULL,
  PRIMARY KEY (node, epoch, stream, seq{box_in_key})
);
CREATE INDEX telemetry_time ON telemetry (node, kind, ts_ms);
CREATE TABLE telemetry_hour (
  node TEXT NOT NULL,
  kind TEXT NOT NULL,
  hour_ms BIGINT NOT NULL,
  name TEXT NOT NULL,
  n BIGINT NOT NULL,
  min DOUBLE PRECISION,
  mean DOUBLE PRECISION,
  max DOUBLE PRECISION,
  PRIMARY KEY (node, kind, hour_ms, name)
);
CREATE INDEX telemetry_hour_name ON telemetry_hour (name, hour_ms);
CREATE TABLE stale_hour (
  node TEXT NOT NULL,
  kind TEXT NOT NULL,
  hour_ms BIGINT NOT NULL,
  marked_ms BIGINT NOT NULL,
  PRIMARY KEY (node, kind, hour_ms)
);
CREATE INDEX stale_hour_marked ON stale_hour (marked_ms);
CREATE TABLE point (
  node TEXT NOT NULL,
  epoch TEXT NOT NULL,
  seq BIGINT NOT NULL,
  run TEXT NOT NULL,
  point TEXT NOT NULL,
  engine TEXT,
  engine_ver TEXT,
  model TEXT,
  quant TEXT,
  ctx BIGINT,
  slots BIGINT,
  concurrency BIGINT NOT NULL,
  prefix_cache TEXT,
  speculation TEXT,
  ts_ms BIGINT NOT NULL,
  output_tokens_per_s DOUBLE PRECISION,
  ttft_p50_s DOUBLE PRECISION,
  ttft_p95_s DOUBLE PRECISION,
  tpot_p50_s DOUBLE PRECISION,
  tpot_p95_s DOUBLE PRECISION,
  e2e_p95_s DOUBLE PRECISION,
  goodput_per_s DOUBLE PRECISION,
  requests_ok BIGINT,
  requests_failed BIGINT,
  memory_bytes_per_slot DOUBLE PRECISION,
  max_slots BIGINT,
  v {json} NOT NULL,
  PRIMARY KEY (node, run, point)
);
CREATE INDEX point_row ON point (node, epoch, seq);
CREATE INDEX point_time ON point (ts_ms);
CREATE INDEX point_latest ON point (node, ts_ms);
CREATE TABLE run (
  node TEXT NOT NULL,
  run_id TEXT NOT NULL,
  epoch TEXT NOT NULL,
  seq BIGINT NOT NULL,
  status TEXT NOT NULL,
  extent TEXT NOT NULL,
  started_at TEXT,
  finished_at TEXT,
  class TEXT,
  ts_ms BIGINT NOT NULL,
  rx_ms BIGINT NOT NULL,
  result_sha256 TEXT,
  result_file TEXT,
  document {json} NOT NULL,
  PRIMARY KEY (node, run_id)
);
CREATE INDEX run_row ON run (node, epoch, seq);
CREATE INDEX run_time ON run (ts_ms);
CREATE INDEX run_latest ON run (node, ts_ms);
CREATE TABLE watermark (
  node TEXT NOT NULL,
  epoch TEXT NOT NULL,
  stream TEXT NOT NULL,
  wm BIGINT NOT NULL,
  seen BIGINT NOT NULL,
  born_ms BIGINT NOT NULL,
  touched_ms BIGINT NOT NULL,
  PRIMARY KEY (node, epoch, stream)
);
CREATE INDEX watermark_touched ON watermark (touched_ms);
CREATE TABLE gap (
  node TEXT NOT NULL,
  epoch TEXT NOT NULL,
  stream TEXT NOT NULL,
  first BIGINT NOT NULL,
  last BIGINT NOT NULL,
  every BIGINT,
  reason TEXT NOT NULL,
  rx_ms BIGINT NOT NULL,
  PRIMARY KEY (node, epoch, stream, first, last)
);
CREATE TABLE boot (
  node TEXT NOT NULL,
  boot TEXT NOT NULL,
  offset_ms BIGINT NOT NULL,
  mono_ms BIGINT NOT NULL,
  PRIMARY KEY (node, boot)
);
CREATE TABLE unclear (
  node TEXT NOT NULL,
  boot TEXT NOT NULL,
  epoch TEXT NOT NULL,
  stream TEXT NOT NULL,
  seq BIGINT NOT NULL,
  mono_ms BIGINT NOT NULL,
  PRIMARY KEY (node, boot, epoch, stream, seq)
);
CREATE TABLE owner (
  node TEXT PRIMARY KEY,
  site TEXT NOT NULL
);
CREATE TABLE quarantine (
  id {id},
  rx_ms BIGINT NOT NULL,
  topic TEXT NOT NULL,
  reason TEXT NOT NULL,
  payload TEXT NOT NULL,
  size BIGINT NOT NULL,
  n BIGINT NOT NULL DEFAULT 1
);
CREATE UNIQUE INDEX quarantine_once ON quarantine (topic, reason);
""",
    # So that views need not unpack the documents of all boxes for two small parts of them.
    """
ALTER TABLE run ADD COLUMN comparison {json};
ALTER TABLE run ADD COLUMN findings {json};
UPDATE run SET comparison = {comparison}, findings = {findings};
""",
)

VERSION = len(STEPS)


def check(at: int, where: str, purpose: Purpose) -> None:
    """UsageError if a store's version `at` is newer than ours, or too old to be only read."""
    if at > VERSION:
        raise UsageError(
            f"the store {where} was laid out by a newer edgeagent (version {at}, this one knows "
            f"{VERSION}); install that one"
        )
    if purpose == "read" and at < VERSION:
        raise UsageError(
            f"the store {where} is of version {at} and this edgeagent reads {VERSION}; "
            "edgeagent fleet collect brings it up to date when it starts"
        )


def statements(
    step: int, dialect: Dialect, timescale: Literal["there", "absent"] = "absent"
) -> list[str]:
    """Return the statements that lead from version `step - 1` to `step`."""
    words = dict(_WORDS[dialect])
    if timescale == "there":
        # TimescaleDB wants the time by which it cuts a table in every unique key of it. A row that
        # is sent again has the same time of the box, so the key stays one.
        words["box_in_key"] = ", box_ms"
    text = STEPS[step - 1]
    for name, word in words.items():
        text = text.replace("{" + name + "}", word)
    return [part.strip() for part in text.split(";") if part.strip()]
