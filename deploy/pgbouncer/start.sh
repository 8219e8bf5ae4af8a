# Give PgBouncer the login and its password, by which it takes clients and goes to Postgres, and start it.
set -eu
umask 077
password=$(sed 's/"/""/g' "${POSTGRES_PASSWORD_FILE:?}")
printf '"palimpsest" "%s"\n' "$password" >/tmp/userlist.txt
exec pgbouncer "${1:-/etc/pgbouncer/pgbouncer.ini}"
