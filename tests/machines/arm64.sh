#!/bin/bash
# On 64-bit ARM under qemu: the core cross-compiled, then the tests of core, log and conformance.
# As root, with Debian's packages debootstrap, qemu-user-static, binfmt-support and
# g++-aarch64-linux-gnu.
set -eu
cd "$(dirname "$0")/../.."
. tests/machines/root.sh

need_arm
need aarch64-linux-gnu-g++ g++-aarch64-linux-gnu
make_root trixie arm64 python3 python3-venv python3-dev git ca-certificates
put_checkout
# Translated and compiled here: emulated, that takes a quarter of an hour.
make --silent install
python=$(basename "$(ls -d "$place"/usr/include/python3*)")
version=3${python#python3.}
headers=$PWD/build/machines/headers
# Python's headers alone: beside the root's own libc the cross-compiler would not find its own.
mkdir -p "$headers/aarch64-linux-gnu"
ln -sfn "$place/usr/include/$python" "$headers/$python"
ln -sfn "$place/usr/include/aarch64-linux-gnu/$python" "$headers/aarch64-linux-gnu/$python"
.venv/bin/python -m cython -3 --cplus txbroker/core/compiled.pyx -o build/compiled-arm64.cpp
aarch64-linux-gnu-g++ -shared -fPIC -O2 -g0 -std=c++20 \
    -Itxbroker/core -isystem "$headers/$python" -isystem "$headers" \
    -o "$place/txbroker/txbroker/core/compiled.cpython-$version-aarch64-linux-gnu.so" \
    build/compiled-arm64.cpp
inside python3 -m venv .venv
inside env CC=false CXX=false .venv/bin/python -m pip install --quiet -e '.[dev]'
inside .venv/bin/python -m pytest -q -n 2 --dist loadfile --timeout 1200 \
    tests/core tests/storage/test_log.py tests/conformance
