"""The core under a coverage-guided fuzzer: `make fuzz`, which docs/core.md explains."""

import os

if "TXBROKER_FUZZED" in os.environ:  # before anything that imports the core
    from tests.fuzz import sanitized as sanitized
