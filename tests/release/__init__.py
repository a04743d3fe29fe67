"""The maintainer's commands: lock files and releases."""
