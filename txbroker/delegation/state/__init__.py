"""What a node was granted and what it delegated, on its disk."""
