"""What only the owner can say: questions, the file that asks them, and the answers."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from terrine_protocol.files import read

FILE = "dossier.toml"
"""In the data directory."""
MARK = "To be written by the owner"
MOST = 20_000
"""Characters of an answer."""


class DossierError(Exception):
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
        return self.answers[key] or f"[{MARK}: {_ASKED[key]}]"

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
            raise DossierError(f"{path} is no TOML: {error}.") from None
        for above, table in tables.items():
            for name, answer in table.items() if isinstance(table, dict) else [("", table)]:
                key = f"{above}.{name}".rstrip(".")
                if key not in _ASKED:
                    raise DossierError(
                        f"{path}: nobody asks for {key}. Asked for are {', '.join(_ASKED)}."
                    )
                if not isinstance(answer, str) or len(answer) > MOST:
                    raise DossierError(f"{path}: {key} is no text of at most {MOST:,} characters.")
                given[key] = answer.strip()
    return OwnerAnswers({key: given.get(key) or None for key in _ASKED})
