"""The wire contract: every model survives serialisation, and invalid documents are refused."""

from __future__ import annotations

import html
from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError

import terrine_protocol as protocol
from support.documents import EXAMPLES, MECHANISMS
from support.wording import refuses
from terrine_protocol import (
    MECHANISM_SPECS,
    PROBLEMS,
    InputSpec,
    MechanismSpec,
    Problem,
    ProjectOpen,
    Reply,
    Wire,
)
from terrine_protocol.base import list_names
from terrine_protocol.errors import TerrineError
from terrine_server.admin.rendering import _TEMPLATES as TEMPLATES

MODELS: dict[str, type[BaseModel]] = {
    name: model
    for name, model in (vars(protocol) | {m.__name__: m for m in MECHANISM_SPECS.values()}).items()
    if isinstance(model, type)
    and issubclass(model, Wire | Reply | InputSpec)
    and model not in (Wire, Reply)
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
    if issubclass(kind, Reply | InputSpec):
        assert kind.model_validate(more) == kind.model_validate(EXAMPLES[name])
    else:
        with refuses(ValidationError, "unheard_of"):
            kind.model_validate(more)


@pytest.mark.parametrize("name", list(EXAMPLES))
def test_every_example_that_the_documentation_shows_is_valid(name: str) -> None:
    for field, schema in MODELS[name].model_json_schema().get("properties", {}).items():
        for shown in (schema, *schema.get("anyOf", [])):
            for example in shown.get("examples", []):
                MODELS[name].model_validate(EXAMPLES[name] | {field: example})


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
    assert adapter.validate_python(spec).model_dump() == spec, "it is identified by its name"


@pytest.mark.parametrize("name", list(EXAMPLES))
def test_no_model_can_be_changed(name: str) -> None:
    model = MODELS[name].model_validate(EXAMPLES[name])
    with refuses(ValidationError, "frozen"):
        setattr(model, next(iter(EXAMPLES[name])), None)


MECHANISM = [
    {"name": "gnmax", "sigma": float("inf")},
    {"name": "gnmax", "sigma": float("nan")},
    {"name": "gnmax"},
    {"name": "noisy_votes"},
    {"name": "noisy_votes", "sigma": 40, "classes": 3},
    {"name": "gnmax", "sigma": 40, "gamma": 0.05},
    {"name": "immutable", "c": 1, "sigma": 40, "pricing": "free"},
    {"name": "noisy_min", "sigma": 40},
    {"sigma": 40},
]
INVALID: dict[tuple[str, str], list[Any]] = {
    ("ProjectOpen", "mechanism"): MECHANISM,
    ("ProjectOpen", "epsilon"): [True, "1", 0, -1, float("inf"), float("nan"), 101],
    ("ProjectOpen", "delta"): [True, "1", 0, 1],
    ("ProjectOpen", "name"): ["Study", "a/b", "-study", "", "s" * 65, "study\n"],
    ("TokenCreate", "expires_in_days"): [0, -1, 4000, float("nan")],
}


@pytest.mark.parametrize(
    ("model", "field", "value"), [(*key, value) for key in INVALID for value in INVALID[key]]
)
def test_an_invalid_value_is_refused_by_its_field(model: str, field: str, value: object) -> None:
    with pytest.raises(ValidationError) as refused:
        MODELS[model].model_validate(EXAMPLES[model] | {field: value})
    assert {error["loc"][0] for error in refused.value.errors()} == {field}


def test_a_consensus_belongs_to_data_dependent_accounting() -> None:
    given = {"consensus": [{"agreement": 0.9}]}
    plain = {k: v for k, v in EXAMPLES["ProjectOpen"].items() if k != "consensus"}
    with refuses(ValidationError, "data_dependent"):
        ProjectOpen.model_validate(plain | {"accounting": "worst_case"} | given)


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


def test_errors_and_pages_show_what_would_act_on_a_terminal_or_turn_text() -> None:
    name = "a\x1b]0;owned\x07\u202e\u2066\x9b"
    shown = "a<U+001B>]0;owned<U+0007><U+202E><U+2066><U+009B>"
    assert str(TerrineError(f"1\n{name}")) == f"1\n{shown}"
    assert list_names([f"{name}\n", "a\u200cb"]) == f"{shown}<U+000A>, a\u200cb", "as in Persian"
    assert TEMPLATES.from_string("{{ name }}").render(name=name) == html.escape(shown)
