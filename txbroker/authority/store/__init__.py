"""An authority's state on disk: the zone's checkpoint, its reserved offsets."""
