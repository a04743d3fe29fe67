"""
The jobs of the pipeline, each in its own file. The folder keeps them apart from the functions of
the same names in `txbroker.pipeline`.
"""
