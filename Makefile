# Every target makes the virtual environment first, if it is missing or out of
# date; how that is done is in scripts/setup.

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all check bench docs web lock release compiled clean

BIN := .venv/bin
# Commands of one document share a folder, so they are kept on one worker.
PYTEST := $(BIN)/python -m pytest -n auto --dist loadgroup

help: ## Show this list
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/\1|\2/p' $(MAKEFILE_LIST) | \
	  while IFS='|' read -r name what; do printf '  make %-9s %s\n' "$$name" "$$what"; done

setup: ## Make .venv and install what is needed (done by the others when necessary)
	@sh scripts/setup

demo: setup ## A small network, roaming clients, an audit and a report with pictures
	$(BIN)/roamcast demo

# pytest comes last: its closing line is what people and machines look for.
test: check ## Check the code, then run the tests that take seconds
	$(PYTEST) -m "not slow"

test-all: check ## Check the code, then run every test, also the slow ones, and tell what they cover
	$(PYTEST) --cov --cov-report=term

check: setup ## Lint, types and the import rules between rooms
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/mypy --strict
	$(BIN)/python -m pytest -qq tests/test_rooms.py

bench: setup ## Measure matching, the simulator, the broker and the audit on this machine
	$(BIN)/roamcast bench match
	$(BIN)/roamcast bench sim
	$(BIN)/roamcast bench location
	$(BIN)/roamcast bench broker
	$(BIN)/roamcast bench handoff
	$(BIN)/roamcast bench pipeline

docs: setup ## Build the documentation as a site into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build -q

web: ## Build the live view again from web/; needs Node 20.19 or later
	cd web && npm ci && npm run check && npm run build

lock: setup ## Pin what deploy/ installs, with hashes, and list it in an SBOM (CycloneDX)
	$(BIN)/python scripts/lock.py

release: setup ## Build wheel and sdist, try them in an empty environment, and say what to do next
	$(BIN)/python scripts/release.py

compiled: setup ## Build a wheel with a compiled core: faster, and for this machine only
	$(BIN)/python scripts/compile.py

clean: ## Remove .venv and everything that tools and runs left behind
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis htmlcov build dist demo out site
	rm -f .coverage .coverage.* coverage.xml
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
