"""The harness itself: one question, end to end, on both databases."""

from __future__ import annotations

import httpx
import pytest

from support.servers import RunningServer


@pytest.mark.usefixtures("each_database_url")
def test_a_student_asks_pays_and_is_answered(terrine_server: RunningServer) -> None:
    terrine_server.open_project()
    headers = {"Authorization": f"Bearer {terrine_server.token()}"}
    inputs = terrine_server.ensemble.public[:5].tolist()
    with httpx.Client(base_url=terrine_server.url, headers=headers) as http:
        said = http.post("/label", json={"inputs": inputs})
        assert said.status_code == 200, said.text
        assert [result["outcome"] for result in said.json()["results"]] == ["answered"] * 5
        assert said.json()["budget"]["charges"] == 5
        again = http.post("/label", json={"inputs": inputs}).json()
        assert again["budget"]["charges"] == 5
        assert all(result["replayed"] for result in again["results"])
    assert terrine_server.ledger.verifier.verify_project("study").ok
