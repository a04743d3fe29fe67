"""The tools of `make bench`: what they compute, and that the generator sees what goes wrong."""
