#!/bin/bash
# On Debian 13 with its Python: `make home`, and the tests of core, mqtt, delegation, store and link.
# As root, as it makes a root of Debian's packages with debootstrap and changes into it.
set -eu
cd "$(dirname "$0")/../.."
. tests/machines/root.sh

make_root trixie amd64 python3 python3-venv python3-dev g++ make git ca-certificates
put_checkout
inside make PYTHON=python3 home SECONDS=5
# Of the pipeline these tests need only this; the same as in setup.cfg.
inside .venv/bin/python -m pip install --quiet 'pyarrow >= 26, < 27'
# On a machine that does other things as well, the random tests of store take minutes.
inside .venv/bin/python -m pytest -q -n 2 --dist loadfile --timeout 1200 \
    tests/core tests/mqtt tests/delegation tests/storage tests/journal tests/link
