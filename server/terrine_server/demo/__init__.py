"""`terrine demo`: a complete run on one machine, with the real components.

`material.py` finds the data, `process.py` runs the server, `story.py` has the steps.
"""
