"""The aggregator: who may ask it, what leaves it once, and what it never passes."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from addons.federation.owners import listening, owner_tokens
from support.wording import refuses
from terrine_addons.federation import voters
from terrine_addons.federation.aggregator import (
    SERVICE,
    Aggregator,
    PendingShares,
    ReleaseCounter,
    make,
)
from terrine_addons.federation.federations import read_token
from terrine_addons.federation.voters import TERMS, AggregatorTerms, read_terms
from terrine_models.storage.manifests import StoreError
from terrine_server.privacy import Account, NoisyVotes, quote

OWNERS, CLASSES, SIGMA = 20, 10, 12.0
NAMES = tuple(f"owner-{i}" for i in range(OWNERS))


def terms(**changed: Any) -> AggregatorTerms:
    given = {"owners": NAMES, "classes": CLASSES, "sigma": SIGMA, "epsilon": 20, "delta": 1e-6}
    return AggregatorTerms.model_validate({**given, **changed})


class Asking:
    """Speaks to an aggregator over its real socket, as owners and the service do."""

    def __init__(self, url: str, party: Path) -> None:
        self.url, self.service = url, read_token(party / SERVICE)
        self.tokens = owner_tokens(party, terms())

    def put(
        self, owner: int, of_round: str, share: bytes, token: str | None = None, **said: str
    ) -> int:
        """Put a share, by default of one row, with what its owner says of it."""
        headers = {
            "Authorization": f"Bearer {token or self.tokens[owner]}",
            TERMS: terms().digest(),
            voters.SHAPE: f"1x{CLASSES}",
            **said,
        }
        url = f"{self.url}/v1/rounds/{of_round}/share"
        return httpx.put(url, content=share, headers=headers).status_code

    def open(
        self, of_round: str, owners: list[str], rows: int, token: str | None = None
    ) -> httpx.Response:
        headers = {"Authorization": f"Bearer {token or self.service}"}
        body = {"owners": owners, "rows": rows}
        return httpx.post(f"{self.url}/v1/rounds/{of_round}", json=body, headers=headers)


@pytest.fixture(scope="module")
def aggregator(tmp_path_factory: pytest.TempPathFactory) -> Aggregator:
    directory = tmp_path_factory.mktemp("party") / "aggregator"
    make(terms(), directory)
    return Aggregator(directory)


@pytest.fixture(scope="module")
def asking(aggregator: Aggregator) -> Iterator[Asking]:
    with listening(aggregator.app()) as url:
        yield Asking(url, aggregator.directory)


ROW = voters.encode_share(np.arange(CLASSES, dtype=np.uint32)[None])


def test_a_share_is_added_once(asking: Asking, aggregator: Aggregator) -> None:
    """Of one round only one sum ever leaves, in which each owner's share has weight 1."""
    before, (a, b) = aggregator.count.released, NAMES[:2]
    name = voters.new_round()
    assert asking.put(0, name, ROW) == 204
    assert asking.put(0, name, ROW) == 409, "a second share would be a second vote"
    assert asking.put(1, name, ROW) == 204
    opened = asking.open(name, [a, b], 1)
    total = voters.decode_share(opened.content, 1, CLASSES).view(np.int32)[0] - 2 * np.arange(
        CLASSES
    )
    assert np.abs(total).max() < 10 * SIGMA
    assert aggregator.count.released == before + 1
    assert asking.open(name, [a, b], 1).status_code == 409, "the same round a second time"
    for wanted, rows in (([a, a], 1), ([a, b], 1), ([], 1), (["nobody"], 1), ([a], 2), ([a], 0)):
        name = voters.new_round()
        assert asking.put(0, name, ROW) == 204
        assert asking.open(name, wanted, rows).status_code == 409
        assert asking.open(name, [a], 1).status_code == 409, "a round that failed is over"
    assert aggregator.count.released == before + 1, "nothing else was released, or counted"


def test_only_who_has_the_token_gives_or_gets(asking: Asking, aggregator: Aggregator) -> None:
    before, name = aggregator.count.released, voters.new_round()
    assert asking.put(0, name, ROW, token="wrong") == 401
    assert asking.put(0, name, ROW, token=asking.service) == 401, "the service is no owner"
    assert asking.put(0, name, ROW) == 204
    assert asking.open(name, [NAMES[0]], 1, token="wrong").status_code == 401
    assert asking.open(name, [NAMES[0]], 1, token=asking.tokens[0]).status_code == 401
    assert httpx.get(f"{asking.url}/v1/terms").status_code == 401
    headers = {"Authorization": f"Bearer {asking.tokens[3]}"}
    shown = httpx.get(f"{asking.url}/v1/terms", headers=headers).json()
    assert shown["terms"] == terms().model_dump(mode="json")
    assert shown["queries_left"] == aggregator.count.most - before
    assert aggregator.count.released == before


