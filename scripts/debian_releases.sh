# How the tests get programs of another release of Debian, beside those of this machine. Sourced
# after lib.sh.
# shellcheck shell=bash

# unpack_debian RELEASE FOLDER PACKAGE...: unpack packages of a release of Debian, with all that they
# need, below $CACHE/FOLDER/root. Nothing of it is installed; the sources of this machine stay as they are.
unpack_debian() {
  local release="$1" folder="$CACHE/$2" work mirror package
  shift 2
  [ -e "$folder/.complete" ] && return
  command -v apt-get >/dev/null || { say "apt-get is missing: this works on Debian and its children"; return 1; }
  say "fetching $* of Debian $release"
  # shellcheck disable=SC2016  # because apt-get fills it in
  mirror="$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | awk '/\/debian\/*$/ { uri = $0 } END { print uri; exit !uri }')" \
    || { say "this machine's apt knows no mirror of Debian: add one to its sources"; return 1; }
  mkdir -p "$CACHE"
  work="$(mktemp -d "$CACHE/fetch.XXXXXX")"
  mkdir -p "$work"/{sources,state/lists/partial,cache/archives/partial,root}
  : > "$work/status"
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $release main" > "$work/sources.list"
  cat > "$work/apt.conf" <<END
Dir::Etc::sourcelist "$work/sources.list";
Dir::Etc::sourceparts "$work/sources";
Dir::State "$work/state";
Dir::State::status "$work/status";
Dir::Cache "$work/cache";
APT::Sandbox::User "";
Acquire::Languages "none";
Debug::NoLocking "true";
END
  if ! {
    APT_CONFIG="$work/apt.conf" apt-get update -qq &&
      APT_CONFIG="$work/apt.conf" apt-get install -y -qq --download-only --no-install-recommends "$@"
  } >"$work/log" 2>&1; then
    tail -n 3 "$work/log" >&2
    rm -rf "$work"
    return 1
  fi
  for package in "$work"/cache/archives/*.deb; do
    dpkg-deb --fsys-tarfile "$package" | tar -x -C "$work/root" --no-same-owner
    basename "$package"
  done > "$work/root/packages.txt"
  mkdir -p "$work/made"
  mv "$work/root" "$work/made/root"
  touch "$work/made/.complete"
  rm -rf "$folder"
  mv "$work/made" "$folder"
  rm -rf "$work"
}

# with_own_libraries FOLDER PROGRAM...: have programs, named by their paths below $CACHE/FOLDER/root, use
# the loader and the libraries that came with them. The folder may be moved afterwards.
with_own_libraries() {
  local root="$CACHE/$1/root" path loader triplet
  shift
  loader="$(cd "$root" && find usr/lib -name 'ld-linux*.so.*' -print -quit)"
  triplet="$(basename "$(dirname "$(find "$root/usr/lib" -name libc.so.6 -print -quit)")")"
  PATH="$PATH:/usr/sbin:/sbin" ldconfig -n "$root/usr/lib/$triplet"
  for path in "$@"; do
    [ -e "$root/$path.elf" ] || mv "$root/$path" "$root/$path.elf"
    cat > "$root/$path" <<END
#!/bin/sh
root="\$(cd "\$(dirname "\$0")/$(dirname "$path" | sed 's/[^/][^/]*/../g')" && pwd)"
exec "\$root/$loader" --library-path "\$root/usr/lib/$triplet" --argv0 "\$root/$path" "\$root/$path.elf" "\$@"
END
    chmod 755 "$root/$path"
  done
}

# fetch_mosquitto_21: sets MOSQUITTO_21 to a mosquitto of the generation after Debian 12's (2.1), and
# MOSQUITTO_21_PLUGINS to the folder of its plugins. 20 MB to fetch, 65 MB on the disk.
fetch_mosquitto_21() {
  unpack_debian "${EDGEAGENT_MOSQUITTO_21_RELEASE:-forky}" mosquitto-2.1 mosquitto || return 1
  with_own_libraries mosquitto-2.1 usr/sbin/mosquitto
  MOSQUITTO_21="$CACHE/mosquitto-2.1/root/usr/sbin/mosquitto"
  MOSQUITTO_21_PLUGINS="$(dirname "$(find "$CACHE/mosquitto-2.1/root/usr/lib" -name mosquitto_acl_file.so -print -quit)")"
  [[ "$("$MOSQUITTO_21" -h 2>/dev/null)" = "mosquitto version 2.1"* ]] || { say "Debian has another mosquitto than 2.1 there by now"; return 1; }
}

# need_mosquitto_21: names it to the tests, and has none of them skipped; where Debian has moved on to
# another mosquitto they are, because that is nobody's fault here.
need_mosquitto_21() {
  fetch_mosquitto_21 || { say "the tests with mosquitto 2.1 are skipped: it could not be had from Debian"; return 0; }
  export EDGEAGENT_TEST_MOSQUITTO_21="$MOSQUITTO_21" EDGEAGENT_TEST_MOSQUITTO_21_PLUGINS="$MOSQUITTO_21_PLUGINS"
  export EDGEAGENT_REQUIRE_MOSQUITTO_21=1
}

# fetch_timescale: sets TIMESCALE_ROOT to a tree with a PostgreSQL that has TimescaleDB (Debian 13: 17
# with 2.19, without the parts under the Timescale licence). 105 MB to fetch, 120 MB on the disk.
fetch_timescale() {
  local programs=usr/lib/postgresql/17
  TIMESCALE_ROOT="$CACHE/timescale/root"
  unpack_debian trixie timescale postgresql-17-timescaledb || return 1
  with_own_libraries timescale $programs/bin/{initdb,postgres,psql,pg_dump,pg_restore}
  # What these programs do without; the compiler for queries goes as a whole, else they miss its library.
  (cd "$TIMESCALE_ROOT" && rm -rf usr/share/{doc,man,locale,i18n,perl,perl5} usr/lib/*/{perl,perl-base,gconv} \
    usr/lib/*/lib{LLVM,z3}* $programs/lib/{llvmjit*,bitcode} var etc)
}

# need_timescale: names it to the tests, and has none of them skipped.
need_timescale() {
  fetch_timescale || die "TimescaleDB could not be fetched from Debian: check the network and try again"
  export EDGEAGENT_TEST_TIMESCALE="$TIMESCALE_ROOT" EDGEAGENT_REQUIRE_TIMESCALE=1
}
