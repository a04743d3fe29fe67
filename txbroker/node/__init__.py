"""
Composition: builds one node from its parts and wires them. Only this folder knows all parts.

`node_base` has what both roles share, `owner_role` and `edge_role` are the roles. `control_plane`
gains and hands over zones, and answers calls. `node` joins them all and runs their life.
"""

from txbroker.node.node import Node

__all__ = ["Node"]
