"""An archive that is written while everything around it is killed; see `__main__`."""
