# How the tests get the real Node-RED. Sourced after lib.sh.
# shellcheck shell=bash

NODE_RED_VERSION=4.1.15

# fetch_node_red: sets NODE_RED to its program, brought from the npm registry once: 117 MB on the disk.
fetch_node_red() {
  local folder="$CACHE/node-red-$NODE_RED_VERSION" work
  NODE_RED="$folder/node_modules/node-red/red.js"
  [ -e "$folder/.complete" ] && return
  command -v npm >/dev/null || need npm
  say "fetching Node-RED $NODE_RED_VERSION"
  mkdir -p "$CACHE"
  work="$(mktemp -d "$CACHE/fetch.XXXXXX")"
  echo '{"name": "with-node-red", "version": "1.0.0", "private": true}' > "$work/package.json"
  # The optional part is a faster bcrypt, which nobody here logs in with.
  if ! npm install --prefix "$work" --silent --no-audit --no-fund --omit=optional --ignore-scripts \
      --save-exact "node-red@$NODE_RED_VERSION" >"$work/log" 2>&1; then
    tail -n 3 "$work/log" >&2
    rm -rf "$work"
    return 1
  fi
  touch "$work/.complete"
  rm -rf "$folder"
  mv "$work" "$folder"
}

# need_node_red: sets EDGEAGENT_TEST_NODE_RED for the tests, and EDGEAGENT_REQUIRE_NODE_RED, so that
# none of them is skipped.
need_node_red() {
  fetch_node_red || die "Node-RED could not be fetched from the npm registry: check the network and try again"
  export EDGEAGENT_TEST_NODE_RED="$NODE_RED" EDGEAGENT_REQUIRE_NODE_RED=1
}
