"""The hash chain: what it covers, and bytes that stand for one thing only."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from terrine_server.ledger.chain import (
    CHARGE_FIELDS,
    KIND_FIELDS,
    charge_hash,
    frame,
    hasher,
    iso,
)
from terrine_server.ledger.verifying import is_instant


def test_no_two_sequences_of_fields_share_an_encoding() -> None:
    different = [
        ("ab", "c"),
        ("a", "bc"),
        ("abc",),
        (b"ab", "c"),
        ("1",),
        (1,),
        (1.0,),
        (None,),
        ("",),
        (b"",),
        (),
        ("", ""),
    ]
    assert len({frame(*fields) for fields in different}) == len(different)


@settings(max_examples=25)
@given(
    seq=st.integers(1, 2**63 - 1),
    created_at=st.datetimes(datetime(2000, 1, 1), timezones=st.just(UTC)),
    digests=st.lists(st.binary(min_size=32, max_size=32), min_size=3, max_size=3),
    outcome=st.text(),
    label=st.none() | st.integers(0, 2**63 - 1),
    cost=st.integers(0, 2**63 - 1),
)
def test_the_fast_hash_is_the_hash(
    seq: int, created_at: datetime, digests: list[bytes], outcome: str, label: int | None, cost: int
) -> None:
    charge: dict[str, Any] = {
        **dict.fromkeys(CHARGE_FIELDS, cost),
        "project_id": 3,
        "seq": seq,
        "created_at": created_at,
        "outcome": outcome,
        "query_digest": digests[0],
        "input_digest": digests[1],
        "label": label,
    }
    kind = frame(*(charge[name] for name in KIND_FIELDS))
    fast = hasher(3)(digests[2], seq, iso(created_at), digests[0], digests[1], kind)
    assert fast == charge_hash(digests[2], charge)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "infinity",
        "2026-01-01T00:00:00Z",
        "2026-01-01 00:00:00.000000Z",
        "2026-02-30T00:00:00.000000Z",
        "2026-01-01T24:00:00.000000Z",
        "2026-01-01T00:00:00.000000+00:00",
    ],
)
def test_no_other_text_is_taken_for_an_instant(text: str) -> None:
    assert not is_instant(text)
    assert is_instant("2026-01-01T00:00:00.000000Z")
