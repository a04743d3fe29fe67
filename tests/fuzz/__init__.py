"""The core under a coverage-guided fuzzer: `make fuzz`, which docs/core.md explains."""
