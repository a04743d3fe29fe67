"""
The coverage-guided fuzzer, in a process with the sanitized core: `python -m tests.fuzz.fuzzer`.

The arguments are libFuzzer's, which is part of atheris. Exit status 0: nothing was found.
"""

from __future__ import annotations

import ctypes
import gc
import sys

from tests.fuzz import sanitized
from tests.fuzz.target import check
from tests.fuzz.watch import Watch


def connect() -> None:
    """Tell libFuzzer what code of the core runs."""
    from atheris import core_with_libfuzzer

    library = ctypes.CDLL(core_with_libfuzzer.__file__)

    @ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_char_p)
    def find(name: bytes) -> int | None:
        return ctypes.cast(getattr(library, name.decode()), ctypes.c_void_p).value

    sanitized.library.fuzz_connect(find)


def main() -> None:
    import atheris

    connect()
    watch = Watch()

    def target(data: bytes) -> None:
        with watch.trying(data):
            check(data)

    check(b"")
    gc.collect()
    gc.freeze()  # what is there already need not be looked at each time
    atheris.Setup(sys.argv, target, internal_libfuzzer=True)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
