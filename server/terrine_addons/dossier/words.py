"""What holds of every service, in the words of docs/privacy and docs/adoption.md.

A test compares them with those pages, which the installed program does not have.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from terrine_protocol.errors import TerrineError
from terrine_protocol.files import read

IN_ONE_SENTENCE = (
    "Whatever the records of one person say, and even if they were blank, outsiders would see "
    "almost the same."
)
PROMISE = (
    "Take any one person (or any one record, where nobody said whose a record is) and replace what "
    "was recorded about them by anything else, or by nothing, in the same place. One teacher may "
    "change or, where people vote themselves, that person's votes. Whatever students do together, "
    "for however long, the probability of anything that the service shows them changes by at most "
    "a factor of e^ε, plus δ. Refusals are part of what it shows.",
    "It is a promise about what can be learnt about one person from the answers. It does not "
    "promise that the answers are right, and it does not cover what would have been learnt without "
    "that person's data.",
)
NOT_PROMISED = (
    "Facts about people in general. That smokers fall ill can be learnt whether or not somebody "
    "took part.",
    "People with several records, unless the owner names who belongs together (--group). Without "
    "it the promise is for a record, and a person's ε grows faster than their records: at ε = 1, "
    "to 2.2 with two and 10.9 with eight.",
    "Anything else that is done with the data. All that is served from one data directory shares a "
    "cap, unless the owner states, in the log, that no person is in two of its populations. What "
    "is done elsewhere adds up with it, and what is public of somebody already is not protected.",
    "Protection from the data owner, or from whoever runs its machine. They also see the inputs "
    "that outsiders send. Where people vote, whoever reads the service's database sees who was "
    "near how many inputs.",
    "What the owner decides by looking at private data: when to stop, whom to leave out, which "
    "settings did best.",
    "Right answers. Errors can be more frequent for small groups; the owner can measure that on "
    "public data before anything is served.",
    "The time that an answer takes, and that a request fails because a model was slow or crashed "
    "(threat model).",
)
RULE_OF_THUMB = (
    "up to 1, answers say little about anyone. From 1 to 4, a determined insider may confirm a "
    "suspicion. Above 4, the number alone protects nobody who is singled out."
)


class Visibility(NamedTuple):
    """Who sees something: a row of the table in docs/privacy/threat-model.md."""

    what: str
    student: str
    staff: str
    owner: str
    database: str


WHO_SEES = (
    Visibility(
        "outcomes and labels", "own project's", "all projects', in the ledger", "all", "all"
    ),
    Visibility("noisy counts of noisy_votes and neighbours", "own project's", "no", "all", "all"),
    Visibility("terms, prices, balance", "own project's", "all, and the caps", "all", "all"),
    Visibility(
        "ledger entries",
        "– (number and hash of each own entry)",
        "all, without the input's digest",
        "all (terrine ledger export)",
        "all",
    ),
    Visibility(
        "which token paid for an entry",
        "no",
        "an admin does, at /admin; an auditor does not",
        "yes (terrine ledger show --payers)",
        "yes",
    ),
    Visibility("digest of the ensemble's manifest", "yes", "yes", "yes", "yes"),
    Visibility(
        "inputs, probabilities",
        "own",
        "no: a SHA-256 of each query",
        "in memory while answering; a SHA-256 afterwards",
        "SHA-256s",
    ),
    Visibility(
        "votes, exact counts, noise",
        "no",
        "no",
        "no interface shows them; anyone who holds teachers or records can compute votes",
        "no",
    ),
    Visibility(
        "secret tally of a data-dependent project",
        "no: bounds published from it",
        "no endpoint shows it",
        "yes",
        "yes",
    ),
    Visibility(
        "accounts of people (neighbours)",
        "no",
        "no endpoint shows them",
        "yes, in the database",
        "yes",
    ),
    Visibility("private data, copies of them, teachers", "no", "no", "yes", "no"),
    Visibility(
        "tokens",
        "own",
        "an admin sees a token once, when creating it",
        "keyed hashes, and the key",
        "keyed hashes",
    ),
)


TO_WHOM = (
    "Where projects are data-dependent, or people vote themselves, it is made to students and "
    "auditors alone: whoever has the database, or runs commands on the data owner's machine, can "
    "compute the secret spend from the tally, and read who was near how many queries. Keep a "
    "database with such projects, and its backups, as the private data themselves."
)


class Retention(NamedTuple):
    """What is stored, what it says of whom, and how long it stays."""

    what: str
    says: str
    until: str


STORED = (
    Retention(
        "private records", "all that was collected; outside of this service", "the owner decides"
    ),
    Retention(
        "teachers",
        "models of the private records: as confidential as these",
        "the owner deletes the ensemble's files; then nothing is answered any more",
    ),
    Retention(
        "copies of records, of neighbours",
        "the features of each record, as coordinates, and its label: as confidential as these",
        "a person is forgotten (--group), or the owner deletes the ensemble's files",
    ),
    Retention(
        "rows that are designed, of histograms with noise",
        "what each project on the ensemble begins with, and paid for: of people it says no more "
        "than the promise",
        "the owner deletes the ensemble's files; who leaves changes nothing that was told",
    ),
    Retention(
        "accounts of people, of neighbours",
        "how much each person's votes told: who was near how many inputs",
        "for ever; of who was forgotten, that the account is full",
    ),
    Retention(
        "ledger entries",
        "outcome, label, noisy counts and price of each query, and SHA-256 digests of its input, "
        "which confirm a guess of the input",
        "for ever: an entry cannot be removed without breaking the chain of hashes",
    ),
    Retention(
        "who paid for an entry",
        "the id of a token, whose label may name a person; nothing of the input",
        "for ever",
    ),
    Retention(
        "administrative log",
        "who acted: ids of tokens, accounts of this machine, names from the issuer",
        "for ever, likewise",
    ),
    Retention(
        "tokens and requests", "a label, a purpose, dates; no secret", "for ever; a token expires"
    ),
    Retention(
        "students' inputs", "whatever the student sends: possibly personal data", "not stored"
    ),
    Retention(
        "the server's log",
        "request ids, times, tokens' ids, errors; no input, label or vote",
        "the operator decides",
    ),
)
ERASURE = (
    "What an answer told cannot be taken back; the promise bounds what it told of anyone. Where "
    "people are named (--group), the owner lets one go while the service runs: the copies of her "
    "records are removed, or the teacher that had them is "
    "trained without them, under the same cap. A keyed digest stays, so that she is not added "
    "again. Backups, and the owner's own files, are the owner's to clean. Students' inputs leave "
    "nothing but digests; those stay in the ledger."
)
SIDE_CHANNELS = (
    "Response time is outside (ε, δ). Every query of a batch draws the same number of random bytes "
    "whatever the votes, and noise of tests that fail is drawn, too; but this is not constant-time "
    "code, and a teacher's arithmetic may depend on its weights. Where people vote, time grows "
    "with the number of records. Pad responses at a proxy against students who measure time over "
    "many queries.",
    "A 503 because a model, an owner or a machine was slow or crashed is covered by no ε. It "
    "charges nothing.",
    "Noise is exact and integer, from the operating system's randomness; there is no seed, and no "
    "floating-point noise to attack.",
    "Logs, metrics and errors have no field for a vote.",
)


FILE = "dossier.toml"
"""In the data directory."""
UNWRITTEN = "To be written by the owner"
MAX_ANSWER_CHARACTERS = 20_000
"""Characters of an answer."""


class DossierError(TerrineError):
    """A dossier that cannot be written, or does not hold. Says what to do."""


@dataclass(frozen=True)
class Question:
    """Something that only the owner knows. `key`: its table and name in dossier.toml."""

    key: str
    asks: str


QUESTIONS = tuple(
    Question(*each)
    for each in (
        ("curator.name", "The name of the body that answers for the data."),
        ("curator.type", "Government, Industry or Nonprofit, in the registry's words."),
        ("curator.contact", "Whom to write to."),
        ("curator.officer", "The data-protection officer, and how to reach her."),
        ("data.subjects", "Whose records these are: who, how many, since when, from where."),
        ("data.content", "What a record says, and which of it is sensitive (health, belief, …)."),
        ("data.region", "The region that the data describe, and whose laws apply."),
        ("data.sector", "Technology, Healthcare, Education, Government, Energy or Finance."),
        ("data.collection", "Why the data were collected, on what legal basis; what was left out."),
        (
            "data.retention",
            "How long records, teachers, ledger and backups are kept, and why.",
        ),
        ("data.other_uses", "What else was ever released from these records, of any kind."),
        ("use.description", "What students do with the answers, in two sentences."),
        ("use.intended", "Intended uses, and those that are excluded."),
        ("use.necessity", "Why this is needed, and why nothing milder would do."),
        ("people.roles", "Who are admins, auditors and operators, and who appointed them."),
        ("people.students", "Who the students are, what they agreed to; whose data they send."),
        ("people.rights", "How a person objects, asks for access or erasure, and what follows."),
        ("people.incidents", "Who is told of an incident, by whom, within which time."),
        ("people.consulted", "Who was consulted: subjects, staff, ethics board; what they said."),
        ("choices.budget", "Why this ε and δ, and who decided."),
        (
            "choices.tuning",
            "Pre-processing and settings chosen by looking at private data, if any.",
        ),
        (
            "choices.utility",
            "How good answers and students are, and for which groups they are worse.",
        ),
        ("choices.residual_risk", "Which risk remains, and who accepts it."),
        ("registry.authors", "Who filled in the registry entry."),
        ("registry.sources", "Public documents that describe this deployment."),
    )
)


@dataclass(frozen=True)
class OwnerAnswers:
    """The owner's answers by key. None where there is none yet."""

    answers: Mapping[str, str | None]

    def __getitem__(self, key: str) -> str:
        """Return an answer, or a mark that says what is to be written."""
        return self.answers[key] or f"[{UNWRITTEN}: {_ASKED[key]}]"

    @property
    def missing(self) -> list[Question]:
        """Questions without an answer."""
        return [question for question in QUESTIONS if not self.answers[question.key]]