def test_a_share_of_other_rows_or_classes_than_those_priced_is_refused(
    asking: Asking, aggregator: Aggregator
) -> None:
    """Bytes alone do not tell ten votes among two classes from one vote among twenty."""
    before, name = aggregator.count.released, voters.new_round()
    ten_votes = voters.encode_share(np.ones((CLASSES // 2, 2), dtype=np.uint32))
    assert len(ten_votes) == len(ROW)
    wrong = [f"{CLASSES // 2}x2", f"1x{2 * CLASSES}", f"2x{CLASSES}", f"0x{CLASSES}", "1", ""]
    wrong += [f"-1x{CLASSES}", f"1.0x{CLASSES}", "1x" * 9]
    for shape in wrong:
        assert asking.put(0, name, ten_votes, **{voters.SHAPE: shape}) == 400, shape
    for other in (terms(classes=2), terms(epsilon=8), terms(sigma=3), terms(owners=NAMES[:2])):
        assert asking.put(0, name, ROW, **{TERMS: other.digest()}) == 409
    assert asking.put(0, name, ROW, **{TERMS: ""}) == 409
    assert asking.open(name, [NAMES[0]], 1).status_code == 409, "nothing was kept"
    assert asking.put(0, name, ROW * 2, **{voters.SHAPE: f"2x{CLASSES}"}) == 204
    assert asking.open(name, [NAMES[0]], 1).status_code == 409, "rows are the owners' to say"
    assert aggregator.count.released == before


def test_malformed_requests_are_refused(asking: Asking) -> None:
    name = voters.new_round()
    assert asking.put(0, "short", ROW) == 400
    assert asking.put(0, name, b"") == 400
    assert asking.put(0, name, ROW[:-1]) == 400
    headers = {"Authorization": f"Bearer {asking.service}"}
    for body in (b"", b"[]", b'{"owners": [1], "rows": 1}', b"[" * 100_000):
        url = f"{asking.url}/v1/rounds/{name}"
        assert httpx.post(url, content=body, headers=headers).status_code == 400


def test_the_count_is_durable_and_never_passes_its_limit(tmp_path: Path) -> None:
    make(terms(epsilon=6), tmp_path / "aggregator")
    most = ReleaseCounter(tmp_path / "aggregator").most
    assert 10 < most < 1000
    counts = [ReleaseCounter(tmp_path / "aggregator") for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(lambda i: counts[i % 4].add(3), range(most)))
    assert sum(done) == most // 3
    assert ReleaseCounter(tmp_path / "aggregator").released == 3 * (most // 3)
    assert not ReleaseCounter(tmp_path / "aggregator").add(3)


def test_the_limit_is_what_the_budget_pays_for_at_the_price_of_noisy_counts() -> None:
    own = terms().price()
    same = quote(NoisyVotes(OWNERS, CLASSES, SIGMA), 20, 1e-6)
    assert own == same
    most = own.affordable(Account())
    assert own.epsilon_spent(most * own.worst.cost) <= 20
    assert own.epsilon_spent(4 * most * own.worst.cost) > 20


def test_shares_that_wait_have_a_limit_for_each_owner() -> None:
    waiting = PendingShares(["a", "b"], memory=2 * 100)
    for number in range(30):
        assert waiting.put("a", f"round-{number}", b"x" * 10)
    assert waiting.put("b", "round-0", b"y" * 10)
    assert set(waiting.take("round-0")) == {"b"}, "only a's own shares made room"
    assert set(waiting.take("round-29")) == {"a"}
    assert sum(bool(waiting.take(f"round-{number}")) for number in range(30)) == 9


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"owners": ["a"]}, "owners"),
        ({"owners": ["a", "a"]}, "names"),
        ({"owners": ["a", "../b"]}, "owners.1"),
        ({"sigma": 0.1}, "sigma"),
        ({"sigma": float("nan")}, "sigma"),
        ({"classes": 1}, "classes"),
        ({"classes": 5000}, "classes"),
        ({"epsilon": 0}, "epsilon"),
        ({"epsilon": 1e-5}, "query"),
        ({"unknown": 1}, "unknown"),
    ],
)
def test_a_aggregator_that_makes_no_sense_is_not_made(
    tmp_path: Path, changed: dict[str, Any], says: str
) -> None:
    file = tmp_path / "aggregator.toml"
    file.write_text(toml(terms().model_dump()))
    assert read_terms(file) == terms()
    file.write_text(toml({**terms().model_dump(), **changed}))
    with refuses(StoreError, *says.split()):
        read_terms(file)


def toml(document: dict[str, Any]) -> str:
    lines = (f"{name} = {json.dumps(value)}\n" for name, value in document.items())
    return "".join(lines).replace("NaN", "nan")


def test_a_aggregator_whose_files_are_gone_or_edited_does_not_start(tmp_path: Path) -> None:
    directory = tmp_path / "aggregator"
    with refuses(StoreError, "aggregator"):
        Aggregator(directory)
    make(terms(), directory)
    with refuses(StoreError, "exists"):
        make(terms(), directory)
    assert all(path.stat().st_mode & 0o077 == 0 for path in (directory, *directory.rglob("*")))
    other = directory / "owners/owner-1.token"
    kept = other.read_bytes()
    other.write_bytes((directory / "owners/owner-0.token").read_bytes())
    with refuses(StoreError, "token"):
        Aggregator(directory)
    other.write_bytes(kept)
    Aggregator(directory)
    with sqlite3.connect(directory / "aggregator.db") as db:
        db.execute("UPDATE aggregator SET terms = '{}'")
    db.close()
    with refuses(StoreError, "used"):
        Aggregator(directory)


def test_what_cannot_be_counted_is_not_released(asking: Asking, aggregator: Aggregator) -> None:
    name = voters.new_round()
    assert asking.put(0, name, ROW) == 204
    aggregator.count._db.execute("PRAGMA query_only = ON")  # as if the disk were full
    try:
        refused = asking.open(name, [NAMES[0]], 1)
    finally:
        aggregator.count._db.execute("PRAGMA query_only = OFF")
    assert refused.status_code == 500
    assert len(refused.content) < 40
    assert asking.open(name, [NAMES[0]], 1).status_code == 409
