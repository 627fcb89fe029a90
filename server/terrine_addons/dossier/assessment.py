"""The pyramid of NIST SP 800-226 (March 2025), block by block, and its hazards: met, or not.

Blocks are the publication's; hazards are named after the places where it warns. A state follows
from the facts where facts decide it. It is the project's own judgement, for a reader to check.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from terrine_addons.dossier import words
from terrine_addons.dossier.facts import Facts, unit_details
from terrine_addons.dossier.words import FILE
from terrine_protocol import LogVerification, Verification

STRONG, LARGEST = 1.0, 4.0
"""ε up to which answers say little about anyone, and above which the number protects nobody."""
SUSPICIOUS_DELTA = 1e-5
"""A δ above this is suspicious, whatever the number of units."""


class RequirementState(StrEnum):
    """Whether a requirement is met."""

    MET = "met"
    PARTLY = "partly met"
    NOT_MET = "not met"
    OWNER = "for the owner to say"


@dataclass(frozen=True)
class AssessedBlock:
    """A block of the pyramid, or a hazard in it: met by what, and what shows it."""

    block: str
    hazard: str
    state: RequirementState
    by: str
    evidence: str


def assess(facts: Facts) -> tuple[AssessedBlock, ...]:
    """Judge every block and hazard, from the top of the pyramid to its bottom."""
    return (
        *_parameters(facts),
        *_unit(facts),
        *_algorithms(facts),
        *_utility(facts),
        *_bottom(facts),
    )


def _parameters(facts: Facts) -> Iterator[AssessedBlock]:
    block = "Privacy parameters (2)"
    caps = [(each.account.name, each.account.epsilon) for each in facts.ensembles]
    largest = max((epsilon for _, epsilon in caps), default=0.0)
    yield AssessedBlock(
        block,
        "ε so large that it protects nobody",
        RequirementState.MET
        if largest <= STRONG
        else RequirementState.PARTLY
        if largest <= LARGEST
        else RequirementState.NOT_MET,
        "The cap of all projects together: "
        + (", ".join(f"ε = {epsilon:g} of {name}" for name, epsilon in caps) or "none yet")
        + f". As a rule, {words.RULE_OF_THUMB}",
        "The ledger's caps; the odds in the section on attacks.",
    )
    worst = max((each.account.delta for each in facts.ensembles), default=0.0)
    square = [each for each in facts.ensembles if each.account.delta > 1 / each.most_units**2]
    yield AssessedBlock(
        block,
        "δ so large that a failure is likely",
        RequirementState.NOT_MET
        if worst > SUSPICIOUS_DELTA
        else RequirementState.PARTLY
        if square
        else RequirementState.MET,
        "; ".join(
            f"{each.account.name}: δ = {each.account.delta:g}, {each.most_units:,} units, so 1/n² "
            f"= {1 / each.most_units**2:.2g} and 1/n = {1 / each.most_units:.2g}"
            for each in facts.ensembles
        )
        + f". Advised is 1/n² and no more than {SUSPICIOUS_DELTA:g}; the service enforces 1/n.",
        "The ledger's caps. How mechanisms here use δ: they fail gracefully, except `stable`, "
        "whose test may release an exact winner with probability δ.",
    )
    yield AssessedBlock(
        block,
        "Guarantees compared, though variants and δ differ",
        RequirementState.MET,
        "The original parameters are reported: rule, order, budget and spend in its units, and how "
        "δ is divided; (ε, δ) is beside them, never instead.",
        "The registry entry, privacy_parameters_details.",
    )
    yield AssessedBlock(
        block,
        "Losses that add up unseen",
        RequirementState.MET,
        "Every answer is charged before it is sent; projects share a cap that colluding students "
        "cannot exceed; refusals are part of the promise.",
        "The ledger, recomputed by `terrine ledger verify`; docs/privacy/README.md has the proof.",
    )
    yield AssessedBlock(
        block,
        "Other releases from the same data",
        RequirementState.OWNER,
        facts.told["data.other_uses"],
        "The owner's word. All that is served from here shares a cap, unless the owner stated, in "
        "the log, that two populations have no person in common.",
    )


def _unit(facts: Facts) -> Iterator[AssessedBlock]:
    block = "Unit of privacy (2)"
    units = [each.trained.unit if each.trained else "unknown" for each in facts.ensembles]
    people = all(unit == "person" for unit in units)
    yield AssessedBlock(
        block,
        "A unit that is smaller than a person",
        RequirementState.MET if people and units else RequirementState.OWNER,
        " ".join(f"{each.account.name}: {unit_details(each)}" for each in facts.ensembles)
        + ("" if people else " It is met if nobody has several records."),
        "The ensemble's manifest; the number of units is in the sealed ledger.",
    )
    yield AssessedBlock(
        block,
        "Bounded DP: the size of the data is not protected",
        RequirementState.NOT_MET,
        "Neighbours differ by replacing a unit in place, so the number of units is public.",
        "docs/privacy/README.md, Neighbours.",
    )
    yield AssessedBlock(
        block,
        "Contributions of a person that are not bounded",
        RequirementState.MET if people and units else RequirementState.OWNER,
        "However many rows a person has, where people are grouped they train one teacher, or share "
        "one account.",
        "The manifest's partition; test_how_many_rows_a_person_has_moves_nobody_else, "
        "tests/privacy/test_neighbours.py.",
    )


def _algorithms(facts: Facts) -> Iterator[AssessedBlock]:
    block, audit = "Algorithms and correctness (3)", facts.audit
    yield AssessedBlock(
        block,
        "Own implementations instead of well-tested libraries",
        RequirementState.PARTLY,
        "Mechanisms and accounting are Terrine's own, since no library has them; they are held "
        "against independent oracles (dp-accounting, exact arithmetic).",
        "docs/checking.md; `make test`.",
    )
    yield AssessedBlock(
        block,
        "Audits taken for proofs",
        RequirementState.NOT_MET if audit is None or not audit.passed else RequirementState.MET,
        "Proofs come first, and an audit supplements them. "
        + (
            "No audit was named for this dossier."
            if audit is None
            else f"Of {audit.made_at:%Y-%m-%d}, version {audit.version}: {len(audit.findings)} "
            f"findings, {'none' if audit.passed else 'some'} above its price, at confidence "
            f"{audit.confidence:g}."
        ),
        "audit.json, if there is one; docs/privacy/failed-claims.md for what was refuted.",
    )
    unsound = [each.info.name for each in facts.projects if each.info.mechanism.name == "immutable"]
    yield AssessedBlock(
        block,
        "Sensitivity that is larger than assumed",
        RequirementState.MET,
        "One unit moves one vote from one class to another, because teachers' data are disjoint; "
        "where units vote themselves, it moves what its account still allows"
        + (
            f"; the published price of `immutable` is false, and {', '.join(unsound)} pays the one "
            "that holds"
            if unsound
            else ""
        )
        + ".",
        "docs/privacy/README.md and neighbours.md; test_changing_one_record_changes_one_teacher.",
    )
    yield AssessedBlock(
        block,
        "Settings, bins or bounds chosen by looking at private data",
        RequirementState.OWNER,
        f"Classes, schemas and features are declared as public. {facts.told['choices.tuning']}",
        "`terrine plan` refuses votes that are not said to be public.",
    )
    yield AssessedBlock(
        block,
        "Models that are released without protection",
        RequirementState.MET,
        "Teachers, and copies of records, stay on their owner's machine; students' models are made "
        "of answers alone.",
        "docs/privacy/threat-model.md, Who sees what.",
    )


def _utility(facts: Facts) -> Iterator[AssessedBlock]:
    yield AssessedBlock(
        "Utility (3)",
        "Answers that are too noisy for their use",
        RequirementState.OWNER,
        facts.told["choices.utility"],
        "`terrine student train` reports accuracy on held-out answers; `terrine quickstart "
        "--dry-run` forecasts it.",
    )
    yield AssessedBlock(
        "Bias (3)",
        "Small groups that are served worse",
        RequirementState.OWNER,
        "A noisy vote is wrong more often where teachers disagree or few people are near, as on "
        "rare groups. " + facts.told["choices.utility"],
        "docs/student.md; to be measured on public data before anything is served.",
    )
    yield AssessedBlock(
        "Bias (3)",
        "Post-processing that misleads",
        RequirementState.MET,
        "Labels and noisy counts are sent as they were drawn: nothing is rounded or clipped.",
        "docs/privacy; the ledger's entries.",
    )


def _bottom(facts: Facts) -> Iterator[AssessedBlock]:
    last = facts.checkpoint
    yield AssessedBlock(
        "Query model (4.1)",
        "Interactive queries: malicious analysts, budgets that run out",
        RequirementState.MET,
        "Students are adversaries in the proof: adaptive, colluding, knowing all other records. "
        "The budget is enforced as integers, and no order of events exceeds it.",
        "Filters are attacked in exact arithmetic by the tests; `terrine audit service` attacks "
        "the running service.",
    )
    yield AssessedBlock(
        "Trust model (4.2)",
        "A trust that nobody earned",
        RequirementState.PARTLY,
        "Central: the owner is trusted with records, what votes for them, and students' inputs. "
        + (
            f"One history: cosigned by {', '.join(sorted(last.cosigned))}."
            if last is not None and last.cosigned
            else "Nobody cosigns that it told one history."
        )
        + f" {facts.told['people.roles']}",
        "The transparency log; docs/privacy/threat-model.md.",
    )
    yield AssessedBlock(
        "Side channels (4.3)",
        "Floating-point noise",
        RequirementState.MET,
        words.SIDE_CHANNELS[2],
        "docs/decisions/0010-noise-of-256-bits.md; tests/privacy/test_noise.py.",
    )
    yield AssessedBlock(
        "Side channels (4.3)",
        "Time, and failures",
        RequirementState.PARTLY,
        f"{words.SIDE_CHANNELS[0]} {words.SIDE_CHANNELS[1]}",
        "docs/privacy/threat-model.md, Side channels.",
    )
    yield AssessedBlock(
        "Side channels (4.3)",
        "Back ends and error messages that leak",
        RequirementState.MET,
        "No answer, error, log line or metric has a field for votes; refusals follow from what "
        "students know already.",
        "tests/api/test_operation.py looks for leaks.",
    )
    yield AssessedBlock(
        "Access control (4.4)",
        "A breach of the private data",
        RequirementState.OWNER,
        "Tokens by role, kept as keyed hashes; the database holds neither records, teachers nor "
        "keys but, where people vote or accounting is data-dependent, accounts as private as "
        f"these. Disks, backups and accounts are the operator's. {facts.told['people.incidents']}",
        "`terrine doctor` on each machine; docs/deploying.md.",
    )
    yield AssessedBlock(
        "Data collection exposure (4.5)",
        "More data than needed",
        RequirementState.OWNER,
        facts.told["data.collection"],
        "The owner's word. Students' inputs are personal data, too, and are not stored.",
    )


@dataclass(frozen=True)
class Unchecked:
    """Something that is wrong or was not checked: why, and what to do about it."""

    what: str
    why: str
    do: str


def list_unchecked(facts: Facts) -> Iterator[Unchecked]:
    """Yield what is wrong, then what was not checked, then what nobody can check from here."""
    verified: list[tuple[str, Verification | LogVerification]] = [
        (f"the ledger of {each.info.name}", each.verification)
        for each in facts.projects
        if each.verification is not None
    ]
    if facts.acts.verification is not None:
        verified.append(("the administrative log", facts.acts.verification))
    for what, found in verified:
        if not found.ok:
            do = "See docs/ledger.md. Nothing below that comes from it can be trusted."
            yield Unchecked(f"NOT INTACT: {what}", "; ".join(found.problems), do)
    for each in facts.ensembles:
        if each.wrong is not None:
            what = f"The files of {each.account.name}"
            yield Unchecked(what, each.wrong, "Restore the files; `terrine doctor` says which.")
    if not facts.verified:
        yield Unchecked(
            "Whether ledger, log and files are intact",
            "they were read, and not recomputed, for this page",
            "Press “Verify the ledger”, or run `terrine dossier`.",
        )
    yield from _list_unchecked_log(facts)
    yield from _list_unchecked_audit(facts)
    if facts.code.altered is None:
        yield Unchecked(
            "Whether the code is what was released",
            "it was not installed from a wheel, so there is nothing to compare it with",
            "Install a release, and compare with `make release-check`.",
        )
    elif facts.code.altered:
        yield Unchecked(
            "ALTERED: the code that runs here",
            f"{', '.join(facts.code.altered)} not as in the wheel that was installed",
            "Install the release again, and find out who changed it.",
        )
    if facts.told.missing:
        yield Unchecked(
            f"{len(facts.told.missing)} answers that only the owner can give",
            ", ".join(question.key for question in facts.told.missing),
            f"Write them in {FILE} in the data directory, and make the dossier again.",
        )
    yield Unchecked(
        "Whether anything else was ever released from these records",
        "the ledger knows its own releases alone; a statistic, or a service elsewhere on some of "
        "the same people, adds to what is lost",
        "Ask the owner; the answer is in the section on other uses.",
    )
    for each in facts.ensembles:
        if each.trained is None or each.trained.unit == "teacher":
            yield Unchecked(
                f"Whether no person's data trained two teachers of {each.account.name}",
                "its teachers were trained elsewhere; the owner declares it",
                "Ask how it was made sure; the guarantee rests on it.",
            )
        elif each.trained.unit == "record":
            yield Unchecked(
                f"Whether a person has several of the {each.units:,} records of "
                f"{each.account.name}",
                "records are protected, and nothing says whose they are",
                "If so, begin again with --group: with k records, a person's ε is more than k "
                "times as large (docs/adoption.md).",
            )
    yield Unchecked(
        "Machines other than this one",
        "replicas, proxies, backups, a database elsewhere, and the network were not looked at",
        "Run `terrine doctor` on each, and compare the digests of the code.",
    )


def _list_unchecked_log(facts: Facts) -> Iterator[Unchecked]:
    last = facts.checkpoint
    if last is None:
        yield Unchecked(
            "Whether there is one history",
            "no checkpoint of the transparency log was ever signed",
            "Make a key with `terrine init`, and let the server run (docs/ledger.md).",
        )
        return
    if last.problems:
        yield Unchecked(
            "NOT INTACT: the transparency log",
            "; ".join(last.problems),
            "See docs/ledger.md.",
        )
    if last.problems is None and facts.verified:
        yield Unchecked(
            "Whether the transparency log holds the ledger's entries",
            "there is neither a policy nor the log's key on this machine",
            "Name a policy with --policy.",
        )
    if not last.cosigned and not last.missing:
        yield Unchecked(
            "Whether everybody was told the same history",
            "no witness cosigns the log, so the owner could show two",
            "Ask somebody to run `terrine witness` (docs/ledger.md).",
        )
    elif last.missing:
        yield Unchecked(
            "What some witnesses saw",
            f"{', '.join(last.missing)} did not cosign the last checkpoint",
            "Ask them, and compare with the checkpoint in this dossier.",
        )


def _list_unchecked_audit(facts: Facts) -> Iterator[Unchecked]:
    audit, do = facts.audit, "Run `terrine --json audit > audit.json`, and name it with --audit."
    if audit is None:
        yield Unchecked("How much privacy the running code delivers", "no audit was named", do)
        return
    parts = {"mechanisms", "service", "ledger"} - {each.part for each in audit.findings}
    if parts:
        why = f"the audit of {audit.made_at:%Y-%m-%d} left out {', '.join(sorted(parts))}"
        yield Unchecked("Parts of the audit", why, do)
    failed = [each.subject for each in audit.findings if not each.passed]
    if failed:
        yield Unchecked("FAILED: the audit", ", ".join(failed), "See docs/addons/audit.md.")
    if audit.version != facts.code.version:
        why = f"the audit was of version {audit.version}, and {facts.code.version} runs here"
        yield Unchecked("Whether the audit is of this code", why, do)