_ASKED = {question.key: question.asks for question in QUESTIONS}


def template() -> str:
    """Return a file with all questions and no answers."""
    lines = [
        "# What only the owner can say, for `terrine dossier`. Answers may have several lines,",
        '# between """ and """. What is left empty is marked as missing in the dossier.',
    ]
    table = ""
    for question in QUESTIONS:
        above, name = question.key.split(".")
        if above != table:
            lines += ["", f"[{above}]"]
            table = above
        lines += [f"# {question.asks}", f'{name} = ""']
    return "\n".join(lines) + "\n"


def load(path: Path) -> OwnerAnswers:
    """Read the answers; none without a file. Raises DossierError, or OSError."""
    given: dict[str, str] = {}
    if path.exists():
        try:
            tables = tomllib.loads(read(path).decode())
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise DossierError(f"{path} is not a TOML file: {error}.") from None
        for above, table in tables.items():
            for name, answer in table.items() if isinstance(table, dict) else [("", table)]:
                key = f"{above}.{name}".rstrip(".")
                if key not in _ASKED:
                    raise DossierError(
                        f"{path}: nobody asks for {key}. Asked for are {', '.join(_ASKED)}."
                    )
                if not isinstance(answer, str) or len(answer) > MAX_ANSWER_CHARACTERS:
                    raise DossierError(
                        f"{path}: {key} is not a text of at most {MAX_ANSWER_CHARACTERS:,} "
                        "characters."
                    )
                given[key] = answer.strip()
    return OwnerAnswers({key: given.get(key) or None for key in _ASKED})
