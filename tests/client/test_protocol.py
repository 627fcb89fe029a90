"""The wire contract: every model survives serialisation, and invalid documents are refused."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError

import terrine_protocol as protocol
from terrine_protocol import (
    PROBLEMS,
    MechanismSpec,
    Outcome,
    Problem,
    ProjectOpen,
    Reply,
    TokenCreate,
    Wire,
)

INPUT = {"shape": [28, 28], "dtype": "uint8", "low": 0.0, "high": 255.0}
ENSEMBLE = {
    "name": "digits",
    "manifest_sha256": "ab" * 32,
    "kind": "heads",
    "input": INPUT,
    "classes": ["zero", "one"],
    "teachers": 250,
    "available": True,
}
BUDGET: dict[str, Any] = {
    "project": "study",
    "status": "active",
    "guarantee": "proven",
    "epsilon": 1.0,
    "delta": 1e-5,
    "rule": {"name": "rdp", "order": 12.5},
    "budget": 2**62,
    "spent": 17,
    "delta_budget": 10**13,
    "delta_spent": 3,
    "epsilon_spent": 0.1,
    "charges": 2,
    "publications": [{"charge": 2, "queries": 1, "figure": 10**9}],
    "affordable": 40,
}
RESULT = {
    "outcome": "reinforced",
    "label": 3,
    "label_name": "cat",
    "charge": 9,
    "replayed": True,
    "counts": None,
}
COUNTED = RESULT | {"outcome": "answered", "counts": [-7, 3, 0, 41]}
PRICE = {"cost": 5, "delta": 1}
LOG_ENTRY = {
    "seq": 1,
    "created_at": "2026-01-02T03:04:05.000006Z",
    "actor": "token:0123456789abcdef",
    "request_id": "abc",
    "action": "project-paused",
    "subject": "study",
    "detail": {"status": "paused"},
    "hash": "ef" * 32,
}
CHARGE = {
    "project": "study",
    "seq": 1,
    "created_at": "2026-01-02T03:04:05.000006Z",
    "outcome": "abstained",
    "label": None,
    "figure": None,
    "cost": 5,
    "delta": 1,
    "guarantee": "claimed",
    "mechanism": {"name": "lnmax", "gamma": 0.05},
    "event": {"event": "LaplaceNoisyMax", "gamma": 0.05},
    "query_digest": "cd" * 32,
    "hash": "ef" * 32,
}
TOKEN = {
    "id": "a1",
    "role": "student",
    "project": "study",
    "label": "Ward 7",
    "created_at": "2026-01-02T03:04:05Z",
    "expires_at": "2026-04-02T03:04:05Z",
    "revoked_at": None,
}
SPLIT = {"conversion": 9e-6, "stability": 0.0, "publication": 0.0, "sampler": 1e-8}
PUBLISHING = {"beta": 0.02, "sigma": 40.0, "schedule": [200, 400]}
CONSIDERED = {
    "rule": {"name": "gdp", "order": None},
    "answer_share": None,
    "answers": 900,
    "queries": 1000,
}
CHOICE = {"pass_rate": 0.7, "considered": [CONSIDERED]}
PROJECT: dict[str, Any] = {
    "name": "study",
    "status": "closed",
    "guarantee": "proven",
    "ensemble": ENSEMBLE,
    "mechanism": {"name": "gnmax", "sigma": 40.0},
    "epsilon": 1.0,
    "delta": 1e-5,
    "delta_split": SPLIT,
    "rule": {"name": "gdp", "order": None},
    "prices": {"answered": PRICE},
    "opening": None,
    "publishing": PUBLISHING | {"order": 10.0, "z": 4.9, "price": PRICE},
    "choice": CHOICE,
    "opened_at": "2026-01-02T03:04:05Z",
    "closed_at": "2026-01-03T03:04:05Z",
}
MECHANISMS: list[dict[str, Any]] = [
    {"name": "lnmax", "gamma": 0.05, "pricing": "tight"},
    {"name": "gnmax", "sigma": 40.0, "pricing": "tight"},
    {
        "name": "confident_gnmax",
        "threshold": 200,
        "sigma1": 150.0,
        "sigma2": 40.0,
        "answer_share": 0.5,
    },
    {
        "name": "interactive_gnmax",
        "threshold": 200,
        "sigma1": 150.0,
        "sigma2": 40.0,
        "confidence": 0.9,
    },
    {"name": "immutable", "c": 10, "gamma": 0.05, "sigma": None, "pricing": "as_published"},
    {"name": "immutable", "c": 10, "gamma": None, "sigma": 40.0, "pricing": "honest"},
    {"name": "stable", "sigma": 40.0, "delta_per_query": 1e-9},
    {
        "name": "stable_svt",
        "epsilon_per_epoch": 1.0,
        "delta_per_query": 1e-9,
        "answers_per_epoch": 100,
    },
    {"name": "noisy_votes", "sigma": 40.0},
]
WANTED = ("title", "purpose", "epsilon", "delta", "mechanism")
APPROVAL = {
    "guarantee": "proven",
    "prices": {"answered": PRICE},
    "affordable": 40,
    "reserved": 10**12,
    "cap": 2 * 10**12,
    "delta_reserved": 10**11,
    "delta_cap": 10**12,
    "fits": True,
}
REQUEST: dict[str, Any] = {
    "id": "0123456789abcdef",
    "ensemble": "digits",
    "title": "More",
    "purpose": "To learn",
    "mechanism": MECHANISMS[1],
    "epsilon": 1.0,
    "delta": 1e-5,
    "status": "approved",
    "project": "more",
    "reason": None,
    "created_at": "2026-01-02T03:04:05Z",
    "decided_at": "2026-01-03T03:04:05Z",
}
ASKED = REQUEST | {"token": "a1", "token_project": "study", "approval": APPROVAL}
EXAMPLES: dict[str, dict[str, Any]] = {
    "LNMaxSpec": MECHANISMS[0],
    "GNMaxSpec": MECHANISMS[1],
    "ConfidentGNMaxSpec": MECHANISMS[2],
    "InteractiveGNMaxSpec": MECHANISMS[3],
    "ImmutableSpec": MECHANISMS[4],
    "StableSpec": MECHANISMS[6],
    "StableSVTSpec": MECHANISMS[7],
    "NoisyVotesSpec": MECHANISMS[8],
    "LabelRequest": {"inputs": [[0.1, 2.0]], "probabilities": [[0.25, 0.75]]},
    "LabelResult": COUNTED,
    "RuleInfo": {"name": "gdp", "order": None},
    "DeltaSplitInfo": SPLIT,
    "PriceInfo": PRICE,
    "PublicationInfo": BUDGET["publications"][0],
    "Budget": BUDGET,
    "LabelResponse": {"results": [RESULT, COUNTED], "noise_sigma": 4.0, "budget": BUDGET},
    "EstimateRequest": {"queries": 500},
    "Estimate": {
        "queries": 500,
        "cost": 2500,
        "delta_cost": 500,
        "fits": False,
        "epsilon_after": 0.9,
        "prices": {"answered": PRICE, "abstained": PRICE},
        "opening": PRICE,
        "budget": BUDGET,
    },
    "InputSpec": INPUT,
    "EnsembleInfo": ENSEMBLE,
    "EnsembleAccount": ENSEMBLE
    | {
        "guarantee": "proven",
        "epsilon": 2.0,
        "delta": 1e-5,
        "rule": {"name": "gdp", "order": None},
        "cap": 10**12,
        "reserved": 10**11,
        "delta_cap": 10**12,
        "delta_reserved": 10**11,
    },
    "ProjectOpen": {
        "name": "study",
        "ensemble": "digits",
        "mechanism": MECHANISMS[1],
        "epsilon": 1.0,
        "delta": 1e-5,
        "acknowledge_claimed": False,
        "accounting": "data_dependent",
        "consensus": [{"agreement": 0.9, "share": 3.0}],
        "publishing": PUBLISHING,
    },
    "ChoiceInfo": CHOICE,
    "ConsideredInfo": CONSIDERED,
    "ConsensusLevel": {"agreement": 0.9, "share": 3.0},
    "PublishingRequest": PUBLISHING,
    "PublishingTerms": PROJECT["publishing"],
    "SecretSpend": {
        "secret": True,
        "project": "study",
        "queries": 40,
        "order": 10.0,
        "cost": 0.01,
        "smooth_sensitivity": 0.002,
    },
    "ProjectUpdate": {"status": "paused"},
    "ProjectInfo": PROJECT,
    "ProjectPage": {"items": [PROJECT], "next": "study"},
    "ApprovalInfo": APPROVAL,
    "RequestCreate": {name: REQUEST[name] for name in WANTED},
    "RequestInfo": REQUEST,
    "RequestAccount": ASKED,
    "RequestPage": {"items": [ASKED, REQUEST], "next": None},
    "RequestApprove": {
        **{name: REQUEST[name] for name in WANTED},
        "name": "more",
        "acknowledge_claimed": False,
        "accounting": "worst_case",
        "consensus": None,
        "publishing": None,
        "token_expires_in_days": 30.0,
    },
    "RequestApproved": {
        "request": ASKED,
        "project": PROJECT,
        "token": TOKEN | {"token": "terrine_a1_secret"},
    },
    "RequestRefuse": {"reason": "Not now"},
    "TokenCreate": {"role": "student", "project": "study", "label": "", "expires_in_days": 90.0},
    "TokenInfo": TOKEN,
    "TokenPage": {"items": [TOKEN], "next": None},
    "TokenCreated": TOKEN | {"token": "terrine_a1_secret"},
    "Charge": CHARGE,
    "LedgerPage": {"items": [CHARGE], "next": "1"},
    "BudgetPage": {"items": [BUDGET], "next": None},
    "LogEntry": LOG_ENTRY,
    "LogPage": {"items": [LOG_ENTRY], "next": None},
    "LogVerification": {"ok": True, "entries": 1, "head": "ef" * 32, "problems": []},
    "Verification": {
        "project": "study",
        "ok": False,
        "charges": 2,
        "head": "ef" * 32,
        "problems": ["entry 2: hash does not match"],
    },
}
MODELS: dict[str, type[BaseModel]] = {
    name: model
    for name, model in vars(protocol).items()
    if isinstance(model, type) and issubclass(model, Wire | Reply) and model not in (Wire, Reply)
}


def test_every_model_has_an_example_here() -> None:
    assert sorted(EXAMPLES) == sorted(MODELS)


@pytest.mark.parametrize("name", list(EXAMPLES))
def test_every_model_survives_the_wire(name: str) -> None:
    model = MODELS[name].model_validate(EXAMPLES[name])
    assert model.model_dump(mode="json") == EXAMPLES[name]
    assert MODELS[name].model_validate_json(model.model_dump_json()) == model


@pytest.mark.parametrize("name", list(EXAMPLES))
def test_requests_forbid_unknown_fields_and_replies_may_gain_some(name: str) -> None:
    kind, more = MODELS[name], EXAMPLES[name] | {"unheard_of": 1}
    if issubclass(kind, Reply):
        assert kind.model_validate(more) == kind.model_validate(EXAMPLES[name])
    else:
        with pytest.raises(ValidationError, match="unheard_of"):
            kind.model_validate(more)


@pytest.mark.parametrize("wrong", [True, "1"])
@pytest.mark.parametrize("field", ["epsilon", "delta"])
def test_a_budget_is_a_number_and_nothing_that_converts_to_one(field: str, wrong: object) -> None:
    with pytest.raises(ValidationError, match="valid number"):
        ProjectOpen.model_validate(EXAMPLES["ProjectOpen"] | {field: wrong})


@pytest.mark.parametrize("spec", MECHANISMS, ids=lambda spec: spec["name"])
def test_parameters_of_a_mechanism_are_numbers_and_may_be_integers(spec: dict[str, Any]) -> None:
    adapter: TypeAdapter[MechanismSpec] = TypeAdapter(MechanismSpec)
    numbers = {name: value for name, value in spec.items() if isinstance(value, int | float)}
    for name in numbers:
        for wrong in (True, "1"):
            with pytest.raises(ValidationError, match=r"valid (number|integer)"):
                adapter.validate_python(spec | {name: wrong})
    whole = dict.fromkeys(numbers.keys() - {"confidence", "delta_per_query", "answer_share"}, 7)
    adapter.validate_python(spec | whole)


@pytest.mark.parametrize("name", list(EXAMPLES))
def test_no_model_can_be_changed(name: str) -> None:
    model = MODELS[name].model_validate(EXAMPLES[name])
    with pytest.raises(ValidationError, match="frozen"):
        setattr(model, next(iter(EXAMPLES[name])), None)


@pytest.mark.parametrize("spec", MECHANISMS, ids=lambda spec: spec["name"])
def test_a_mechanism_is_identified_by_its_name(spec: dict[str, Any]) -> None:
    adapter: TypeAdapter[MechanismSpec] = TypeAdapter(MechanismSpec)
    assert adapter.validate_python(spec).model_dump() == spec


@pytest.mark.parametrize(
    "spec",
    [
        {"name": "gnmax", "sigma": 0},
        {"name": "gnmax", "sigma": -1},
        {"name": "gnmax", "sigma": float("inf")},
        {"name": "gnmax", "sigma": float("nan")},
        {"name": "gnmax"},
        {"name": "noisy_votes"},
        {"name": "noisy_votes", "sigma": 40, "classes": 3},
        {"name": "gnmax", "sigma": 40, "gamma": 0.05},
        {"name": "lnmax", "gamma": 0},
        {"name": "stable", "sigma": 40, "delta_per_query": 0},
        {"name": "stable", "sigma": 40, "delta_per_query": 1},
        {"name": "immutable", "c": -1, "sigma": 40},
        {"name": "immutable", "c": 1, "sigma": 40, "pricing": "free"},
        {"name": "confident_gnmax", "threshold": -1, "sigma1": 1, "sigma2": 1},
        {"name": "noisy_min", "sigma": 40},
        {"sigma": 40},
    ],
)
def test_an_invalid_mechanism_is_refused(spec: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(MechanismSpec).validate_python(spec)


@pytest.mark.parametrize(
    "changed",
    [
        {"epsilon": 0},
        {"epsilon": -1},
        {"epsilon": float("inf")},
        {"epsilon": float("nan")},
        {"epsilon": 101},
        {"delta": 0},
        {"delta": 1},
        {"name": "Study"},
        {"name": "a/b"},
        {"name": "-study"},
        {"name": ""},
        {"name": "s" * 65},
        {"name": "study\n"},
    ],
)
def test_invalid_terms_are_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ProjectOpen.model_validate(EXAMPLES["ProjectOpen"] | changed)


@pytest.mark.parametrize("given", [{"consensus": [{"agreement": 0.9}]}, {"publishing": PUBLISHING}])
def test_publishing_belongs_to_data_dependent_accounting(given: dict[str, Any]) -> None:
    plain = {
        k: v for k, v in EXAMPLES["ProjectOpen"].items() if k not in ("consensus", "publishing")
    }
    with pytest.raises(ValidationError, match="data_dependent"):
        ProjectOpen.model_validate(plain | {"accounting": "worst_case"} | given)


@pytest.mark.parametrize("days", [0, -1, 4000, float("nan")])
def test_every_token_expires(days: float) -> None:
    with pytest.raises(ValidationError):
        TokenCreate(role=protocol.Role.AUDITOR, expires_in_days=days)


def test_no_field_is_for_votes() -> None:
    """But for noisy ones, which a student pays for."""
    fields = {(name, field) for name, model in MODELS.items() for field in model.model_fields}
    noisy = {("LabelResult", "counts")}
    assert noisy < fields
    words = {word.removesuffix("s") for _, field in fields - noisy for word in field.split("_")}
    assert not words & {"vote", "count", "margin", "histogram", "tally"}


@pytest.mark.parametrize(("slug", "kind"), list(PROBLEMS.items()), ids=list(PROBLEMS))
def test_every_problem_has_an_error_status_and_an_explanation(
    slug: str, kind: protocol.ProblemType
) -> None:
    assert slug == slug.lower().replace(" ", "-")
    assert 400 <= kind.status < 600
    assert kind.title
    assert kind.meaning.endswith(".")


def test_a_problem_keeps_its_other_members() -> None:
    document = {"type": "/problems/x", "title": "T", "status": 400, "detail": "D", "limit": 4096}
    assert Problem.model_validate(document).model_dump(exclude_none=True) == document


def test_outcomes_are_plain_words() -> None:
    assert [str(outcome) for outcome in Outcome] == [
        "answered",
        "abstained",
        "reinforced",
        "published",
        "refused",
    ]
