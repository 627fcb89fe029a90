"""Opening a project: parameters, the price list they mean, and what it would leave of the cap."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, get_args

from fastapi import APIRouter, Query, Request
from pydantic import ValidationError
from pydantic.fields import FieldInfo
from starlette.responses import Response

from terrine_protocol import (
    MECHANISM_SPECS,
    ProjectOpen,
)
from terrine_server.admin.access import Admin, ByAdmin, Fields
from terrine_server.admin.overview import CapUse, list_caps
from terrine_server.admin.rendering import (
    explain_errors,
    normalize_newlines,
    page,
    parse_number,
    see_other,
)
from terrine_server.api.paths import PAGES_PATH
from terrine_server.api.services import Services, ServicesDep
from terrine_server.errors import InvalidTerms, NotFound, ServiceError
from terrine_server.ledger import NEIGHBOURS, SUMS, EnsembleRecord, Ledger
from terrine_server.owner.operations import (
    ProjectQuote,
    find_epsilon_of_sums,
    max_fitting_epsilon,
    open_project,
    price_like,
    quote_project,
    suggest_room,
)
from terrine_server.owner.sign_in import Session
from terrine_server.planning.expected import (
    DEFAULT_CONSENSUS,
    Consensus,
    Votes,
    expected_outcomes,
)
from terrine_server.planning.first_project import (
    FirstProject,
    NeighbourPlan,
    Setting,
    default_delta,
    max_guess_accuracy,
    plan_neighbours,
)
from terrine_server.planning.opening import MIN_ANSWERS_PER_CLASS
from terrine_server.planning.plan import plan
from terrine_server.privacy import ParameterError

router = APIRouter(prefix=f"{PAGES_PATH}/open")

# Public rows that a form may propose a project for.
MAX_PUBLIC_ROWS = 10_000_000
TEXT_FIELDS = ("title", "purpose")
TERM_FIELDS = (
    "name",
    "ensemble",
    "epsilon",
    "delta",
    "accounting",
    "expected_pass_rate",
    *TEXT_FIELDS,
)
STATUSES = {"conflict": 409, "cap-exceeded": 409, "not-found": 404, "forbidden": 403}


@dataclass(frozen=True)
class Parameter:
    """A parameter of a mechanism, as the form asks for it. `choices`: for one of several words."""

    name: str
    meaning: str
    required: bool
    choices: tuple[str, ...]

    @classmethod
    def of(cls, name: str, field: FieldInfo) -> Parameter:
        """Return how a field of a specification is asked for."""
        literal = field.annotation if get_args(field.annotation) else None
        words = get_args(literal) if getattr(literal, "__origin__", None) is Literal else ()
        return cls(name, field.description or "", field.is_required(), words)


@dataclass(frozen=True)
class TermsOutlook:
    """What a project would be: its terms, what they should buy, and the cap afterwards.

    `answered`, `right`: the expected share of queries that get a label, and of labels that agree
    with most teachers; None where there is no forecast.
    """

    quote: ProjectQuote
    cap: CapUse
    most: float
    answered: float | None
    right: float | None
    suggestion: str
    """What would fit, if it does not."""


@router.get("")
def form(
    request: Request,
    services: ServicesDep,
    reader: Admin,
    ensemble: Annotated[str, Query(max_length=64)] = "",
    mechanism: Annotated[str, Query(max_length=64)] = "",
) -> Response:
    """Ask for an ensemble and a mechanism, then for the terms."""
    known = services.ledger.ensembles.list()
    only = known[0].name if len(known) == 1 else ""
    given = {"ensemble": ensemble or only, "mechanism": mechanism}
    return _page(request, services, reader, given)


@router.post("")
def send(request: Request, services: ServicesDep, sent: ByAdmin) -> Response:
    """Propose parameters, show what the terms would mean, or open the project."""
    given, outlook, problems, status = dict(sent.fields), None, list[str](), 200
    ledger, action = services.ledger, sent.fields.get("action")
    try:
        if action == "open":
            record = open_project(ledger, _parse_request(given), sent.session.actor)
            return see_other(request, f"/projects/{record.name}", sent.session)
        if action == "suggest":
            given |= _suggest_terms(services, given)
            outlook = _price_terms(ledger, _parse_request(given), DEFAULT_CONSENSUS)
        elif action == "propose":
            given |= _choose_parameters(
                services, ledger.ensembles.get(given.get("ensemble", "")), given
            )
        elif action != "choose":
            outlook = _price_terms(ledger, _parse_request(given), _parse_consensus(given))
    except ValidationError as error:
        problems, status = explain_errors(error), 422
    except ParameterError as error:
        problems, status = [str(error)], 422
    except (InvalidTerms, NotFound) as error:
        problems, status = [error.detail], STATUSES.get(error.problem, 422)
    except ServiceError as error:
        if error.problem not in STATUSES:
            raise
        problems, status = [error.detail], STATUSES[error.problem]
    return _page(request, services, sent.session, given, outlook, problems, status)


def _page(
    request: Request,
    services: Services,
    reader: Session,
    entered: Fields,
    outlook: TermsOutlook | None = None,
    problems: Sequence[str] = (),
    status: int = 200,
) -> Response:
    """Show the form: what was entered or suggested, what it means, and what is wrong."""
    ensembles, mechanism = services.ledger.ensembles.list(), entered.get("mechanism", "")
    spec = MECHANISM_SPECS.get(mechanism)
    chosen = next((each for each in ensembles if each.name == entered.get("ensemble")), None)
    return page(
        request,
        "open.html",
        reader,
        status=status,
        ensembles=[each.name for each in ensembles],
        given={"epsilon": "", "delta": "", "name": "", "title": "", "purpose": "", **entered},
        chosen=chosen,
        suggested_epsilon="" if chosen is None else _initial_epsilon(chosen),
        likely_delta=None if chosen is None else default_delta(chosen.most_units),
        mechanisms={
            name: (each.__doc__ or "").partition("\n")[0]
            for name, each in MECHANISM_SPECS.items()
            if chosen is None or _suits(name, chosen.facts.kind)
        },
        mechanism=mechanism if spec else "",
        parameters=list(_list_parameters(spec.model_fields)) if spec else [],
        outlook=outlook,
        problems=problems,
    )


def _suits(mechanism: str, kind: str) -> bool:
    """Return whether a project of a mechanism can be opened on an ensemble of a kind."""
    of_one_kind = {NEIGHBOURS, SUMS}
    return mechanism == kind or not of_one_kind & {mechanism, kind}


def _list_parameters(fields: Mapping[str, FieldInfo]) -> Iterator[Parameter]:
    for name, field in fields.items():
        if name != "name":
            yield Parameter.of(name, field)


def _parse_request(given: Fields) -> ProjectOpen:
    """Return the terms that a form asks for. Raises `ValidationError` or `ParameterError`."""
    name = given.get("mechanism", "")
    mechanism: dict[str, Any] = {"name": name}
    if name in MECHANISM_SPECS:
        for parameter in _list_parameters(MECHANISM_SPECS[name].model_fields):
            text = given.get(parameter.name, "")
            if text:
                mechanism[parameter.name] = text if parameter.choices else parse_number(text)
    terms: dict[str, Any] = {key: given[key] for key in TERM_FIELDS if given.get(key)}
    terms |= {key: normalize_newlines(terms[key]) for key in TEXT_FIELDS if key in terms}
    for key in ("epsilon", "delta", "expected_pass_rate"):
        if key in terms:
            terms[key] = parse_number(terms[key])
    if given.get("consensus") and terms.get("accounting") == "data_dependent":
        terms["consensus"] = [
            {"agreement": level.agreement, "share": level.share}
            for level in _parse_consensus(given)
        ]
    return ProjectOpen.model_validate({**terms, "mechanism": mechanism})


def _parse_consensus(given: Fields) -> Sequence[Consensus]:
    """Return how far teachers are expected to agree. Raises `ParameterError`."""
    text = given.get("consensus", "")
    return Consensus.parse(text) if text else DEFAULT_CONSENSUS


def _price_terms(
    ledger: Ledger, wanted: ProjectOpen, consensus: Sequence[Consensus]
) -> TermsOutlook:
    quoted = quote_project(ledger, wanted)
    mechanism, ensemble, terms = quoted.mechanism, quoted.ensemble, quoted.terms
    cap = next(c for c in list_caps(ledger) if c.population.id == ensemble.population.id)
    price = price_like(mechanism, terms, ensemble.population)
    answered = right = None
    if terms.allowance is None and terms.prices:
        votes = _expected_votes(ensemble, consensus)
        if mechanism.needs_probabilities:
            votes = votes.with_expected_student()
        expected = expected_outcomes(mechanism, votes)
        answered, right = expected.answered, expected.accuracy
    return TermsOutlook(
        quoted,
        replace(cap, added=terms.cap_budget),
        terms.most_admitted(terms.start),
        answered,
        right,
        "" if quoted.fits else suggest_room(ledger, ensemble, terms.epsilon, price),
    )


def _choose_parameters(
    services: Services, ensemble: EnsembleRecord, given: Fields
) -> dict[str, str]:
    """Return the parameters that `terrine plan` would choose for a budget. Raises `ParameterError`.

    Votes are synthetic, and people are public rows: nothing private is asked.
    """
    mechanism, terms = given.get("mechanism", ""), []
    for key in ("epsilon", "delta"):
        value = parse_number(given.get(key, ""))
        if isinstance(value, str):
            raise ParameterError(f"To propose parameters, {key} must be known: give a number.")
        terms.append(float(value))
    epsilon, delta = terms
    if mechanism == SUMS:
        return {}  # the noise is that of the ensemble
    if mechanism == NEIGHBOURS:
        queries = parse_number(given.get("queries", ""))
        if not isinstance(queries, int):
            raise ParameterError("To propose sigma, queries must be known: give a whole number.")
        return {"sigma": repr(_plan_for_units(services, ensemble, queries, epsilon, delta).sigma)}
    votes = [_expected_votes(ensemble, _parse_consensus(given))]
    found = plan(mechanism, votes, delta=delta, epsilon=epsilon, data_dependent=False)
    proposed = {key: value for key, value in found.chosen.spec.items() if key != "name"}
    return {
        key: f"{value:g}" if isinstance(value, float) else str(value)
        for key, value in proposed.items()
    }


def _suggest_terms(services: Services, given: Fields) -> dict[str, str]:
    """Return the terms that `terrine quickstart` opens a project of this ensemble with.

    The sums that it has, or noisy counts of every public row. Raises `ParameterError` where that
    would teach nothing.
    """
    ensemble = services.ledger.ensembles.get(given.get("ensemble", ""))
    if ensemble.facts.kind == SUMS:  # what it begins with is all that it asks
        delta = default_delta(ensemble.most_units)
        epsilon_of_sums = find_epsilon_of_sums(ensemble, delta)
        return {
            "mechanism": SUMS,
            "epsilon": f"{epsilon_of_sums:g}",
            "delta": f"{delta:g}",
            "name": given.get("name") or _find_free_name(services.ledger, ensemble.name),
            "right": f"{max_guess_accuracy(epsilon_of_sums, delta):.1%}",
        }
    facts, rows, epsilon = (
        ensemble.facts,
        parse_number(given.get("rows", "")),
        given.get("epsilon", ""),
    )
    classes = len(facts.classes)
    least = MIN_ANSWERS_PER_CLASS * classes
    if not isinstance(rows, int) or not least <= rows <= MAX_PUBLIC_ROWS:
        raise ParameterError(
            "Public rows: give how many different rows students will ask about, as a whole number "
            f"of at least {least:,}, ten for each class, and at most {MAX_PUBLIC_ROWS:,}."
        )
    wanted = parse_number(epsilon)
    if isinstance(wanted, str):
        raise ParameterError("ε: give a number, such as 1.")
    setting = Setting.of(
        units=ensemble.most_units,
        rows=rows,
        classes=classes,
        epsilon=float(wanted),
        joined=ensemble.population.limit,
    )
    if facts.kind == NEIGHBOURS:
        found = _plan_for_units(services, ensemble, rows, setting.epsilon, setting.delta)
        first: FirstProject = setting.of_neighbours(found)
        chosen = {"queries": str(rows), "votes": f"{found.votes:,.0f}"}
        chosen |= {"retired": f"{found.retired:.0%}"}
    else:
        first, chosen = setting.of_teachers(facts.teachers), {}
    if first.too_noisy:
        raise ParameterError(
            f"At ε = {first.epsilon:g} noise would drown {first.votes:,.0f} votes on a row: a "
            "student would learn little or nothing. It needs a larger ε, or more records."
        )
    return {
        "mechanism": str(first.spec["name"]),
        "sigma": repr(first.sigma),
        "delta": f"{first.delta:g}",
        "name": given.get("name") or _find_free_name(services.ledger, ensemble.name),
        "right": f"{max_guess_accuracy(first.epsilon, first.delta):.1%}",
        **chosen,
    }


def _plan_for_units(
    services: Services, ensemble: EnsembleRecord, queries: int, epsilon: float, delta: float
) -> NeighbourPlan:
    """Return the noise with which half of the units would vote to the end, by public rows."""
    from terrine_models.storage.manifests import StoreError  # PyTorch: not for an idle server
    from terrine_models.teachers.neighbours import NeighbourEnsemble, forecast_from_public

    try:
        known = NeighbourEnsemble.load(services.settings.data_dir / ensemble.current.path)
    except StoreError as error:
        raise ParameterError(
            f"The files of {ensemble.name} cannot be used; `terrine doctor` says why."
        ) from error
    by = forecast_from_public(known)
    return plan_neighbours(
        by.spent, units=ensemble.units, near=by.near, queries=queries, epsilon=epsilon, delta=delta
    )


def _initial_epsilon(ensemble: EnsembleRecord) -> str:
    """Return the ε that a form begins with: what sums cost, else 1, or what fits."""
    if ensemble.facts.kind == SUMS:
        return f"{find_epsilon_of_sums(ensemble, default_delta(ensemble.most_units)):g}"
    return f"{min(1.0, max_fitting_epsilon(ensemble) or 1.0):g}"


def _find_free_name(ledger: Ledger, name: str) -> str:
    """Return the ensemble's name, as `terrine quickstart` does, or the next that is free."""
    taken = set(ledger.projects.list_names())
    others = (f"{name[:58]}-{number}" for number in range(2, len(taken) + 3))
    return name if name not in taken else next(each for each in others if each not in taken)


def _expected_votes(ensemble: EnsembleRecord, consensus: Sequence[Consensus]) -> Votes:
    """Return votes of teachers that agree as far as is expected."""
    teachers, classes = ensemble.facts.teachers, len(ensemble.facts.classes)
    return Votes.synthetic(consensus, teachers=teachers, classes=classes)
