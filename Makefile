# Paths are relative throughout: the checkout's own path may have a space in it.
PYTHON ?= python3
ARGS ?=
# The whole suite in processes side by side; what ARGS selects or asks for, in one.
PYTEST = pytest --durations 10 $(or $(ARGS),-p tests.side_by_side)

PINS = .venv/bin/uv pip compile - --quiet --python-version 3.11 --generate-hashes --no-annotate \
	--custom-compile-command 'make pins'

# pip's and Python's own settings are the person's; these would change what runs here.
unexport VIRTUAL_ENV PYTHONHOME PYTHONPATH
# The tests start a thousand Pythons, each of which would compile all of the code again.
test test-fast test-long test-deploy canary: export PYTHONDONTWRITEBYTECODE =
COMPILE = .venv/bin/python -m compileall -q app bench config embedded greenline tests

.PHONY: help serve dev demo-tune test test-fast test-long test-deploy canary check pins wheel docs results bench-article bench-held bench-postgres bench-api bench-http \
	bench-overload bench-limit bench-offload bench-turns bench-soak bench-burst bench-hot-worker \
	bench-metrics bench-cache bench-slow-clients bench-legacy bench-migrate bench-documents bench-copy compatibility clean \
	have-python setup-serve setup-dev setup-bench

.DEFAULT_GOAL := help

##@ Run
serve: setup-serve ## run the service with its own Postgres and MongoDB, on PORT (8000)
	@exec .venv/bin/python -m embedded.serve

dev: setup-serve ## the same with one worker, which reloads when the code changes
	@exec .venv/bin/python -m embedded.serve --dev

demo-tune: setup-dev ## find the settings of the service on this machine by greenline tune, in minutes
	@exec .venv/bin/python -m embedded.tune $(ARGS)

##@ Test
test: setup-dev ## run the tests; ARGS goes to pytest, as in ARGS="-k books"
	@$(COMPILE)
	@exec .venv/bin/python -m $(PYTEST)

# The unit tests start no Postgres and no MongoDB, which tests/test_house.py checks.
test-fast: setup-dev ## run the tests that need no database server, in less than a minute
	@$(COMPILE)
	@exec .venv/bin/python -m pytest --durations 10 -p tests.side_by_side tests/unit tests/test_house.py

test-long: setup-dev ## run them with the long forms: twenty reloads for three, half a minute deaf
	@$(COMPILE)
	@GREENLINE_LONG_TESTS=1 exec .venv/bin/python -m $(PYTEST) --timeout 1200

test-deploy: setup-dev ## run what is in deploy/, on real servers: nginx under load, the image, the units
	@$(COMPILE)
	@GREENLINE_LONG_TESTS=1 exec .venv/bin/python -m pytest --timeout 1200 tests/deploy $(ARGS)

canary: have-python ## run the tests against the newest versions of all requirements, or ARGS=--oldest
	@exec $(PYTHON) -B -m tests.helpers.canary $(ARGS)

check: setup-dev ## run the linters, the type checker, and the searches for weaknesses
	.venv/bin/python -m ruff check .
	.venv/bin/python -m ruff format --check .
	.venv/bin/python -m mypy
	.venv/bin/lint-imports
	.venv/bin/python -m bandit --quiet --configfile pyproject.toml --recursive app config greenline embedded gunicorn.conf.py
	.venv/bin/python -m tests.helpers.audit

##@ Build
pins: setup-dev ## write what the image installs anew, with hashes, after a change of a pin
	@sed s/-binary// requirements.txt | $(PINS) -o requirements-image.txt
	@printf '%s\n' setuptools | $(PINS) -o requirements-build.txt

wheel: setup-dev ## build the package's wheel and source distribution into dist/
	@exec .venv/bin/uv tool run --quiet --from build==1.6.1 pyproject-build

docs: var/docs-venv/installed ## build the site of docs/ in var/site; a broken link ends it
	@NO_MKDOCS_2_WARNING=1 exec var/docs-venv/bin/mkdocs build --quiet
	@echo "the site is var/site/index.html"

# In an environment of its own, in var, which git ignores and make clean removes.
var/docs-venv/installed: requirements-docs.txt | have-python
	@echo "setup: installing requirements-docs.txt into var/docs-venv"
	@$(PYTHON) -m venv --clear var/docs-venv
	@var/docs-venv/bin/python -m pip install --quiet --disable-pip-version-check -r requirements-docs.txt
	@touch $@

