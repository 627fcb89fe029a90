"""Ledger records → wire models, for the API and for the commands' `--json`.

A wire model takes only the attributes that it names from a record. Token hashes, input digests and
vote tallies are never sent because no wire model names them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, NotRequired

from pydantic import TypeAdapter
from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

from terrine_protocol import (
    Budget,
    Charge,
    EnsembleAccount,
    EnsembleInfo,
    Outcome,
    ProjectInfo,
)
from terrine_server import ledger
from terrine_server.privacy import Accounts


class _Result(TypedDict):
    """`LabelResult` as plain values: a batch has thousands, and building models is slow."""

    outcome: Outcome
    label: int | None
    label_name: NotRequired[str]
    charge: int | None
    hash: str | None
    replayed: bool
    counts: NotRequired[tuple[int, ...]]
    source: NotRequired[str]


class _Answers(TypedDict):
    """`LabelResponse` as plain values."""

    results: list[_Result]
    noise_sigma: NotRequired[float]
    classes: NotRequired[list[str]]
    notes: NotRequired[list[str]]
    budget: Budget


_ANSWERS = TypeAdapter(_Answers)


class LabelReply(NamedTuple):
    """The answer to a request to label: its body, how many of its queries were answered free, and
    the numbers of the first and the last charge that it paid, if it paid any."""

    body: bytes
    free: int
    paid: tuple[int, int] | None


def label_reply(receipt: ledger.ChargedBatch, notes: Sequence[str] = ()) -> LabelReply:
    """Return the response to a batch: a `LabelResponse` as JSON. `notes`: of its inputs."""
    results: list[_Result] = []
    names = receipt.project.ensemble.class_names
    paid: list[int] = []
    free = 0
    for result in receipt.results:
        answer: _Result = {
            "outcome": result.outcome,
            "label": result.label,
            "label_name": names.get(result.label, ""),
            "charge": result.seq,
            "hash": result.hash,
            "replayed": result.replayed,
        }
        if result.label not in names:
            del answer["label_name"]
        if result.counts is not None:
            answer["counts"] = result.counts
        if result.source is not None:
            answer["source"] = result.source
        if result.replayed or result.source is not None:
            free += 1
        elif result.seq is not None:
            paid.append(result.seq)
        results.append(answer)
    whole: _Answers = {"results": results, "budget": budget(receipt.project)}
    sigma = receipt.project.noise_sigma
    if sigma is not None:
        whole["noise_sigma"] = sigma
        whole["classes"] = receipt.project.ensemble.facts.classes
    if notes:
        whole["notes"] = list(notes)
    body = _ANSWERS.dump_json(whole, warnings="error")
    return LabelReply(body, free, (paid[0], paid[-1]) if paid else None)


def budget(project: ledger.ProjectRecord, shadows: Accounts | None = None) -> Budget:
    """Return the project's public account, and which share of its shadows is exhausted."""
    terms = project.terms
    return Budget.model_validate(
        {
            **vars(terms),
            **vars(project),
            "project": project.name,
            "protects": project.ensemble.protects,
            "epsilon_spent": terms.epsilon_spent(project.spent),
            "publications": [{**vars(each), "charge": each.seq} for each in project.published],
            "affordable": project.affordable,
            "used_up": None if shadows is None else exhausted_share(project, shadows),
        }
    )


def actors(of: ledger.Ledger, named: Iterable[str]) -> dict[str, str]:
    """Return by actor of the administrative log how pages show it: tokens with their labels."""
    found = {*named}
    labels = of.tokens.list_labels(
        {actor.removeprefix("token:") for actor in found if actor.startswith("token:")}
    )
    labelled = {f"token:{id}": f"token:{id} ({label})" for id, label in labels.items()}
    return {actor: labelled.get(actor, actor) for actor in found}


def exhausted_share(project: ledger.ProjectRecord, shadows: Accounts) -> float | None:
    """Return the share of the shadows that could not vote any more; None without any."""
    allowance = project.terms.allowance
    if allowance is None:
        return None
    return float((shadows >= allowance.most).mean()) if len(shadows) else 0.0


def ensemble(record: ledger.EnsembleRecord, available: bool) -> EnsembleInfo:
    """Return an ensemble as students see it."""
    return EnsembleInfo.model_validate(
        {
            **vars(record),
            **dict(record.facts),
            "population": record.population.name,
            "protects": record.protects,
            "available": available,
        }
    )


def ensemble_account(record: ledger.EnsembleRecord, available: bool) -> EnsembleAccount:
    """Return an ensemble as its owner sees it."""
    population = record.population
    return EnsembleAccount.model_validate(
        {
            **vars(population),
            **dict(ensemble(record, available)),
            "population": population.name,
            "rule": population.rule,
        }
    )


def project(record: ledger.ProjectRecord, available: bool) -> ProjectInfo:
    """Return a project's terms."""
    terms, schedule = record.terms, record.terms.schedule
    return ProjectInfo.model_validate(
        {
            **vars(terms),
            **vars(record),
            "ensemble": ensemble(record.ensemble, available),
            "delta_split": terms.split,
            "release": terms.release and terms.release.price,
            "by_baseline": terms.by_baseline or None,
            "publishing": schedule
            and {
                **vars(schedule.publication),
                "schedule": schedule.counts,
                "price": schedule.price,
            },
        }
    )


def charge(record: ledger.ChargeRecord, ensemble: ledger.EnsembleRecord) -> Charge:
    """Return one entry of the ledger of a project on this ensemble."""
    name = ensemble.class_names.get(record.label)
    return Charge.model_validate({**vars(record), "label_name": name})
