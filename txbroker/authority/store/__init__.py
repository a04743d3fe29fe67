"""What an authority keeps on disk: the zone's checkpoint, its reserved offsets."""
