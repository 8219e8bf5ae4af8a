#!/bin/sh
# Build Citus from its source (tag v13.2.2) for Debian's PostgreSQL 15, and install it there.
#   tests/citus/build.sh FOLDER
# The folder holds the unpacked source; it is copied, and stays as it is.
set -eu

[ -n "${1:-}" ] && [ -f "$1/src/include/pg_version_compat.h" ] || {
  echo "name the folder of the Citus source: tests/citus/build.sh folder" >&2
  exit 2
}
config=/usr/lib/postgresql/15/bin/pg_config
[ -x "$config" ] && [ -f "$("$config" --pgxs)" ] || {
  echo "needed: apt-get install postgresql-15 postgresql-server-dev-15 gcc make flex bison libssl-dev libpam0g-dev" \
    "libreadline-dev zlib1g-dev libselinux1-dev libxslt1-dev libkrb5-dev liblz4-dev libzstd-dev" >&2
  exit 2
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp -Rp "$1/." "$work" # with their times: what is generated is not made again
cd "$work"
# Debian's PostgreSQL 15 has a function of this name itself since 15.14: Citus's own must have another.
sed -i 's/\bhave_createdb_privilege\b/citus_have_createdb_privilege/' src/include/pg_version_compat.h
./configure PG_CONFIG="$config" --without-libcurl >/dev/null
make -s -j"$(nproc)" install with_llvm=no >build.log 2>&1 || { tail -20 build.log >&2; exit 1; }
echo "Citus is installed for $("$config" --version)"
