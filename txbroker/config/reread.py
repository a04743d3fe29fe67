"""Reading a topology file again while its node runs: what may change, and what needs a restart."""

from __future__ import annotations

import attrs

from txbroker.config.reader import load_file, select
from txbroker.config.values import NOT_KEYS, NodeConfig

RELOADED = ("limits", "session_limits", "retention")
"""Keys whose new values count at once; all others count at the next start."""


@attrs.frozen(kw_only=True)
class Reread:
    """
    The config to go on with, and what the file changed, as dotted keys: `changed` counts now, with
    its new values, `restart_needed` does not.
    """

    config: NodeConfig
    changed: dict[str, str]
    restart_needed: tuple[str, ...]


def reread(config: NodeConfig) -> Reread:
    """Read the file of `config` again; raises `ConfigError`, and then nothing has changed."""
    fresh = select(load_file(config.source), config.node)
    changed: dict[str, str] = {}
    for key in RELOADED:
        old, new = getattr(config, key), getattr(fresh, key)
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
