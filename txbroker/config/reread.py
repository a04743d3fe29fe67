"""
A second read of the topology file while its node runs: keys that may change, and keys that may not.
"""

from __future__ import annotations

import attrs

from txbroker.config.reader import load_file, select
from txbroker.config.values import NOT_KEYS, NodeConfig

RELOADED = ("limits", "session_limits", "retention", "expiry", "hold_first")
"""Keys whose new values count at once; changes of all others need a restart."""


@attrs.frozen(kw_only=True)
class Reread:
    """
    The config to use from now on, and the changed keys of the file, dotted.

    `changed`: keys that count now, with their new values. `restart_needed`: keys that do not count
    yet.
    """

    config: NodeConfig
    changed: dict[str, str]
    restart_needed: tuple[str, ...]


def reread(config: NodeConfig) -> Reread:
    """Read the file of `config` again; raises `ConfigError`, and then no value has changed."""
    fresh = select(load_file(config.source), config.node)
    changed: dict[str, str] = {}
    for key in RELOADED:
        old, new = getattr(config, key), getattr(fresh, key)
        if isinstance(new, tuple):
            if new != old:
                changed[key] = ", ".join(map(str, new))
            continue
        for field in attrs.fields(type(new)):
            value = getattr(new, field.name)
            if value != getattr(old, field.name):
                changed[f"{key}.{field.name}"] = str(value)
    kept = {*NOT_KEYS, *RELOADED}
    names = [field.name for field in attrs.fields(NodeConfig) if field.name not in kept]
    return Reread(
        config=attrs.evolve(config, **{key: getattr(fresh, key) for key in RELOADED}),
        changed=changed,
        restart_needed=tuple(n for n in names if getattr(config, n) != getattr(fresh, n)),
    )
