#!/usr/bin/env bash
# Checks what GitHub and pre-commit read, without a network: `make test-more NAME=workflows`.
set -euo pipefail
cd "$(dirname "$0")/../.."
bin=tests/workflows/.venv/bin

"$bin/actionlint" .github/workflows/*.yml
"$bin/zizmor" --offline --no-progress --quiet .github
"$bin/check-jsonschema" --builtin-schema custom.github-workflows-require-timeout .github/workflows/ci.yml
"$bin/check-jsonschema" --builtin-schema vendor.dependabot .github/dependabot.yml
"$bin/check-jsonschema" --builtin-schema vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml
"$bin/check-jsonschema" --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/[!c]*.yml
"$bin/pre-commit" validate-config .pre-commit-config.yaml

# A check that finds nothing anywhere would pass, too: a workflow that GitHub refuses and that gives its token away.
broken=$(mktemp -d)
trap 'rm -r "$broken"' EXIT
mkdir -p "$broken/.github/workflows"
cat >"$broken/.github/workflows/broken.yml" <<'YAML'
on: pull_request_target
jobs:
  broken:
    runs-on: ubuntu-24.04
    needs: nothing
    steps:
      - uses: actions/checkout@v4
      - run: echo ${{ github.event.pull_request.title }}
YAML
if "$bin/actionlint" "$broken"/.github/workflows/broken.yml >/dev/null; then echo "actionlint finds nothing" >&2; exit 1; fi
if "$bin/zizmor" --offline --quiet "$broken" >/dev/null 2>&1; then echo "zizmor finds nothing" >&2; exit 1; fi
echo "workflows, dependabot, issue forms and hooks: nothing found"
