#!/bin/bash
# A wheel or an sdist as its user has it: `smoke.sh FILE [PYTHON]` installs it into an empty environment,
# starts a node with the compiled core, and sends a message through it.
set -eu
wheel=$(realpath "$1")
place=$(mktemp -d)
node=
trap '[ -z "$node" ] || kill "$node"; wait; rm -rf "$place"' EXIT
cd "$place"
: >log
"${2:-python3}" -m venv .venv
.venv/bin/python -m pip install --quiet --disable-pip-version-check "$wheel"
# The version stands in the file's name, too.
.venv/bin/txbroker --version | grep -x "txbroker $(basename "$wheel" .tar.gz | cut -d - -f 2)"
cat >solo.yaml <<'YAML'
node: solo
zone: ""
mqtt: ["tcp:0:interface=127.0.0.1"]
grpc: 127.0.0.1:27431
data: solo
YAML
.venv/bin/twistd --pidfile= --reactor=asyncio -n txbroker --topology solo.yaml 2>log &
node=$!
for _ in $(seq 600); do
    grep -q '"node.ready"' log && break
    kill -0 "$node"
    sleep 0.2
done
grep '"node.ready"' log | grep '"core": "compiled"'
mqtt=$(grep '"node.ready"' log | sed 's/.*"mqtt": "\([^"]*\)".*/\1/')
.venv/bin/txbroker pub "$mqtt" -t kept -m through -q 1 -r
.venv/bin/txbroker sub "$mqtt" -t kept -q 1 -n 1 | grep '^kept through$'
