"""An entry for the Differential Privacy Deployments Registry, of its third tier, for a project.

Fields and their order are those of its schema (github.com/opendp/deployments-registry-data,
schemas/deployments-schema.yaml, autumn 2026). The registry takes YAML, of which JSON is a part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from terrine_protocol import ProjectInfo
from terrine_server.dossier import words
from terrine_server.dossier.facts import DossierEnsemble, Facts, Project
from terrine_server.formats import parameters
from terrine_server.privacy import Rule

Entry = Mapping[str, Any]

CENTRAL = "The owner holds the records and what votes for them, and adds the noise."
MODELS = {
    "remote": "The owners keep their teachers, which vote on their machines; the service sees the "
    "votes, and adds the noise.",
    "shared": "The owners keep their teachers, and split each vote between two servers, each of "
    "which adds noise; no one sees a vote, unless the two collude.",
}
UNITS = {"record": "Record-level", "person": "Person-level", "teacher": "Teacher-level"}
COMPOSITION = {
    "gdp": "Adaptive composition in Gaussian DP: a query is admitted while the sum of μ² of all "
    "queries stays within the budget (Smith and Thakurta 2022; Koskela, Tobaben and Honkela)",
    "rdp": "Adaptive composition of Rényi divergences at one order that was fixed beforehand "
    "(Feldman and Zrnic 2021), converted to (ε, δ) by Canonne, Kamath and Steinke 2020, Prop. 12",
}


def entry(facts: Facts, project: Project) -> Entry:
    """Return the registry's entry of a project, as plain values."""
    told, info, ensemble = facts.told, project.info, facts.ensemble(project)
    return {
        "url_slug": info.name,
        "deployment": {
            "basic": {
                "name": info.title or info.name,
                "data_curators": [
                    {
                        "data_curator_name": told["curator.name"],
                        "data_curator_type": told["curator.type"],
                    }
                ],
                "description": f"{what_leaves(info, ensemble)} {told['use.description']}",
                "intended_use": info.purpose or told["use.intended"],
                "data_product_type": "Interactive API",
                "data_product_region": told["data.region"],
                "data_product_sector": told["data.sector"],
                "publication_date": f"{project.first or info.opened_at:%Y-%m-%d}",
            },
            "dp_variant": {
                "variant_name": "Approximate DP",
                "data_domain": f"{told['data.content']} As inputs: "
                f"{' × '.join(map(str, info.ensemble.input.shape))} numbers "
                f"({info.ensemble.input.dtype}, {info.ensemble.input.low:g} to "
                f"{info.ensemble.input.high:g}), with one of {len(info.ensemble.classes)} classes.",
                "unprotected_quantities": _unprotected(ensemble),
            },
            "privacy_loss": {
                "privacy_unit": UNITS[ensemble.trained.unit] if ensemble.trained else "Unknown",
                "privacy_unit_details": unit_details(ensemble),
                "number_of_privacy_units": project.units,
                "privacy_parameters": {"epsilon": info.epsilon, "delta": info.delta},
                "privacy_parameters_details": _parameters(project, ensemble),
            },
            "deployment_model": {
                "model_name": "Federated" if info.ensemble.kind in MODELS else "Central",
                "model_name_details": MODELS.get(info.ensemble.kind, CENTRAL),
                "trust_assumptions": "The data owner is trusted with the records, and not needed "
                "to be trusted with history, as far as witnesses cosign the ledger's log. Students "
                "are not trusted: they may collude, adapt and know all other records. "
                f"{told['people.students']}",
                "actors": f"{told['people.roles']} Students with tokens: "
                f"{len(project.tokens)} so far. Valid tokens of auditors and admins: "
                f"{sum(facts.staff.values())}.",
                "release_type": "Many releases",
                "release_type_details": f"{sum(project.outcomes.values()):,} ledger entries so "
                "far. The budget is never renewed: when it is spent, the service refuses. The "
                "project was "
                + (
                    f"closed on {info.closed_at:%Y-%m-%d}." if info.closed_at else "not closed yet."
                ),
                "data_source_type": "Static",
                "data_source_type_details": "The records are those of the registration. If people "
                "left or came since, the administrative log says when. Another ensemble of the "
                "same people shares the cap.",
                "access_type": "Interactive",
                "access_type_details": "The budget belongs to the project, whose students share "
                "it. Non-collusion is not assumed: all projects of an ensemble together stay "
                f"within its cap of ε = {ensemble.account.epsilon:g}, "
                f"δ = {ensemble.account.delta:g}.",
            },
            "implementation": {
                "preprocessing_and_hyperparameter_tuning": _features(ensemble)
                + told["choices.tuning"],
                "mechanisms": _mechanisms(facts, project),
                "composition": f"{COMPOSITION[info.rule.name]}. Each query pays the "
                "price of the outcome that it got, known before it ran; refusals depend on what "
                "students know already. What is sent again is answered from the record, free.",
                "post_processing": "Answers that were given are repeated as they are. Whatever a "
                "student computes from answers, such as a model, is post-processing.",
                "justification": told["choices.budget"],
                "utility": told["choices.utility"],
                "additional_information": f"Ledger: {facts.database}, genesis {project.genesis}, "
                f"head {project.head}. {words.PROMISE[1]}",
            },
            "administrative": {
                "evidence_sources": {
                    "dossier": {
                        "evidence_source_type": "Authorized organizational attestation",
                        "misc": {"title": "Dossier", "note": told["registry.sources"]},
                    }
                },
                "status": "Draft",
                "registry_authors": [told["registry.authors"]],
                "tier": 3,
            },
        },
    }


