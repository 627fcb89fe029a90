"""A ledger without projects. A test whose promise each database keeps asks for `each_ledger`."""

from __future__ import annotations

import pytest

from support.ledgers import open_ledger
from terrine_server.ledger import Ledger


@pytest.fixture
def ledger(database_url: str) -> Ledger:
    return open_ledger(database_url)


@pytest.fixture
def each_ledger(each_database_url: str) -> Ledger:
    return open_ledger(each_database_url)
