"""
Nodes of an earlier version beside nodes of this one, and their folders under this one.

The earlier code comes out of the clone's own history. A random play lets clients roam, publish and
break off while nodes die, are upgraded one after the other, and zones move.
"""
