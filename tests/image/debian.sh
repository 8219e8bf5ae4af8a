#!/usr/bin/env bash
# Makes a folder of Debian's smallest system, with its security updates among the sources of packages.
#
#   debian.sh RELEASE FOLDER [PACKAGE ...]       (root; needs debootstrap)
set -euo pipefail

release=$1 root=$2
shift 2

options=(--variant=minbase)
if (($#)); then options+=(--include="$(IFS=,; echo "$*")"); fi
log=$(mktemp)
debootstrap "${options[@]}" "$release" "$root" >"$log" 2>&1 ||
  { tail -n 20 "$log" >&2; exit 1; }
rm -rf "$log" "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/*
read -r _ mirror _ <"$root/etc/apt/sources.list"
echo "deb ${mirror%/}-security $release-security main" >>"$root/etc/apt/sources.list"
