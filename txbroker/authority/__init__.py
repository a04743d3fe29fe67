"""The owner's role: one zone's publishes are ordered, retained and handed to the edges. Pure."""
