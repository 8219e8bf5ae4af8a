#!/bin/sh
# Have a coordinator know its nodes, in the database that PGDATABASE names; what it knows already stays as it is.
#   sh deploy/citus/join.sh COORDINATOR[:PORT] NODE[:PORT]...
set -eu
host() { echo "${1%%:*}"; }
port() { case $1 in *:*) echo "${1##*:}" ;; *) echo 5432 ;; esac; }
on() { # a node: SQL from standard input, all or nothing
  psql --no-psqlrc --quiet --no-align --tuples-only --set=ON_ERROR_STOP=1 --single-transaction \
    --host="$(host "$1")" --port="$(port "$1")" --output=/dev/null
}
coordinator=$1
for node in "$@"; do # one that has been told already refuses even CREATE EXTENSION IF NOT EXISTS
  on "$node" <<'SQL'
SELECT format('CREATE EXTENSION %I', name) FROM unnest(ARRAY['citus', 'btree_gist']) name
WHERE name NOT IN (SELECT extname FROM pg_extension) \gexec
SQL
done
shift
{
  echo "SELECT citus_set_coordinator_host('$(host "$coordinator")', $(port "$coordinator"));"
  for node in "$@"; do
    echo "SELECT citus_add_node('$(host "$node")', $(port "$node"));"
  done
} | on "$coordinator"
