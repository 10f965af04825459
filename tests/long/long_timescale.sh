#!/usr/bin/env bash
# Do the store, the collector and the views work on a TimescaleDB as on a plain PostgreSQL?
#
#     tests/long/long_timescale.sh [pytest's words]
#
# Fetches Debian 13's TimescaleDB beside this machine's PostgreSQL. Some minutes.
. "$(dirname "${BASH_SOURCE[0]}")/../../scripts/lib.sh"
. "$ROOT/scripts/debian_releases.sh"
need_timescale
# The cluster's user may not be allowed into the cache.
tree="$(mktemp -d /tmp/edgeagent-timescale.XXXXXX)"
trap 'rm -rf "$tree"' EXIT
chmod 755 "$tree"
cp -a "$TIMESCALE_ROOT/." "$tree"
export EDGEAGENT_TEST_POSTGRES="$tree/usr/lib/postgresql/17/bin"
export EDGEAGENT_TEST_POSTGRES_SETTINGS="shared_preload_libraries=timescaledb timescaledb.telemetry_level=off"
cd "$ROOT"
python="${EDGEAGENT_VENV_PYTHON:-$VENV/bin/python}"
"$python" -m pytest -q -p no:cacheprovider tests/fleet/test_store*.py tests/fleet/test_collector_postgres.py \
  tests/fleet/test_fleet_{queries,status,export,report}.py tests/fleet/test_retire.py \
  tests/fleet/test_configs_{stack,timescale}.py "$@"
