# Each target does its own set-up in .venv; PYTHON names the interpreter that makes it (3.11 or newer).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# `make review`; handed on through the environment, so that no shell reads what stands in them.
REPO ?= .
RANGE ?=
OUT ?= demo-out
PROVIDER_URL ?=
MODEL ?=
WIRE ?= responses
export REPO RANGE OUT PROVIDER_URL MODEL WIRE PROVIDER_KEY

# `make agents`: which CLIs, in which versions, and where they are installed; never in the tree.
AGENTS ?= claude codex opencode pi
AGENTS_DIR ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/agent-sandbox-driver/agents
AGENT_claude := @anthropic-ai/claude-code@2.1.197
AGENT_codex := @openai/codex@0.171.0
AGENT_opencode := opencode-ai@1.18.33
AGENT_pi := @mariozechner/pi-coding-agent@0.73.1
export AGENTS_DIR

# `make fuzz`: for so long.
FUZZ_SECONDS ?= 300

# `make simulate`: so many seeds, or the story of one.
SEEDS ?= 300
SEED ?=

# `make moments`: at so many moments of a run.
MOMENTS ?= 100

# `make image-test`: with which agents the image is built, too.
IMAGE_AGENTS ?=
export IMAGE_AGENTS

.PHONY: demo review test test-slow hostile image-test moments simulate fuzz fuzz-keep check format bench bench-start bench-image bench-door bench-sessions bench-workspace bench-litellm agents constraints clean

demo: $(READY)
	@$(BIN)/python -m driver.stub.demo --out="$$OUT"

review: $(READY)
	@$(BIN)/python -m driver.stub.demo --out="$$OUT" --repository="$$REPO" --range="$$RANGE" \
		--provider-url="$$PROVIDER_URL" --model="$$MODEL" --wire="$$WIRE"

# A test spends its time waiting for processes more than computing; one file stays with one worker.
test: $(READY)
	$(BIN)/pytest -q -n 2 --dist loadfile

test-slow: $(READY)
	$(BIN)/pytest -q -n 2 --dist worksteal -m "slow and not alone" \
		--ignore=tests/hostile --ignore=tests/agents --ignore=tests/image
	$(BIN)/pytest -q -m alone

# Programs that attack what is promised about programs; as root, since it makes containers of namespaces.
hostile: $(READY)
	$(BIN)/pytest -q -n 2 --dist worksteal -m slow tests/hostile

# Driver, program and gateway killed, and the driver stopped, at many moments; the slow tests try a few.
moments: $(READY)
	DRIVER_TEST_MOMENTS="$(MOMENTS)" $(BIN)/pytest -q -n 2 -m slow \
		tests/e2e/test_any_moment.py tests/e2e/test_gateway_killed.py tests/e2e/test_program_killed.py

# Builds the image on a base of its own, and runs it; as root, with buildah, debootstrap, runc and libcap2-bin.
image-test: $(READY)
	$(BIN)/pytest -q -m slow tests/image

simulate: $(READY)
	@$(BIN)/python -m tests.simulation $(if $(SEED),--seed "$(SEED)",--seeds "$(SEEDS)")

# New archives are collected in fuzz-out/corpus, and what breaks a promise in fuzz-out.
fuzz: .venv-fuzz/.ready
	@mkdir -p fuzz-out/corpus
	.venv-fuzz/bin/python -m tests.fuzz fuzz-out/corpus tests/fuzz/corpus -max_total_time=$(FUZZ_SECONDS) \
		-max_len=16384 -timeout=20 -print_final_stats=1 -artifact_prefix=fuzz-out/

# What the archives of fuzz-out/corpus reach and those of the tests do not goes to the tests.
fuzz-keep: $(READY)
	$(BIN)/python -m tests.fuzz.keep fuzz-out/corpus tests/fuzz/corpus

# atheris comes ready-made for some interpreters only (PYTHON), and the archives' part of the driver needs nothing else.
.venv-fuzz/.ready:
	$(PYTHON) -m venv --clear .venv-fuzz
	.venv-fuzz/bin/python -m pip install --quiet 'atheris>=2.3'
	@touch $@

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: bench-start bench-door bench-sessions bench-workspace

bench-start: $(READY)
	$(BIN)/python -m bench.start

# As root, with what image-test needs.
bench-image: $(READY)
	@$(BIN)/python -m bench.image

bench-door: $(READY)
	$(BIN)/python -m bench.door

bench-sessions: $(READY)
	$(BIN)/python -m bench.sessions

# Needs curl, and does its work in memory-backed storage.
bench-workspace: $(READY)
	$(BIN)/python -m bench.workspace

# A peer for bench-door: 760 MB, in a virtual environment of its own.
bench-litellm:
	$(PYTHON) -m venv --clear .venv-litellm
	.venv-litellm/bin/python -m pip install --quiet 'litellm[proxy]'

# Needs node 20.6 or newer and npm; about 1.2 GB for all of them.
agents: $(READY)
	@mkdir -p "$$AGENTS_DIR"
	@test -e "$$AGENTS_DIR/package.json" || echo '{"private": true}' > "$$AGENTS_DIR/package.json"
	npm install --prefix "$$AGENTS_DIR" --ignore-scripts --no-audit --no-fund --loglevel=error \
		$(foreach name,$(AGENTS),$(AGENT_$(name)))
	npm rebuild --prefix "$$AGENTS_DIR" --loglevel=error $(foreach name,$(AGENTS),$(AGENT_$(name)))
	AGENTS="$(AGENTS)" $(BIN)/pytest -q -m slow tests/agents

$(READY): constraints-dev.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Python 3.11 or newer is needed: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
		|| { echo "$(PYTHON) cannot make a virtual environment: install its venv package (Debian: python3-venv)" >&2; exit 1; }
	@echo "setting up $(VENV) ..."
	@$(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r constraints-dev.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@$(BIN)/python -m compileall -q driver kinds
	@touch $@

# Needs uv; run it to take newer versions.
constraints:
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
		--no-emit-find-links --no-annotate --no-header pyproject.toml -o constraints.txt
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
		--no-emit-find-links --no-annotate --no-header --extra dev pyproject.toml -o constraints-dev.txt
	for group in build agents; do \
		uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
			--no-emit-find-links --no-annotate --no-header --group $$group -o constraints-$$group.txt || exit 1; \
	done

clean:
	rm -rf $(VENV) .venv-fuzz .venv-litellm demo-out fuzz-out bench-out build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