def flat(value: Any, above: str = "") -> Sequence[tuple[str, Any]]:
    """Return the fields of an entry in a table: their paths, and plain values."""
    if isinstance(value, Mapping):
        items = [(f"{above}.{name}".lstrip("."), each) for name, each in value.items()]
    elif isinstance(value, list):
        items = [(above, each) for each in value]
    else:
        return [(above, value)]
    return [row for path, each in items for row in flat(each, path)]


def what_leaves(info: ProjectInfo, ensemble: DossierEnsemble) -> str:
    """Say what students get for an input, and who votes."""
    count = f"{info.ensemble.teachers:,}"
    teachers = f"{count} teachers, each trained on a disjoint part of the records"
    match info.mechanism.name:
        case "neighbours":
            of = "people" if ensemble.trained and ensemble.trained.unit == "person" else "records"
            return (
                "For each input that a student sends, noisy counts leave: one number for each "
                "class, of the votes for it with random noise, and the class with the largest. The "
                f"{count} {of} vote themselves, where they are near the input; "
                "an account of each limits what its votes tell in all. No model is trained; the "
                "service's directory holds a copy of every record, as coordinates with its label."
            )
        case "noisy_votes":
            return (
                "For each input that a student sends, noisy counts leave: one number for each "
                "class, of the votes for it with random noise, and the class with the largest. "
                f"Votes are cast by {teachers} (PATE)."
            )
        case name:
            counts = "" if "." in name else " No count of votes leaves."  # of another package
            return (
                "For each input that a student sends, a class leaves, or that there is none: the "
                f"outcome of a vote, with random noise, of {teachers} (PATE).{counts}"
            )


def unit_details(ensemble: DossierEnsemble) -> str:
    """Say what neighbouring data sets are."""
    trained = ensemble.trained
    if trained is None:
        return "Unknown: the ensemble's manifest cannot be read."
    what = {
        "record": "one record",
        "person": f"one person, who is all rows with the same {trained.grouped_by},",
        "teacher": f"all that one teacher was trained on (disjoint by: {trained.grouped_by})",
    }[trained.unit]
    changes = (
        "The votes of this unit alone may change, within its account."
        if ensemble.account.kind == "neighbours"
        else f"Exactly one of {ensemble.account.teachers:,} teachers may change, and one vote with "
        "it."
    )
    return (
        f"Data sets are neighbours if they differ in {what} replaced in place by anything else "
        f"(bounded DP: the number, {ensemble.units:,}, is public). {changes}"
    )


def _unprotected(ensemble: DossierEnsemble) -> str:
    account = ensemble.account
    schema = " The table's schema." if account.encoding else ""
    prior = (
        " Teachers match their own records' share of classes on public rows."
        if account.matches_prior and account.kind != "neighbours"
        else ""
    )
    by_units = account.kind == "neighbours"
    teachers = "" if by_units else f" and of teachers ({account.teachers:,})"
    time = ", which grow with the number of records," if by_units else ","
    return (
        f"Public by declaration, the same for all neighbours: the number of units "
        f"({ensemble.units:,}){teachers}, the classes ({', '.join(account.classes[:30])}), the "
        f"format of inputs, all settings, and a salted digest of the ensemble's files."
        f"{schema}{prior} Response times{time} and that a request fails because something was slow "
        "or crashed, are not covered."
    )


def _parameters(project: Project, ensemble: DossierEnsemble) -> str:
    info, split, spent = project.info, project.info.delta_split, project.budget
    return (
        f"Of δ, {split.conversion:g} converts the spend into ε, {split.stability:g} is for tests "
        f"of stability, {split.publication:g} for published bounds and {split.sampler:g} for the "
        f"sampler. {Rule(**info.rule.model_dump())}: budget {spent.budget}, spent {spent.spent} "
        f"(units of 1e-12), so far ε = {spent.epsilon_spent:.6g} at the same δ. "
        f"All projects of the ensemble together: ε = {ensemble.account.epsilon:g}, "
        f"δ = {ensemble.account.delta:g}."
    )


def _features(ensemble: DossierEnsemble) -> str:
    trained = ensemble.trained
    if trained is None or trained.public is None:
        return ""
    return (
        f"Features were fitted on public data alone ({trained.public}), by declaration of the "
        "owner; this costs no privacy. "
    )


def _mechanisms(facts: Facts, project: Project) -> str:
    info, code = project.info, facts.code
    spec = info.mechanism.model_dump(mode="json")
    return (
        f"{spec['name']} ({parameters(spec)}); docs/privacy/{spec['name']}.md has algorithm, proof "
        f"and tests. Own implementation: Terrine {code.version}, Python {code.python}. Noise is "
        "discrete, sampled exactly by inversion from 256 bits of the operating system's "
        "randomness, so there is no floating-point noise. "
        f"Timing: {words.SIDE_CHANNELS[0]} Platform: {words.SIDE_CHANNELS[1]} Security: bearer "
        "tokens by role, kept as keyed hashes; records, their copies and teachers stay on the "
        "owner's machine; each answer is paid in a hash-chained ledger before it is sent. Code: "
        f"SHA-256 of terrine_server {code.digests['terrine_server']}."
    )
