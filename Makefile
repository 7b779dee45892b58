# Thin names for what xtask does. `cargo xtask help` lists the rest.
.DEFAULT_GOAL := help
.PHONY: help setup demo test bench ci clean

help: ## this list
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/make \1	\2/p' $(MAKEFILE_LIST) | expand -t 14

setup: ## install the packages that everything below needs (Debian 12, Ubuntu 24.04)
	@sh xtask/setup.sh

demo: setup ## see it work: the whole system in network namespaces
	@cargo xtask demo

test: setup ## every test, here and in a booted 6.1 kernel
	@cargo xtask test

bench: setup ## measure
	@cargo xtask bench

ci: ## what CI runs
	@.ci/run

clean: ## remove everything built
	@cargo clean
