#!/bin/bash
# Wheels in dist/ for the Python of each given Debian release (bookworm, trixie and forky, which have
# 3.11, 3.13 and 3.14), for x86-64 and 64-bit ARM. Each is built in that release, installed into an
# empty environment there, and a node started from it; for ARM under qemu.
# As root, with Debian's packages debootstrap, qemu-user-static and binfmt-support.
set -eu
cd "$(dirname "$0")/../.."
. tests/machines/root.sh

[ "$(uname -m)" = x86_64 ] || fail "cross-compiles from x86-64: on this machine run make wheels"
need_arm
mkdir -p dist
[ $# -gt 0 ] || set -- bookworm trixie forky
for release in "$@"; do
    make_root "$release" amd64 python3 python3-venv python3-dev g++ g++-aarch64-linux-gnu ca-certificates
    put_checkout
    inside tests/machines/wheels.sh python3
    built=$place/txbroker/dist
    cp "$built"/*.whl dist/
    inside tests/machines/smoke.sh "$(cd "$place/txbroker" && ls dist/*x86_64.whl)"
    make_root "$release" arm64 python3 python3-venv ca-certificates
    put_checkout
    cp "$built"/*aarch64.whl "$place/txbroker/"
    inside tests/machines/smoke.sh "$(cd "$place/txbroker" && ls -- *aarch64.whl)"
    echo "test-wheels.sh: the wheels of Debian's $release are built and serve"
done
