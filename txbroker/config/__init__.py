"""
The topology file: from YAML documents to frozen values, every mistake told in one line.

`load_file` and `load_files` raise the first `ConfigError`; `inspect_files` collects all of them,
for `txbroker check`. No function here opens a socket or writes to the disk.
"""

from txbroker.config.reader import inspect_files, load_file, load_files, select
from txbroker.config.reread import Reread, reread
from txbroker.config.tree_rules import check
from txbroker.config.value_hooks import parse_address
from txbroker.config.values import (
    Address,
    Durability,
    Journaled,
    Limits,
    NodeConfig,
    ReserveSize,
    RetentionLimits,
    SessionBounds,
    WhenUnknown,
    WhenUnreachable,
)

__all__ = [
    "Address",
    "Durability",
    "Journaled",
    "Limits",
    "NodeConfig",
    "Reread",
    "ReserveSize",
    "RetentionLimits",
    "SessionBounds",
    "WhenUnknown",
    "WhenUnreachable",
    "check",
    "inspect_files",
    "load_file",
    "load_files",
    "parse_address",
    "reread",
    "select",
]
