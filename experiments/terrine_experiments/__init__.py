"""The papers' experiments, on data given by path, through the real service.

Not in the wheel: `make reproduce ARGS="mnist DIR"` in a checkout. `sources.py` reads the data,
`papers.py` has the published figures, `owner.py` trains teachers and opens projects,
`experiment.py` runs students, `results.py` keeps and shows what came of it.
"""
