"""`terrine demo`: the whole job on one machine, with the real parts.

`material.py` finds the data, `process.py` runs the server, `story.py` tells what happens.
"""
