"""Documents of topology files, and changes of them."""

from __future__ import annotations

import re
from pathlib import Path

from txbroker import config
from txbroker.config import NodeConfig

ROOT = """\
node: house
zone: ""
mqtt: [tcp:1883:interface=127.0.0.1]
grpc: 127.0.0.1:7001
data: var/house
"""

KITCHEN = """\
node: kitchen
zone: home/kitchen
parent: localhost:7001
mqtt: [tcp:1884:interface=127.0.0.1]
grpc: 127.0.0.1:7002
data: var/kitchen
"""


def changed(text: str, **keys: str | None) -> str:
    """The document with these keys replaced, added, or (None) left out; values are YAML."""
    for key, value in keys.items():
        text = re.sub(rf"(?m)^{key}:.*\n", "", text)
        if value is not None:
            text += f"{key}: {value}\n"
    return text


def write(folder: Path, *texts: str) -> list[Path]:
    """One file for each text."""
    paths = [folder / f"{number}.yaml" for number in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text)
    return paths


def one(folder: Path, text: str) -> NodeConfig:
    """The node of a file with one document."""
    (found,) = config.load_files(write(folder, text))
    return found
