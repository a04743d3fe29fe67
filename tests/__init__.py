"""The tests: same tree as the package, plus suites over real nodes."""
