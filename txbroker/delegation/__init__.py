"""
The delegation of zones (which node serves which zone at which epoch): rules, values and procedures.
Pure.
"""