##@ Measure
bench-article: setup-dev ## run a thousand queries at once on a Postgres of a hundred connections
	@exec .venv/bin/python -m bench.article $(ARGS)

bench-held: setup-dev ## hold twice as many connections as the budget has, in pools of the application
	@exec .venv/bin/python -m bench.held $(ARGS)

bench-postgres: setup-bench ## compare reads from Postgres, and writes, with other ways to serve them
	@exec .venv/bin/python -m bench.postgres $(ARGS)

bench-api: setup-bench ## compare the API on both databases with other ways to serve the same
	@exec .venv/bin/python -m bench.api $(ARGS)

bench-http: setup-bench ## compare ten shapes of a request with other servers and frameworks
	@exec .venv/bin/python -m bench.http $(ARGS)

bench-overload: setup-bench ## offer up to three times what is taken, with the defaults and without a limit
	@exec .venv/bin/python -m bench.overload $(ARGS)

bench-limit: setup-bench ## draw the limit of requests in progress that the worker finds, over time
	@exec .venv/bin/python -m bench.limit

bench-offload: setup-bench ## compare a view with five statements of sqlite with gunicorn's threads
	@exec .venv/bin/python -m bench.offload $(ARGS)

bench-turns: setup-bench ## ask for a small page beside pages that compute, on the worker and on threads
	@exec .venv/bin/python -m bench.turns $(ARGS)

bench-soak: setup-dev ## ask 100,000 times from 200 connections: no failure, no growing memory
	@exec .venv/bin/python -m bench.soak

bench-burst: setup-dev ## a thousand clients in bursts through three reloads and a kill: the budget holds
	@exec .venv/bin/python -m bench.burst

bench-hot-worker: setup-dev ## compare one busy worker of four with what an even split gives it
	@exec .venv/bin/python -m bench.hot_worker $(ARGS)

bench-cache: setup-bench ## compare the service with a cache and without, and a thousand clients that ask for one page
	@exec .venv/bin/python -m bench.cache $(ARGS)

bench-metrics: setup-dev ## compare the worker with /metrics and without
	@exec .venv/bin/python -m bench.metrics $(ARGS)

bench-slow-clients: setup-dev ## measure the others while 500 clients are slow, with nginx and without
	@exec .venv/bin/python -m bench.slow_clients $(ARGS)

bench-legacy: setup-bench ## compare unmodified applications on our worker and on threads
	@exec .venv/bin/python -m bench.legacy $(ARGS)

bench-migrate: setup-bench ## compare five real applications, unmodified, before and after docs/migrate.md
	@exec .venv/bin/python -m bench.migrate $(ARGS)

bench-documents: setup-bench ## compare copies of 300,000 documents with what a script does
	@exec .venv/bin/python -m bench.documents $(ARGS)

bench-copy: setup-bench ## compare COPY beside another greenlet with psycopg2's own, which blocks it
	@exec .venv/bin/python -m bench.copy $(ARGS)

compatibility: setup-dev ## try 50 libraries under the worker and write docs/compatibility.md
	@exec .venv/bin/python -m bench.compatibility $(ARGS)

results: setup-bench ## write what the benches have measured here into docs/benchmarks.md
	@exec .venv/bin/python -m bench.results

##@ Other
help: ## show this list
	@awk -F ':.*## ' '/^##@ / { printf "%s%s\n", sep, substr($$0, 5); sep = "\n" } \
	  /^[a-z-]+:.*## / { printf "  make %-18s  %s\n", $$1, $$2 }' Makefile

clean: ## remove everything that the other targets made
	@exec $(or $(wildcard .venv/bin/python),$(PYTHON)) -B -m embedded.clean

have-python:
	@command -v $(PYTHON) >/dev/null || { \
	  echo "setup: PYTHON: there is no $(PYTHON); install Python 3.11 or newer (python3)" >&2; exit 1; }

setup-serve: have-python
	@exec $(PYTHON) -B embedded/venv.py serve

setup-dev: have-python
	@exec $(PYTHON) -B embedded/venv.py dev

setup-bench: have-python
	@exec $(PYTHON) -B embedded/venv.py bench
