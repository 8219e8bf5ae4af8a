#!/usr/bin/env bash
# Makes a stand-in for debian:12-slim, from which the image is built, where none can be pulled.
#
#   base.sh IMAGE       (root; BUILDAH says how to call buildah)
set -euo pipefail

image=$1
read -ra buildah <<<"${BUILDAH:-buildah}"

container=$("${buildah[@]}" from scratch)
trap '"${buildah[@]}" rm "$container" >/dev/null' EXIT
root=$("${buildah[@]}" mount "$container")

bash "$(dirname "$0")/debian.sh" bookworm "$root"

"${buildah[@]}" umount "$container" >/dev/null
"${buildah[@]}" config --env PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$container"
"${buildah[@]}" commit --quiet --format docker "$container" "$image" >/dev/null
