"""
One file for each job. They have a folder of their own because the functions of the same names are
what `txbroker.pipeline` has under these names.
"""
