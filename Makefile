# One door to everything: `make` lists it. Needs GNU make and Python 3.11; the rest it sets up in .venv by itself.

VENV := .venv
PYTHON := $(VENV)/bin/python
PYTEST := $(PYTHON) -m pytest
ARGS ?=
BUILDER ?= $(or $(firstword $(foreach name,docker podman buildah,$(if $(shell command -v $(name)),$(name)))),docker)

# What the environment is made of. It is renewed only when one of these changes.
INPUTS := pyproject.toml constraints.txt .ci/venv $(wildcard otelgpu/__init__.py)
RUN := $(VENV)/.ready-run
DEV := $(VENV)/.ready-dev

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help run test check fix golden bench soak gpu cover lock image clean system

help:  ## this list
	@echo "make TARGET [ARGS='...']"
	@sed -n 's/^\([a-z]*\):.*  ## /  \1\t/p' $(firstword $(MAKEFILE_LIST)) | expand -t 12

run: $(RUN)  ## serve this machine's GPUs on :9400; without a driver, a simulated node (ARGS: more flags for serve)
	@if [ -n "$$OTELGPU_SOURCE" ] || $(PYTHON) -c 'import ctypes; ctypes.CDLL("libnvidia-ml.so.1")' 2>/dev/null; then \
		exec $(VENV)/bin/otelgpu serve $(ARGS); \
	else \
		echo "make run: libnvidia-ml.so.1 cannot be loaded here, so this serves the simulated node 8xH100"; \
		exec $(VENV)/bin/otelgpu serve --source simulated:8xh100 $(ARGS); \
	fi

test: system check  ## set up all that the tests need, then check

check: $(DEV)  ## what CI runs: format, lint, types, tests
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m ruff check .
	$(PYTHON) -m mypy otelgpu tests
	$(PYTEST) -n 2 --dist worksteal $(ARGS)

fix: $(DEV)  ## lint fixes that are safe, and format
	$(PYTHON) -m ruff check --fix --exit-zero .
	$(PYTHON) -m ruff format .

golden: $(DEV)  ## rewrite tests/golden and the generated part of the README, and show what changed
	UPDATE_GOLDEN=1 $(PYTEST) -q -m "golden and not soak and not gpu" $(ARGS)
	@$(PYTHON) -m otelgpu.config.docs README.md docs/migrate-from-dcgm-exporter.md
	@$(PYTHON) -m otelgpu.reference docs/metrics.md
	@$(PYTHON) -m otelgpu.config.schema docs/settings.schema.json
	@$(PYTHON) -m otelgpu.config.shipping otelgpu/data
	@git --no-pager diff --stat -- tests/golden README.md deploy docs otelgpu/data
	@git ls-files --others --exclude-standard -- tests/golden | sed 's/^/ new: /'

bench: $(DEV)  ## measure speed and memory
	@$(PYTHON) -m tests.bench $(ARGS)

soak: $(DEV)  ## the tests that run for a long time
	$(PYTEST) -m soak -o faulthandler_timeout=14400 $(ARGS)

gpu: $(DEV)  ## the tests that need a driver
	$(PYTEST) -m gpu $(ARGS)

cover: $(DEV)  ## the tests again, showing lines and branches that none of them reaches
	$(PYTEST) -n 2 --dist worksteal --cov $(ARGS)

lock: $(DEV)  ## write the files of hashes that the image is made from (ARGS=--check: say whether they are out of date)
	@bash .ci/lock $(ARGS)

image:  ## build the image with docker, podman or buildah (BUILDER: which one; ARGS: more flags for it)
	$(BUILDER) build $(if $(findstring docker,$(BUILDER)),,--format docker) --tag otelgpu --build-arg VERSION=$$(sed -n 's/^__version__ = "\(.*\)"/\1/p' otelgpu/__init__.py) \
		--build-arg REVISION=$$(git rev-parse HEAD) $(ARGS) .

clean:  ## remove everything that make made
	rm -rf $(VENV) .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage .coverage.* build dist *.egg-info
	find otelgpu tests -name __pycache__ -type d -prune -exec rm -rf {} +

system:
	@bash .ci/system

$(RUN): $(INPUTS)
	@bash .ci/venv run

$(DEV): $(INPUTS)
	@bash .ci/venv dev
