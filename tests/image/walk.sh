#!/usr/bin/env bash
# Runs the README's curl walk, as printed, against a server of one's own choosing.
#
#   walk.sh README BASE_URL [API_KEY]
#
# The walk is the bash block between <!-- walk:curl --> and <!-- /walk:curl -->. Two things are substituted: the
# address, and `curl` itself, by a function that adds the key and fails on an HTTP error. Prints what the walk prints.
set -euo pipefail

readme=$1 base=$2 key=${3:-}
printed=http://127.0.0.1:8700

walk=$(sed -n '/<!-- walk:curl -->/,/<!-- \/walk:curl -->/p' "$readme" | sed -e '/^<!--/d' -e '/^```/d')
if [[ $walk != *"$printed"* ]]; then
  echo "walk: $readme has no curl walk that talks to $printed" >&2
  exit 1
fi

curl() {
  local authorization=()
  if [[ -n $key ]]; then authorization=(--header "Authorization: Bearer $key"); fi
  command curl --silent --show-error --fail-with-body "${authorization[@]}" "$@"
}

eval "${walk//"$printed"/"$base"}"
