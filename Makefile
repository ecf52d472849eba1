# The commands of every day; `make help` lists them. Each installs what it needs on Debian 12 and
# Ubuntu 24.04.
.DEFAULT_GOAL := help
.PHONY: help setup model model-qwen model-gemma build demo test asan tsan fuzz tidy format
.PHONY: check-format clean

JOBS ?= $(shell nproc)
FUZZ_SECONDS ?= 3600

help:            ## This list
	@sed -n 's/^\([a-z-]*\):[a-z -]*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 16

setup:           ## Install the Debian packages that are missing (asks for root once)
	@bash scripts/setup.sh build

model: setup     ## Fetch the default model (98 MB) into the cache, once
	@python3 scripts/fetch_model.py smollm2

model-qwen: setup ## Fetch a second, larger model (491 MB); nothing needs it
	@python3 scripts/fetch_model.py qwen

model-gemma: setup ## Fetch a model with windows (253 MB, Gemma Terms of Use); nothing needs it
	@python3 scripts/fetch_model.py gemma

build: setup     ## Build the release preset into build/release
	cmake --preset release --log-level=WARNING
	cmake --build --preset release --parallel $(JOBS)

demo: model build ## From nothing to an answer on a 4-bit cache and a page of what that gains
	@bash scripts/demo.sh

test:            ## Everything: gcc and clang builds, all tests, sanitizers, style
	@bash scripts/test.sh

asan:            ## Unit tests with the address and undefined-behaviour sanitizers
	@bash scripts/setup.sh test
	cmake --preset asan && cmake --build --preset asan --parallel $(JOBS)
	ctest --preset asan --parallel $(JOBS)

tsan:            ## Unit tests with the thread sanitizer
	@bash scripts/setup.sh test
	cmake --preset tsan && cmake --build --preset tsan --parallel $(JOBS)
	ctest --preset tsan --parallel $(JOBS)

fuzz:            ## Every fuzz target for FUZZ_SECONDS (3600) under sanitizers
	@bash scripts/fuzz.sh $(FUZZ_SECONDS)

tidy:            ## The rules of STYLE.md, without building
	@python3 test/tidy/tidy_test.py && python3 test/tidy/tidy.py

format:          ## Lay out all C++ files with clang-format
	@bash scripts/format.sh --fix

check-format:    ## Say which C++ files `make format` would change
	@bash scripts/format.sh

clean:           ## Remove build/; the models in the cache stay
	rm -rf build
