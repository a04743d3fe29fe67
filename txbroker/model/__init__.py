"""The vocabulary that all folders share: topics, zone cuts, log positions, errors. Pure."""
