#!/usr/bin/env bash
# Makes a stand-in for python:3.11-slim where no image can be pulled: Debian with its own Python 3.11, as a local image.
#
#   base.sh IMAGE       (root; BUILDAH says how to call buildah)
set -euo pipefail

image=$1
read -ra buildah <<<"${BUILDAH:-buildah}"

container=$("${buildah[@]}" from scratch)
trap '"${buildah[@]}" rm "$container" >/dev/null' EXIT
root=$("${buildah[@]}" mount "$container")

log=$(mktemp)
debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates bookworm "$root" >"$log" 2>&1 ||
  { tail -n 20 "$log" >&2; exit 1; }
rm -rf "$log" "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* "$root"/var/log/* \
  "$root"/usr/share/{doc,info,locale,man}/*

"${buildah[@]}" umount "$container" >/dev/null
"${buildah[@]}" config --env PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$container"
"${buildah[@]}" commit --quiet --format docker "$container" "$image" >/dev/null
