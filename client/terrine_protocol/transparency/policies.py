"""Whose signatures a checkpoint needs: a policy, as c2sp.org/tlog-policy writes it.

log <vkey> [<url>]
witness <name> <vkey> [<url>]
group <name> <k>|any|all <name>...
quorum <name>|none
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from terrine_protocol.transparency.checkpoints import Checkpoint
from terrine_protocol.transparency.notes import Kind, Note, NoteError, VerifierKey, number

NONE = "none"


class QuorumMissing(NoteError):  # noqa: N818 - says what is missing
    """The log signed a checkpoint, but too few witnesses cosigned it."""


@dataclass(frozen=True)
class Party:
    """A log or a witness: its key, and where it is reached, if the policy says."""

    key: VerifierKey
    url: str | None = None


@dataclass(frozen=True)
class Group:
    """As many as `least` of the members, witnesses or groups, must have cosigned."""

    least: int
    members: tuple[str, ...]


@dataclass(frozen=True)
class VerifiedCheckpoint:
    """A checkpoint that satisfies a policy, and when each witness cosigned it (POSIX seconds)."""

    checkpoint: Checkpoint
    note: Note
    cosigned: Mapping[str, int]

    @property
    def newest(self) -> int | None:
        """The time of the last cosignature, if there is one."""
        return max(self.cosigned.values(), default=None)


@dataclass(frozen=True)
class Policy:
    """Known logs, witnesses and groups by name, and the quorum."""

    logs: tuple[Party, ...]
    witnesses: Mapping[str, Party]
    groups: Mapping[str, Group]
    quorum: str

    @classmethod
    def parse(cls, data: bytes) -> Policy:
        """Read a policy. Raises NoteError, which says in which line."""
        logs: list[Party] = []
        witnesses: dict[str, Party] = {}
        groups: dict[str, Group] = {}
        quorum: str | None = None
        used: set[str] = set()

        def member(name: str) -> str:
            if name not in witnesses and name not in groups:
                raise NoteError(f"{name} is not defined above")
            return name

        def new(name: str) -> str:
            if name == NONE or name in witnesses or name in groups:
                raise NoteError(f"the name {name} is taken")
            return name

        # Names are octets, not characters: see the specification.
        for place, line in enumerate(data.decode("latin-1").split("\n"), start=1):
            try:
                if any(not (" " <= c <= "~" or c >= "\x80" or c == "\t") for c in line):
                    raise NoteError("it has control characters")
                words = [word for word in line.replace("\t", " ").split(" ") if word]
                match words:
                    case []:
                        pass
                    case [first, *_] if first.startswith("#"):
                        pass
                    case ["log", key, *url] if len(url) <= 1:
                        logs.append(_party(key, url, Kind.ED25519))
                        _no_twice([log.key for log in logs])
                    case ["witness", name, key, *url] if len(url) <= 1:
                        witnesses[new(name)] = _party(key, url, Kind.COSIGNATURE)
                        _no_twice([witness.key for witness in witnesses.values()])
                    case ["group", name, least, *names] if names:
                        for each in map(member, names):
                            if each in used:
                                raise NoteError(f"{each} is a member more than once")
                            used.add(each)
                        groups[new(name)] = Group(_least(least, len(names)), tuple(names))
                    case ["quorum", name] if quorum is None:
                        quorum = name if name == NONE else member(name)
                    case _:
                        raise NoteError("expected log, witness, group, or one quorum")
            except NoteError as error:
                raise NoteError(f"line {place} of the policy: {error}") from None
        if quorum is None:
            raise NoteError("the policy has no quorum; `quorum none` needs no witness")
        return cls(tuple(logs), witnesses, groups, quorum)

    def opened(self, note: Note | str | bytes) -> VerifiedCheckpoint:
        """Return the checkpoint in a note. Raises NoteError, QuorumMissing if witnesses lack."""
        note = note if isinstance(note, Note) else Note.parse(note)
        checkpoint = Checkpoint.parse(note.text)
        if not note.signers([p.key for p in self.logs if p.key.name == checkpoint.origin]):
            raise NoteError(
                f"no log of the policy signed this checkpoint, whose origin is {checkpoint.origin}"
            )
        cosigned = self.cosigned(note)
        if not self.satisfied(set(cosigned)):
            named = ", ".join(sorted(cosigned)) or "nobody"
            raise QuorumMissing(
                f"the checkpoint of size {checkpoint.size} is cosigned by {named}; the quorum is "
                f"{self.quorum}"
            )
        return VerifiedCheckpoint(checkpoint, note, cosigned)

    def cosigned(self, note: Note) -> dict[str, int]:
        """Return which witnesses cosigned a note, and when."""
        by_key = note.signers([witness.key for witness in self.witnesses.values()])
        found = {name: by_key.get(witness.key) for name, witness in self.witnesses.items()}
        return {name: when for name, when in found.items() if when is not None}

    def satisfied(self, cosigned: set[str]) -> bool:
        """Whether these witnesses are enough."""

        def done(name: str) -> bool:
            group = self.groups.get(name)
            if group is None:
                return name in cosigned
            return sum(map(done, group.members)) >= group.least

        return self.quorum == NONE or done(self.quorum)


def _party(key: str, url: list[str], kind: Kind) -> Party:
    try:
        # A key's name is text, whatever the policy's other octets are.
        found = VerifierKey.parse(key.encode("latin-1").decode())
    except UnicodeDecodeError:
        raise NoteError("the name in the key is not UTF-8") from None
    if found.kind is not kind:
        signs = "cosignatures" if kind is Kind.COSIGNATURE else "notes"
        raise NoteError(f"the key of {found.name} is not one for {signs}")
    return Party(found, *url)


def _no_twice(keys: list[VerifierKey]) -> None:
    if len({key.public for key in keys}) < len(keys):
        raise NoteError("this public key is there already")


def _least(word: str, members: int) -> int:
    least = {"any": 1, "all": members}.get(word) or number(word)
    if not 1 <= least <= members:
        raise NoteError(f"{least} of {members} members cannot be needed")
    return least
