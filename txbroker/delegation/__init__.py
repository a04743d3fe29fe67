"""Who serves which zone at which epoch: rules, values and procedures. Pure."""
