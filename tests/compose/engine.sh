#!/usr/bin/env bash
# Runs Docker's engine in FOLDER, a Debian with the package docker.io, until it is sent SIGTERM.
#
#   unshare --mount --net --pid --fork --kill-child bash engine.sh FOLDER CGROUP       (root)
#
# The folder is its root, and the namespaces are its own: its networks, addresses, mounts and processes end with it, and
# it cannot meet another engine of this machine. What stays are the control groups below CGROUP, which are empty then.
set -euo pipefail

if [[ ${3:-} != entered ]]; then
  mount --make-rprivate /
  # Where control groups of both versions are mounted, the engine is to see the first alone.
  if mountpoint --quiet /sys/fs/cgroup/unified; then umount /sys/fs/cgroup/unified; fi
  mount --bind "$1" "$1"
  mount --rbind /dev "$1/dev"
  mount --rbind /sys "$1/sys"
  mount -t proc proc "$1/proc"
  mount -t tmpfs tmpfs "$1/run"
  mkdir -p "$1/before"
  cp "$0" "$1/engine.sh"
  cd "$1"
  pivot_root . before # and not chroot: containers are to change their root, too
  exec env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 \
    /bin/bash /engine.sh / "$2" entered
fi

umount --lazy /before
ip link set lo up
echo "nameserver 10.0.2.3" >/etc/resolv.conf # slirp4netns answers there
dockerd --cgroup-parent "$2" &
engine=$!
trap 'kill -TERM "$engine"' TERM
wait "$engine" || wait "$engine" # a signal ends the first
