"""
Composition: one node, built from its parts and wired. Nothing else in the package knows all of it.

`node_base` has what both roles share, `owner_role` and `edge_role` are the roles. `control_plane`
gains and hands over zones, and answers calls. `node` joins them all and runs their life.
"""

from txbroker.node.node import Node

__all__ = ["Node"]
