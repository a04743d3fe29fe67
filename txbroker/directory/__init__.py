"""Which node holds a client id's session, and how sessions move. Pure; the shells are elsewhere."""
