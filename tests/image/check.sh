#!/usr/bin/env bash
# Builds the image from the Dockerfile without a Docker engine, and walks through a running container as the README does.
#
#   check.sh            (root, on Debian; WORK=folder keeps the base image for the next time)
set -euo pipefail
cd "$(dirname "$0")/../.."

[[ $(id -u) == 0 ]] || { echo "image-check: needs root, for buildah in a chroot" >&2; exit 1; }
if ! command -v buildah debootstrap curl >/dev/null; then
  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y buildah debootstrap curl >/dev/null
fi

work=${WORK:-$(mktemp -d)}
mkdir -p "$work"
export BUILDAH_ISOLATION=chroot STORAGE_DRIVER=vfs
export BUILDAH="buildah --root $work/storage --runroot $work/run"
read -ra buildah <<<"$BUILDAH"
base=localhost/palimpsest-base image=localhost/palimpsest

pids=() container='' data=''
finish() {
  for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
  wait || true
  [[ -z $container ]] || "${buildah[@]}" rm "$container" >/dev/null || true
  [[ -z $data ]] || { as_postgres pg_ctl -D "$data/cluster" -m fast stop >/dev/null || true; rm -rf "$data"; }
  [[ -n ${WORK:-} ]] || rm -rf "$work"
}
trap finish EXIT

say() { echo "image-check: $*"; }

"${buildah[@]}" inspect --type image "$base" >/dev/null 2>&1 || { say "making the base image"; bash tests/image/base.sh "$base"; }

say "building"
volumes=(--volume /etc/ssl/certs:/etc/ssl/certs:ro)
for config in /etc/pip.conf "${PIP_CONFIG_FILE:-}" "$HOME/.config/pip/pip.conf" "$HOME/.pip/pip.conf"; do
  if [[ -f $config ]]; then volumes+=(--volume "$config:/etc/pip.conf:ro"); break; fi
done
"${buildah[@]}" build --quiet --layers=false --format docker --build-arg BASE="$base" "${volumes[@]}" --tag "$image" . >"$work/build.log" 2>&1 ||
  { tail -n 30 "$work/build.log" >&2; exit 1; }
size=$("${buildah[@]}" images --json "$image" | python3 -c 'import json, sys; print(json.load(sys.stdin)[0]["size"])')

say "starting a Postgres of its own"
bin=$(.venv/bin/python -c 'from app.store.embedded import BINARIES; print(BINARIES)')
data=$(mktemp -d)
id nobody >/dev/null
chown nobody "$data"
as_postgres() { setpriv --reuid=nobody --regid=nogroup --clear-groups env -i PATH="$bin" LC_ALL=C "$bin/$@"; }
free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
port=$(free_port)
as_postgres initdb -D "$data/cluster" -U postgres --auth=trust --encoding=UTF8 --locale=C >/dev/null
as_postgres pg_ctl -D "$data/cluster" -w -l "$data/log" -o "-c listen_addresses=127.0.0.1 -p $port -k $data" start >/dev/null

key=$(python3 -c 'import secrets; print("pal_" + secrets.token_urlsafe(32))')
api=$(free_port)
container=$("${buildah[@]}" from "$image")
settings=(
  --env "PALIMPSEST_DATABASE_URL=postgresql://postgres@127.0.0.1:$port/postgres"
  --env "PALIMPSEST_API_KEY=$key"
  --env PALIMPSEST_HOST=127.0.0.1
  --env "PALIMPSEST_PORT=$api"
)
inside() { "${buildah[@]}" run "${settings[@]}" "$container" -- "$@"; }

say "checking what is inside"
[[ $(inside id -u) != 0 ]] || { say "runs as root" >&2; exit 1; }
inside palimpsest migrate
inside palimpsest api &
pids+=($!)
for _ in $(seq 100); do
  curl -sf "http://127.0.0.1:$api/readyz" >/dev/null && break
  sleep 0.2
done
inside python3 -c "import os, urllib.request as u; u.urlopen(f\"http://127.0.0.1:{os.environ['PALIMPSEST_PORT']}/healthz\", timeout=4)"
[[ $(curl -s -o /dev/null -w '%{http_code}' "http://127.0.0.1:$api/v1/sessions") == 401 ]] || { say "let in without a key" >&2; exit 1; }

say "walking"
walk=$(bash tests/image/walk.sh README.md "http://127.0.0.1:$api" "$key")
for expected in 'Buy milk.' '"estimator":"tiktoken:o200k_base"' '"view":"title"'; do
  [[ $walk == *"$expected"* ]] || { say "the walk did not show $expected" >&2; echo "$walk" >&2; exit 1; }
done

say "stopping"
pkill -TERM -P "${pids[0]}" -f "palimpsest api" 2>/dev/null || kill -TERM "${pids[0]}"
say "passed; the image is $size"
