"""
The jobs, one file each. Their folder keeps the modules apart from the functions of
`txbroker.pipeline` that have the same names.
"""
