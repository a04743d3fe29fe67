#!/bin/bash
# Wheels in dist/ for each given Python (those from 3.11 to 3.14 on PATH by default): for this
# machine's processor, and from x86-64 for 64-bit ARM too, where Debian's g++-aarch64-linux-gnu is.
#
# Each Python has wheels of its own: the limited API, which would serve all, costs half as much again
# for each packet (docs/core.md).
set -eu
cd "$(dirname "$0")/../.."

# quietly LOG COMMAND...: what the command prints is shown where it fails.
quietly() {
    local log=$1
    shift
    "$@" >"$log" 2>&1 || { cat "$log" >&2; return 1; }
}

# build PYTHON PROCESSOR [VARIABLE=VALUE...]
build() {
    local python=$1 processor=$2 made tag
    shift 2
    tag=$("$python" -c 'import sys; print("cp{}{}".format(*sys.version_info))')
    made=build/wheels/$tag-$processor
    rm -rf "$made" build/lib.* build/temp.* build/bdist.*
    # What builds runs here, whatever it builds for: pip would fetch it for the other processor.
    quietly "$made.log" env "$@" "$python" -m build --wheel --no-isolation -o "$made" .
    # Without its compiled core a wheel would serve, many times slower; setup.py only warns.
    if ! "$python" -m zipfile -l "$made"/*.whl |
        grep "compiled.*$processor-linux-gnu.so" >/dev/null; then
        echo "wheels.sh: the core was not compiled for $python on $processor" >&2
        return 1
    fi
    mkdir -p dist
    # The tag names the oldest glibc and libstdc++ that serve; pip offers the wheel to no older system.
    quietly "$made.log" env PATH="$(dirname "$python"):$PATH" \
        "$python" -m auditwheel repair -w dist "$made"/*.whl
    ls dist/*"$tag"*"$processor".whl
}

# A name on PATH may be that of a launcher, without the Python.
[ $# -gt 0 ] || for version in 3.11 3.12 3.13 3.14; do
    ! "python$version" -c "" 2>/dev/null || set -- "$@" "python$version"
done
if [ $# -eq 0 ]; then
    echo "wheels.sh: no Python from 3.11 to 3.14 is on PATH: make wheels PYTHONS=..." >&2
    exit 1
fi
here=$(uname -m)
arm=aarch64-linux-gnu
for named in "$@"; do
    python=$PWD/build/wheels/venv-$(basename "$named")/bin/python
    [ -x "$python" ] || "$named" -m venv "$(dirname "$(dirname "$python")")"
    "$python" -m pip install --quiet --disable-pip-version-check --require-hashes \
        -r requirements/release.txt
    build "$python" "$here"
    if [ "$here" = x86_64 ] && command -v $arm-g++ >/dev/null; then
        suffix=$("$python" -c 'import sys; print("cpython-{}{}".format(*sys.version_info))')-$arm.so
        # Python's headers say the same for both processors, as far as an extension looks: where Debian
        # has them by processor, this one's serve.
        version=$("$python" -c 'import sys; print("python{}.{}".format(*sys.version_info))')
        mkdir -p build/wheels/headers/$arm
        ln -sfn "/usr/include/x86_64-linux-gnu/$version" "build/wheels/headers/$arm/$version"
        build "$python" aarch64 CPPFLAGS="-isystem $PWD/build/wheels/headers" \
            _PYTHON_HOST_PLATFORM=linux-aarch64 \
            SETUPTOOLS_EXT_SUFFIX=".$suffix" CC=$arm-gcc CXX=$arm-g++ \
            LDSHARED="$arm-gcc -shared" LDCXXSHARED="$arm-g++ -shared"
    fi
done
