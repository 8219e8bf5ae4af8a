#!/usr/bin/env bash
# Puts a release's pages on the branch `site` of a repository: .ci/site.sh REPOSITORY VERSION ADDRESS
#
# A host of static pages, such as GitHub Pages, serves that branch at ADDRESS. The branch is made where there is none.
set -euo pipefail
cd "$(dirname "$0")/.."
repository=$1 version=$2 address=$3
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
site() { git -C "$folder" "$@"; }

site init --quiet --initial-branch=site
found=0
git ls-remote --exit-code --heads "$repository" site >/dev/null || found=$?
case $found in
  0) site pull --quiet --depth 1 "$repository" site ;;
  2) ;; # there is no such branch
  *) exit "$found" ;;
esac
build/website/bin/python -m website --into "$folder" --version "$version" --url "$address"
site add --all
if site diff --cached --quiet; then
  echo "the pages of $version are there already"
else
  site commit --quiet --message "site: the pages of $version"
  site push --quiet "$repository" site
fi
