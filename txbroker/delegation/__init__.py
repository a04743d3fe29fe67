"""Who serves which zone at which epoch: rules and values. Pure."""
