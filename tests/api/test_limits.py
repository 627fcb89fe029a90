"""Rate limits: requests per token, and failed logins per address."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.clients import Caller, slug
from support.data import DigitsEnsemble
from support.servers import running_server
from support.wording import holds


@pytest.mark.usefixtures("no_refill")
def test_requests_are_limited_by_token_and_failures_by_address(
    tmp_path: Path, digits_ensemble: DigitsEnsemble
) -> None:
    url = f"sqlite:///{tmp_path / 'terrine.sqlite'}"
    limits = {"requests_per_minute": 5, "failed_logins_per_minute": 3}
    with running_server(tmp_path / "data", url, digits_ensemble, **limits) as server:
        server.open_project()
        busy, calm = Caller(server, server.token()), Caller(server, server.token())
        stranger = Caller(server, "terrine_guess")

        assert [busy.http.get("/budget").status_code for _ in range(5)] == [200] * 5
        refused = busy.label(server.ensemble.public[:1])
        assert slug(refused) == "rate-limited"
        assert int(refused.headers["Retry-After"]) == refused.json()["retry_after"] > 0
        assert server.ledger.project("study").charges == 0

        guesses = [slug(stranger.http.get("/budget")) for _ in range(5)]
        assert guesses == ["unauthorized"] * 3 + ["rate-limited"] * 2
        assert calm.http.get("/budget").status_code == 200  # same address, valid token


@pytest.mark.usefixtures("no_refill")
def test_free_answers_have_a_rate_of_their_own(
    tmp_path: Path, digits_ensemble: DigitsEnsemble
) -> None:
    """Replayed queries are counted, not requests; new ones, and other tokens, are not concerned."""
    url = f"sqlite:///{tmp_path / 'terrine.sqlite'}"
    with running_server(tmp_path / "data", url, digits_ensemble, replays_per_minute=15) as server:
        server.open_project()
        student, other = Caller(server, server.token()), Caller(server, server.token())
        inputs = server.ensemble.public[:10]
        assert student.label(inputs).status_code == 200
        assert student.label(inputs).json()["results"][0]["replayed"]
        assert student.label(inputs).status_code == 200
        refused = student.label(inputs[:1])
        assert slug(refused) == "rate-limited"
        holds(refused.json()["detail"], "replayed")
        assert int(refused.headers["Retry-After"]) > 10
        assert student.http.get("/budget").status_code == 200
        assert other.label(inputs).status_code == 200
        assert server.ledger.project("study").charges == 10
