"""
Commands of the maintainer: lock the packages that `make install` uses, and make a release.
"""
