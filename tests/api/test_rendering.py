"""Responses match the wire models, and are never rendered on the event loop."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache, partial
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel
from pydantic_core import PydanticSerializationError

from support.clients import Caller
from support.ledgers import (
    CLASSES,
    COUNTED,
    GNMAX,
    IMMUTABLE,
    LNMAX,
    digest,
    open_ledger,
    open_project,
)
from support.servers import RunningServer
from terrine_protocol import LabelResponse, LabelResult, Outcome, ProjectStatus, Role, TokenInfo
from terrine_server import views
from terrine_server.api import students
from terrine_server.errors import BudgetExhausted, ServiceError
from terrine_server.labeling.pipeline import Labeling
from terrine_server.labeling.queries import CheckedRequest
from terrine_server.ledger import ChargedBatch, ProjectRecord
from terrine_server.ledger.records import ChargeRecord, Publication, Result, TokenRecord

Call = Callable[..., Caller]
NOW = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
AMOUNTS = st.integers(0, 2**63 - 1)


ANSWER = Result(Outcome.ANSWERED, label=3, seq=1, replayed=False)


@cache
def projects() -> dict[str, ProjectRecord]:
    """Projects as a ledger returns them, by their mechanisms; "named" has names of classes."""
    with TemporaryDirectory() as directory:
        ledger = open_ledger(f"sqlite:///{directory}/ledger.sqlite")
        made = {
            str(spec["name"]): open_project(ledger, 5, spec, f"p{number}")
            for number, spec in enumerate((GNMAX, LNMAX, IMMUTABLE, COUNTED))
        }
    plain = made["gnmax"]
    classes = [f"class {label}" for label in range(CLASSES)]
    facts = plain.ensemble.facts.model_copy(update={"classes": classes})
    return {**made, "named": replace(plain, ensemble=replace(plain.ensemble, facts=facts))}


standing = partial(
    st.builds,
    replace,
    status=st.sampled_from(ProjectStatus),
    spent=st.integers(0, 2**40),
    delta_spent=AMOUNTS,
    charges=st.integers(10, 2**31),
    published=st.lists(
        st.builds(Publication, seq=st.integers(1, 9), queries=st.integers(1, 9), figure=AMOUNTS),
        max_size=3,
    ),
)
results = st.builds(
    Result,
    outcome=st.sampled_from(Outcome),
    label=st.none() | st.integers(0, CLASSES - 1),
    seq=st.none() | st.integers(1, 2**63 - 1),
    replayed=st.booleans(),
)
accounts = st.deferred(
    lambda: standing(
        st.sampled_from([projects()[n] for n in ("gnmax", "lnmax", "immutable", "named")])
    )
)
counting = st.deferred(lambda: standing(st.just(projects()["noisy_votes"])))
counted_results = st.builds(
    replace, results, counts=st.none() | st.lists(st.integers(-(2**40), 2**40)).map(tuple)
)


@given(st.builds(ChargedBatch, results=st.lists(results), project=accounts))
def test_answers_are_rendered_like_their_wire_model(receipt: ChargedBatch) -> None:
    named = receipt.project.ensemble is projects()["named"].ensemble
    expected = LabelResponse(
        results=[
            LabelResult(
                outcome=r.outcome,
                label=r.label,
                label_name=f"class {r.label}" if named and r.label is not None else None,
                charge=r.seq,
                replayed=r.replayed,
            )
            for r in receipt.results
        ],
        budget=views.budget(receipt.project),
    )
    written = views.label_reply(receipt).body
    assert written == expected.model_dump_json(exclude=NOISY).encode()
    assert LabelResponse.model_validate_json(written) == expected


NOISY: Any = {"noise_sigma": True, "results": {"__all__": {"counts"}}}
"""What is absent where there are no noisy counts, and not null."""


def test_classes_that_are_named_by_their_labels_have_no_other_name() -> None:
    receipt = ChargedBatch([ANSWER], projects()["gnmax"])
    assert b"label_name" not in views.label_reply(receipt).body
    assert b'"label":3,"label_name":"class 3"' in (
        views.label_reply(replace(receipt, project=projects()["named"])).body
    )


@given(st.builds(ChargedBatch, results=st.lists(counted_results), project=counting))
def test_noisy_counts_are_rendered_where_there_are_some(receipt: ChargedBatch) -> None:
    written = views.label_reply(receipt).body
    told = LabelResponse.model_validate_json(written)
    assert told.noise_sigma == 400.0
    for sent, result in zip(json.loads(written)["results"], receipt.results, strict=True):
        assert ("counts" in sent) == (result.counts is not None)
        assert sent.get("counts") == (None if result.counts is None else list(result.counts))


def test_invalid_answers_are_never_sent() -> None:
    for wrong in ({"label": "3"}, {"label": 3.5}, {"outcome": "won"}, {"seq": b"1"}):
        receipt = ChargedBatch([ANSWER, replace(ANSWER, **wrong)], projects()["gnmax"])
        with pytest.raises(PydanticSerializationError):
            views.label_reply(receipt)


def test_an_answer_that_cannot_be_rendered_fails_only_its_own_request() -> None:
    good = ChargedBatch([ANSWER], projects()["gnmax"])
    wrong: dict[str, Any] = {"label": "3"}
    bad = replace(good, results=[replace(good.results[0], **wrong)])
    refused = BudgetExhausted("spent")

    class Labeled(Labeling):
        def __init__(self) -> None: ...

        def answer(
            self, project_name: str, asks: Sequence[CheckedRequest]
        ) -> list[ChargedBatch | ServiceError]:
            return [good, bad, refused]

    ask = CheckedRequest(np.empty((0, 1)), None, None, [], "", None, notes=("other",))
    first, second, third = students.answer_group(Labeled(), "study", [ask] * 3)
    assert first == views.label_reply(good, ["other"])
    assert (first.free, first.paid) == (0, (1, 1))
    assert isinstance(second, PydanticSerializationError)
    assert third is refused


def test_attributes_outside_the_wire_model_are_never_sent() -> None:
    entry = ChargeRecord(
        project="study",
        project_id=7_777_777,
        seq=1,
        created_at=NOW,
        query_digest=digest("query").hex(),
        input_digest=digest("input").hex(),
        outcome=Outcome.ANSWERED,
        label=3,
        figure=None,
        cost=1,
        delta=2,
        cap_cost=8_888_888,
        mechanism=GNMAX,
        event={"name": "gaussian", "sigma": 40.0},
        hash=digest("hash").hex(),
    )
    sent = views.charge(entry, projects()["named"].ensemble).model_dump_json()
    assert entry.query_digest in sent
    assert '"label":3,"label_name":"class 3"' in sent
    for private in (entry.input_digest, "7777777", "8888888"):
        assert private not in sent

    token = TokenRecord(
        id="0123456789abcdef",
        role=Role.STUDENT,
        project="study",
        project_id=7_777_777,
        label="Ada",
        hash=b"a keyed hash",
        created_at=NOW,
        expires_at=NOW,
        revoked_at=None,
    )
    sent = TokenInfo.model_validate(token).model_dump_json()
    assert token.id in sent
    for private in ("keyed", "7777777"):
        assert private not in sent


def loop_runs_here() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def noting(where: list[bool], render: Callable[..., Any]) -> Callable[..., Any]:
    """Render as usual, and record whether it happens in the thread of an event loop."""

    def noted(*given: Any, **more: Any) -> Any:
        where.append(loop_runs_here())
        return render(*given, **more)

    return noted


def test_no_event_loop_renders_answers_or_pages(
    terrine_server: RunningServer, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    terrine_server.open_project()
    student, admin = call(), call("admin")
    where: list[bool] = []
    monkeypatch.setattr(views, "label_reply", noting(where, views.label_reply))
    assert student.label(terrine_server.ensemble.public[:9]).status_code == 200
    assert where == [False]

    pages: list[bool] = []
    monkeypatch.setattr(BaseModel, "model_dump_json", noting(pages, BaseModel.model_dump_json))
    for path in ("/ledger", "/ledger/study", "/projects?cursor=", "/tokens?cursor="):
        assert read(admin, path)["items"]
    assert pages == [False] * 4


def read(caller: Caller, path: str) -> Any:
    reply = caller.http.get(path)
    assert reply.status_code == 200, reply.text
    return reply.json()
