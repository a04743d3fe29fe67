"""
Composition: one node, built from its parts and wired. Nothing else in the package knows all of it.

`ground` is what both roles stand on, `owner` and `edge` are the roles, `control` is how the node
gets and gives zones and what it answers; `node` joins them and has their life.
"""

from txbroker.node.node import Node

__all__ = ["Node"]
