"""Experiments on data given by path; not in the wheel.

`make reproduce ARGS="mnist DIR"` in a checkout measures the product's defaults, and `make reproduce
ARGS="paper all --data DIR"` recomputes what three papers print. Both read data by `sources.py` and
have teachers, votes and students of `study.py`, all in one process. `reproduce.py` has runs at
budgets, and `results.py` keeps and shows what came of them. `papers.py` has what papers print,
`costs.py` what answers cost, a module for each paper its tables and figures, and `page.py` the
page. `pictures.py` draws.
"""
