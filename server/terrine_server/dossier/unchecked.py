"""What a dossier cannot vouch for: it is said first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from terrine_protocol import LogVerification, Verification
from terrine_server.dossier.facts import Facts
from terrine_server.dossier.owner_answers import FILE


@dataclass(frozen=True)
class Unchecked:
    """Something that is wrong or was not checked: why, and what to do about it."""

    what: str
    why: str
    do: str


def unchecked(facts: Facts) -> Iterator[Unchecked]:
    """Yield what is wrong, then what was not checked, then what nobody can check from here."""
    books: list[tuple[str, Verification | LogVerification]] = [
        (f"the books of {each.info.name}", each.verification)
        for each in facts.projects
        if each.verification is not None
    ]
    if facts.acts.verification is not None:
        books.append(("the administrative log", facts.acts.verification))
    for what, found in books:
        if not found.ok:
            do = "See docs/ledger.md. Nothing below that comes from them can be believed."
            yield Unchecked(f"NOT INTACT: {what}", "; ".join(found.problems), do)
    for each in facts.ensembles:
        if each.wrong is not None:
            what = f"The files of {each.account.name}"
            yield Unchecked(what, each.wrong, "Restore the files; `terrine doctor` says which.")
    if not facts.verified:
        yield Unchecked(
            "Whether books, log and files are intact",
            "they were read, and not recomputed, for this page",
            "Press “Verify the books”, or run `terrine dossier`.",
        )
    yield from _unchecked_log(facts)
    yield from _unchecked_audit(facts)
    if facts.code.altered is None:
        yield Unchecked(
            "Whether the code is what was released",
            "it was not installed from a wheel, so there is nothing to hold it against",
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


def _unchecked_log(facts: Facts) -> Iterator[Unchecked]:
    last = facts.checkpoint
    if last is None:
        yield Unchecked(
            "Whether there is one history",
            "no checkpoint of the transparency log was ever signed",
            "Make a key with `terrine init`, and let the server run (docs/transparency.md).",
        )
        return
    if last.problems:
        yield Unchecked(
            "NOT INTACT: the transparency log",
            "; ".join(last.problems),
            "See docs/transparency.md.",
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
            "Ask somebody to run `terrine witness` (docs/transparency.md).",
        )
    elif last.missing:
        yield Unchecked(
            "What some witnesses saw",
            f"{', '.join(last.missing)} did not cosign the last checkpoint",
            "Ask them, and compare with the checkpoint in this dossier.",
        )


def _unchecked_audit(facts: Facts) -> Iterator[Unchecked]:
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
        yield Unchecked("FAILED: the audit", ", ".join(failed), "See docs/auditing.md.")
    if audit.version != facts.code.version:
        why = f"the audit was of version {audit.version}, and {facts.code.version} runs here"
        yield Unchecked("Whether the audit is of this code", why, do)
