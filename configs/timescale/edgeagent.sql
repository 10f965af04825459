-- What TimescaleDB does better than plain PostgreSQL for the collector's tables. The collector itself
-- makes table telemetry a hypertable, in a new database where the extension is there (box_ms in
-- milliseconds, chunks of 7 days) and `edgeagent fleet collect` keeps retention without any of this.
--
-- PART 1 runs on plain PostgreSQL as well.
-- PART 2 runs on every TimescaleDB.
-- PART 3 needs the parts under the Timescale licence, 2.11 or later. Debian's package leaves them out:
-- there, stop after part 2 (the collector's own retention is enough). UNTESTED beyond its names and types.
--
--   psql -v ON_ERROR_STOP=1 fleet < edgeagent.sql

-- ======================================================================== PART 1: views for dashboards

CREATE OR REPLACE VIEW memory_minute AS
SELECT node, to_timestamp(ts_ms / 1000.0) AS time, clk,
       (v->>'ram_used_bytes_mean')::float8 AS ram_used_bytes,
       (v->>'ram_used_bytes_max')::float8 AS ram_used_bytes_max,
       (v->>'ram_total_bytes_last')::float8 AS ram_total_bytes,
       (v->>'gpu_used_bytes_mean')::float8 AS gpu_used_bytes,
       (v->>'gpu_used_bytes_max')::float8 AS gpu_used_bytes_max,
       (v->>'swap_used_bytes_max')::float8 AS swap_used_bytes_max
FROM telemetry WHERE kind = 'mem_1m';

CREATE OR REPLACE VIEW result_point AS
SELECT p.node, n.site, n.class, to_timestamp(p.ts_ms / 1000.0) AS time, p.run, p.engine, p.model, p.quant,
       p.concurrency, p.output_tokens_per_s, p.ttft_p50_s, p.ttft_p95_s, p.memory_bytes_per_slot
FROM point p JOIN node n ON n.node = p.node;

-- ======================================================================== PART 2: TimescaleDB

-- The time of the hypertable is a number: policies have to be told what "now" is.
CREATE OR REPLACE FUNCTION edgeagent_now_ms() RETURNS BIGINT
LANGUAGE sql STABLE AS $$ SELECT (extract(epoch FROM now()) * 1000)::bigint $$;
SELECT set_integer_now_func('telemetry', 'edgeagent_now_ms', replace_if_exists => true);

-- ======================================================================== PART 3: TimescaleDB, Timescale licence

-- Pressed together after a week: the key's order is the order in which rows came.
ALTER TABLE telemetry SET (
    timescaledb.compress, timescaledb.compress_segmentby = 'node, kind', timescaledb.compress_orderby = 'box_ms'
);
SELECT add_compression_policy('telemetry', compress_after => 7 * 86400000::bigint, if_not_exists => true);

-- Minutes for 90 days; telemetry_hour, which the collector fills, stays.
SELECT add_retention_policy('telemetry', drop_after => 90 * 86400000::bigint, if_not_exists => true);
