"""Databases by day: where one shows what a test promises, the other has its turn by night.

In each room, some tests of each kind run on both by day: what is stored, and how it is read,
locked and given up, differs.
"""

from __future__ import annotations

import pytest


def _alone(by_day: str, by_night: str) -> pytest.MarkDecorator:
    databases = [by_day, pytest.param(by_night, marks=pytest.mark.nightly)]
    return pytest.mark.parametrize("each_database_url", databases, indirect=True)


SQLITE_BY_DAY = _alone("sqlite", "postgresql")
POSTGRESQL_BY_DAY = _alone("postgresql", "sqlite")
