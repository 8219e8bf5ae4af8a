# Makes the database that POSTGRES_USER, POSTGRES_DB and POSTGRES_PASSWORD(_FILE) name, if the volume is empty, and starts
# the server. As in the official image, a temporary server that listens on no port makes it.
set -euo pipefail

if [[ $EUID == 0 ]]; then
  mkdir -p "$PGDATA"
  chown -R postgres /var/lib/postgresql
  exec setpriv --reuid postgres --regid postgres --clear-groups bash "$0" "$@"
fi

if [[ ! -s $PGDATA/PG_VERSION ]]; then
  password=${POSTGRES_PASSWORD:-$(cat "${POSTGRES_PASSWORD_FILE:?}")}
  umask 077
  initdb --username="$POSTGRES_USER" --pwfile=<(echo "$password") --auth-local=trust --auth-host=scram-sha-256
  echo "host all all all scram-sha-256" >>"$PGDATA/pg_hba.conf"
  echo "listen_addresses = '*'" >>"$PGDATA/postgresql.conf"
  pg_ctl --wait start --options="-c listen_addresses='' -k /tmp"
  createdb --host=/tmp --username="$POSTGRES_USER" "${POSTGRES_DB:-$POSTGRES_USER}"
  pg_ctl --wait --mode=fast stop
fi
exec "$@" -k /tmp
