"""
The properties of `tests.core.test_agreement` for as long as wanted, with the sanitized core, in a
process of its own: `python -m tests.fuzz.generated SECONDS`. Exit status 0: nothing was found.
"""

from __future__ import annotations

import gc
import sys
import time
from typing import Any

from tests.core import test_agreement
from tests.fuzz.target import compare
from tests.fuzz.watch import Watch


def main() -> None:
    watch = Watch(".steps")

    def assert_alike(cache_limit: int, done: list[tuple[Any, ...]]) -> None:
        with watch.trying(repr((cache_limit, done)).encode()):
            compare(cache_limit, done)

    test_agreement.assert_alike = assert_alike
    tests = [test for test in vars(test_agreement).values() if hasattr(test, "hypothesis")]
    gc.collect()
    gc.freeze()
    until = time.monotonic() + float(sys.argv[1])
    while time.monotonic() < until:
        for test in tests:
            test()
    print(f"{watch.tried} inputs")


if __name__ == "__main__":
    main()
