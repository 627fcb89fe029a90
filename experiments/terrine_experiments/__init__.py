"""Experiments on data given by path; not in the wheel.

`make reproduce ARGS="mnist DIR"` in a checkout measures the product's defaults through the real
service: `sources.py` reads the data, `owner.py` trains teachers and opens projects,
`experiment.py` runs students, `results.py` keeps and shows what came of it.
`make reproduce ARGS="paper all --data DIR"` recomputes what three papers print (`papers.py`):
`study.py` has votes and students, `costs.py` what answers cost, a module for each paper its
tables and figures, and `page.py` the page.
"""
