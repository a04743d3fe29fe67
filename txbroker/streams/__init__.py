"""TCP connections that cost little: written at once, watched together, one turn for all of them."""
