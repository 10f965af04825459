# The tools of packaging/build and packaging/lock: in a virtual environment of their own, with the
# versions and hashes of tools.lock. Sourced after scripts/lib.sh.
# shellcheck shell=bash

PACKAGING="$ROOT/packaging"
PACKAGING_CACHE="$CACHE/packaging"
PYTHONS="3.10 3.11 3.12 3.13 3.14"  # those that the package serves; debian/control has their bounds

# make_tools: sets TOOLS to the folder of the tools' programs.
make_tools() {
  local python key folder work
  python="$(find_python)"
  key="$( { "$python" --version; cat "$PACKAGING/tools.lock"; } | sha256sum | cut -c 1-12)"
  folder="$PACKAGING_CACHE/tools-$key"
  TOOLS="$folder/bin"
  [ -e "$folder/.complete" ] && return
  "$python" -c 'import ensurepip, venv' 2>/dev/null || need python3-venv
  say "installing the tools of the build"
  mkdir -p "$PACKAGING_CACHE"
  exec 9>"$PACKAGING_CACHE/tools.lock"
  flock 9
  if [ ! -e "$folder/.complete" ]; then
    "$python" -m venv --clear "$folder"
    "$folder/bin/python" -m pip install -qq --disable-pip-version-check --no-deps --require-hashes \
      --only-binary :all: -r "$PACKAGING/tools.lock" \
      || die "the tools of the build could not be fetched from the package index: check the network and try again"
    touch "$folder/.complete"
  fi
  exec 9>&-
}
