"""Rate limits: requests per token, and failed logins per address."""

from __future__ import annotations

from pathlib import Path

from caller import Caller, slug
from digits import DigitsEnsemble
from server import running_server


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
