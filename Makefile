# Short names for xtask commands. `cargo xtask help` lists the others.
.DEFAULT_GOAL := help
.PHONY: help setup build demo test bench ci clean

help: ## this list
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/make \1	\2/p' $(MAKEFILE_LIST) | expand -t 14

setup: ## install the packages that any of these needs; each installs its own (Debian 12, Ubuntu 24.04)
	@sh xtask/setup.sh test

demo: ## see it work: the whole system in network namespaces
	@sh xtask/setup.sh demo
	@cargo xtask demo

build: ## the program as it is shipped: target/release/vouchsafe
	@sh xtask/setup.sh build
	@cargo build --release --package vouchsafe

test: ## every test, here and in a booted 6.1 kernel
	@sh xtask/setup.sh test
	@cargo xtask test

bench: ## measure
	@sh xtask/setup.sh bench
	@cargo xtask bench

ci: ## what CI runs
	@.ci/run

clean: ## remove everything built
	@cargo clean
