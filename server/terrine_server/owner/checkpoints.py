"""Checkpoints of the transparency log: signed with the owner's key, and cosigned by witnesses.

A round grows the tree, signs its root, asks the witnesses of the policy to cosign it, and keeps the
note that results. Nothing waits for a round, least of all a charge.
"""

from __future__ import annotations

import base64
import math
import secrets
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import structlog

from terrine_protocol import LogState
from terrine_protocol.errors import TerrineError
from terrine_protocol.files import read, write_atomically, write_secret
from terrine_protocol.transparency import (
    MAX_NOTE_BYTES,
    NO_QUORUM,
    Checkpoint,
    KeyKind,
    Note,
    NoteError,
    Party,
    Policy,
    ProofError,
    Signature,
    SignerKey,
    VerifierKey,
    parse_decimal,
)
from terrine_server.errors import Conflict, LedgerRestored, LogNotSigned, ServiceError
from terrine_server.ledger import Ledger
from terrine_server.ledger.ensembles import DEFAULT_POPULATION
from terrine_server.ledger.losses import LostSpend
from terrine_server.ledger.projects import RestoredProjects
from terrine_server.settings import Settings

if TYPE_CHECKING:
    from terrine_server.metrics import Metrics


# How long a witness may take for a part of its answer, or to accept a connection.
WITNESS_SECONDS = 5.0
# How long a witness that fails is left alone at most. The first pause is one second.
MAX_PAUSE_SECONDS = 60.0
# How long whoever asks for a checkpoint of now waits while another process signs.
SIGNING_WAIT_SECONDS = 60.0
# How long what was found about the ledger's history is still true.
LOOK_SECONDS = 1.0
# How long a server answers while its rounds fail.
UNSIGNED_SECONDS = 60.0
# A cosignature says until when its witness saw no larger tree: it is asked again after so long.
REFRESH_SECONDS = 3600
MAX_PARALLEL_WITNESSES = 32
SIZE_TYPE = "text/x.tlog.size"
# What httpx raises, also of a proxy or certificates that the environment names wrongly.
UNREACHABLE = (httpx.HTTPError, httpx.InvalidURL, ImportError, ValueError, OSError)

log = structlog.get_logger("terrine")


class CheckpointError(TerrineError):
    """A key or policy that cannot be used, or a tree that must not be signed. Says what to do."""


def make_checkpoint_key(path: Path, origin: str | None = None) -> bool:
    """Write a new key for the log `origin`; by default, one whose name nobody else has.

    Return False if there is one. Raises NoteError for a name that no key may have.
    """
    name = origin or f"terrine.invalid/{secrets.token_hex(8)}"
    key = SignerKey(name, KeyKind.ED25519, secrets.token_bytes(32))
    SignerKey.parse(key.secret)  # refuses a name that is none
    return write_secret(path, key.secret + "\n")


def make_key_of_new_log(ledger: Ledger, settings: Settings, origin: str | None = None) -> bool:
    """Write a key for the log of a ledger, as `make_checkpoint_key` does; False if there is one.

    Raises CheckpointError if another key signed the ledger: its holders' policies name that one, so
    a new log begins only under a name that is given for it.
    """
    path, note = settings.checkpoint_key_path, ledger.tree.checkpoint()
    if path.exists():
        return False
    signed = _last_signed(settings) if note is None else Checkpoint.parse(Note.parse(note).text)
    if signed is not None and origin in (None, signed.origin):
        raise CheckpointError(
            f"The ledger was signed as the log {signed.origin}, whose key, {path}, is not here. No "
            "other was made, so nothing is signed here. Put that key back: policies of students "
            "and auditors name it, and refuse what another signs. If it is lost, begin a new log, "
            "which everybody will see, under another name: `terrine init --origin NAME`. Its line "
            "goes into every policy."
        )
    return make_checkpoint_key(path, origin)


def load_checkpoint_key(path: Path) -> SignerKey | None:
    """Read the key; None if there is none. Raises CheckpointError if it cannot be used."""
    if not path.exists():
        return None
    try:
        key = SignerKey.parse(read(path, MAX_NOTE_BYTES).decode())
    except (NoteError, UnicodeDecodeError) as error:
        raise CheckpointError(
            f"{path} is not a key for checkpoints ({error}). Put the key back, or move the "
            "file away and run `terrine init --origin NAME` to begin a new log, which everybody "
            "will see."
        ) from None
    if key.kind is not KeyKind.ED25519:
        raise CheckpointError(f"{path} is the key of a witness, not of a log.")
    return key


def load_policy(path: Path | None) -> Policy | None:
    """Read a policy; None without a path. Raises CheckpointError, or OSError."""
    if path is None:
        return None
    try:
        return Policy.parse(read(path, MAX_NOTE_BYTES))
    except NoteError as error:
        raise CheckpointError(f"{path} is not a policy: {error}. See docs/ledger.md.") from None


def own_policy(settings: Settings) -> Policy | None:
    """Return what the service's log is compared with here: its policy, or its key alone.

    None without either. Raises CheckpointError, or OSError.
    """
    policy = load_policy(settings.log_policy_path)
    if policy is not None:
        return policy
    key = load_checkpoint_key(settings.checkpoint_key_path)
    return None if key is None else Policy((Party(key.verifier),), {}, {}, NO_QUORUM)


def log_state(note: str | None, policy: Policy | None) -> LogState | None:
    """Return what a checkpoint that we kept says, by our policy; None before there is one."""
    if note is None:
        return None
    parsed = Note.parse(note)
    cosigned = {} if policy is None else policy.cosigned(parsed)
    named = () if policy is None else policy.witnesses
    return LogState(
        size=Checkpoint.parse(parsed.text).size,
        cosigned={name: datetime.fromtimestamp(cosigned[name], UTC) for name in sorted(cosigned)},
        missing=sorted(name for name in named if name not in cosigned),
    )


class SignedHistory:
    """What was signed of a ledger's log, and whether the ledger still continues it. Thread-safe.

    `file`: keeps the last checkpoint outside the database, which may be set back; without it, only
    this process knows what it signed or saw. It is trusted as it is, whichever key signed it: a new
    key continues the same entries. `key`: whose signatures on others count; without one, all do.
    """

    def __init__(
        self, ledger: Ledger, key: VerifierKey | None = None, file: Path | None = None
    ) -> None:
        self._ledger = ledger
        self._key = key
        self._file = file
        self._last: Checkpoint | None = None
        self._memory = threading.Lock()
        self._looking = threading.Lock()
        self._looked = -math.inf
        self._failing_since: float | None = None
        self._failure = ""
        self.found: LedgerRestored | LogNotSigned | None = None
        """What `check` last found wrong."""

    @property
    def signed(self) -> int:
        """How many entries are known to be signed, as it was last checked."""
        return self._last.size if self._last else 0

    def check(self) -> None:
        """Raise what is wrong, found out once a second at most.

        That is LedgerRestored; LogNotSigned if nothing could be signed here for a minute, or the
        file cannot be read; or DatabaseUnavailable.
        """
        with self._looking:
            if time.monotonic() - self._looked >= LOOK_SECONDS:
                try:
                    self.compare_with_ledger(self._ledger.tree.checkpoint())
                    self._check_signing()
                    self.found = None
                except (LedgerRestored, LogNotSigned) as error:
                    self.found = error
                self._looked = time.monotonic()
            found = self.found
        if found is not None:
            raise found.with_traceback(None)

    def compare_with_ledger(self, kept: str | None) -> None:
        """Raise LedgerRestored unless the ledger continues all that is known to be signed of it.

        `kept`: the checkpoint that the database has. Raises LogNotSigned if that, or the file,
        cannot be read, and DatabaseUnavailable.
        """
        for earlier in self._signed(kept):
            with suppress(ProofError):  # fewer leaves than were signed
                if self._ledger.tree.root(earlier.size) == earlier.root:
                    continue
            raise LedgerRestored(
                f"{earlier.size} entries were signed, as {self._file or 'this server'} says, and "
                "the log does not continue them"
            )

    def keep(self, note: str) -> None:
        """Write down what was just signed. Raises OSError."""
        if self._file is not None:
            write_atomically(self._file, note.encode())
        self._remember(self._own(note))

    def report(self, failure: str | None) -> None:
        """Say how the last round of this process ended: with a failure, or well."""
        if failure is None:
            self._failing_since = None
        elif self._failing_since is None:
            self._failing_since = time.monotonic()
        self._failure = failure or ""

    def _check_signing(self) -> None:
        since = self._failing_since
        if since is not None and time.monotonic() - since >= UNSIGNED_SECONDS:
            raise LogNotSigned(self._failure)

    def _signed(self, kept: str | None) -> set[Checkpoint]:
        before, filed = self._last, None
        try:
            if self._file is not None and self._file.exists():
                filed = _read_checkpoint(self._file)
        except (OSError, NoteError) as error:
            raise LogNotSigned(f"{self._file}: {error}") from None
        try:
            found = [before, filed, None if kept is None else self._own(kept)]
        except NoteError as error:
            raise LogNotSigned(f"the checkpoint in the database: {error}") from None
        self._remember(*found)
        return {each for each in found if each is not None}

    def _remember(self, *found: Checkpoint | None) -> None:
        with self._memory:
            known = [each for each in (self._last, *found) if each is not None]
            self._last = max(known, key=lambda each: each.size, default=None)

    def _own(self, note: str) -> Checkpoint | None:
        """Return what a note says if our key signed it: with a new key, a new log begins.

        Raises NoteError.
        """
        parsed = Note.parse(note)
        checkpoint = Checkpoint.parse(parsed.text)
        if self._key is None:
            return checkpoint
        signed = self._key in parsed.signers([self._key])
        return checkpoint if signed and checkpoint.origin == self._key.name else None


def _read_checkpoint(file: Path) -> Checkpoint:
    """Return what was signed last here, by whichever key. Raises NoteError, and OSError."""
    return Checkpoint.parse(Note.parse(read(file, MAX_NOTE_BYTES)).text)


def attach_history(ledger: Ledger, settings: Settings) -> SignedHistory:
    """Let nothing be spent of a ledger that does not continue what was signed of it here.

    Raises CheckpointError for a key that cannot be used.
    """
    key = load_checkpoint_key(settings.checkpoint_key_path)
    verifier = None if key is None else key.verifier
    history = SignedHistory(ledger, verifier, settings.signed_checkpoint_path)
    ledger.guard(history.check)
    return history


def signed_entries(settings: Settings) -> int:
    """Return how many entries of a ledger were signed, as its data directory says.

    Raises CheckpointError if that cannot be read.
    """
    signed = _last_signed(settings)
    return 0 if signed is None else signed.size


def _last_signed(settings: Settings) -> Checkpoint | None:
    """Return what was signed last here, if anything was. Raises CheckpointError."""
    file = settings.signed_checkpoint_path
    try:
        return _read_checkpoint(file) if file.exists() else None
    except (OSError, NoteError) as error:
        raise CheckpointError(f"{file} cannot be read: {error}. Put it back as it was.") from None


def lost_entries(ledger: Ledger, settings: Settings) -> int | None:
    """Return how many entries were signed if the ledger does not continue them; else None.

    Raises LogNotSigned, CheckpointError, and DatabaseUnavailable.
    """
    history = attach_history(ledger, settings)
    try:
        history.check()
    except LedgerRestored:
        return history.signed
    return None


def ask_spent(signed: int, populations: Sequence[str]) -> str:
    """Ask for what was lost of these populations; of the usual one if none is known any more."""
    names = populations or [DEFAULT_POPULATION]
    return (
        f"{signed} entries were signed, and not all of them are here. If there is a newer backup, "
        "restore that: `terrine restore DIR`. If not, say what was spent of "
        f"{', '.join(names)} by projects that are not here any more, the sums of their ε and of "
        f"their δ: {' '.join(f'--spent {name}=EPSILON,DELTA' for name in names)}; --spent "
        f"{names[0]}=0 if there were none."
    )


def make_restored_safe(
    ledger: Ledger,
    settings: Settings,
    spent: Mapping[str, LostSpend],
    origin: str | None = None,
) -> tuple[RestoredProjects, SignerKey | None]:
    """Make a ledger safe that was restored; see `Projects.fill_accounts`.

    Return what was done to projects, and the key of the new log that begins if the ledger does not
    continue what was signed of it; servers sign it once they are restarted. `spent`: what was spent
    of each population by projects that are not here any more; see `Losses.record`. `origin`:
    what the log is called; by default as before, with the next number. Done again, it changes
    nothing that is open.

    Raises Conflict if entries are lost and `spent` leaves out a population, or none are and it
    names any; ServiceError; CheckpointError; NoteError for a name that no log may have; and
    OSError.
    """
    signed = lost_entries(ledger, settings)
    if signed is None and spent:
        if not ledger.losses.have_been():
            raise Conflict(
                "Nothing is lost that was signed: the ledger continues it. Leave out --spent."
            )
        ledger.losses.record(0, spent, of_projects=False)
        return RestoredProjects((), ()), None
    if signed is None:
        return ledger.projects.fill_accounts(), None
    unsaid = sorted({each.name for each in ledger.ensembles.list_populations()} - spent.keys())
    if unsaid or not spent:
        raise Conflict(ask_spent(signed, unsaid))
    done = ledger.projects.fill_accounts()
    ledger.losses.record(signed, spent, of_projects=True)
    return done, _begin_new_log(settings, origin)


def _begin_new_log(settings: Settings, origin: str | None) -> SignerKey | None:
    """Put a new key in the place of the log's, and return it; None if only a file knew of one.

    The old key, and what it signed last, stay beside it under their names and the key's id.
    """
    path, signed = settings.checkpoint_key_path, settings.signed_checkpoint_path
    key = load_checkpoint_key(path)
    if key is None:  # it is elsewhere, or lost
        if not signed.exists():
            raise CheckpointError(
                "Active projects are paused, but a new log must begin, and its key is not here. "
                "Run `terrine ledger restored` where the key is, or `terrine init --origin NAME`, "
                "which makes one of a new log."
            )
        signed.replace(signed.with_name(f"{signed.name}.ended"))
        return None
    name, slash, number_text = key.name.rpartition("/")
    numbered = bool(slash) and number_text.isdecimal()
    following = f"{name}/{int(number_text) + 1}" if numbered else f"{key.name}/2"
    new = SignerKey(origin or following, KeyKind.ED25519, secrets.token_bytes(32))
    SignerKey.parse(new.secret)  # refuses a name that is none
    if new.name == key.name:
        raise CheckpointError(f"The log that ends is called {key.name}: name another --origin.")
    ended = f".{key.verifier.key_id.hex()}"
    try:
        write_secret(path.with_name(path.name + ended), f"{key.secret}\n")
        scratch = path.with_name(f".{path.name}.new")
        scratch.unlink(missing_ok=True)
        write_secret(scratch, f"{new.secret}\n")
        scratch.replace(path)
        if signed.exists():
            signed.replace(signed.with_name(signed.name + ended))
    except OSError as error:  # such as a Secret of Kubernetes
        raise CheckpointError(
            f"Active projects are paused, but a new log must begin, and its key {path} cannot be "
            f"replaced ({error.strerror}). Make another with `terrine --data-dir NEW init --origin "
            f"{new.name}`, and put NEW/checkpoint.key where servers have theirs."
        ) from None
    return new


class Publisher:
    """Signs checkpoints of a ledger, round by round. One round at a time, in all processes.

    `metrics`: what says how the rounds go.
    """

    def __init__(
        self,
        ledger: Ledger,
        key: SignerKey,
        policy: Policy | None,
        seconds: float,
        history: SignedHistory | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self._ledger = ledger
        self._key = key
        self._history = history or SignedHistory(ledger, key.verifier)
        self._metrics = metrics
        self._policy = policy
        self._seconds = seconds
        self._witnesses = {
            name: _Witness(name, party)
            for name, party in (policy.witnesses if policy else {}).items()
            if party.url is not None
        }
        self._last_failure: str | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="checkpoints", daemon=True)

    def start(self) -> None:
        """Publish from now on, in a thread of its own."""
        self._thread.start()

    def stop(self) -> None:
        """Stop after a last round, so that all that was charged here is signed.

        It is left undone if it takes too long, or another process signs.
        """
        self._stop.set()
        self._thread.join(timeout=2 * WITNESS_SECONDS)

    def round(self) -> bool:
        """Log what is new, sign the root, and ask witnesses who have not cosigned it.

        Return False, having done nothing, if another process signs. Raises ServiceError,
        also LedgerRestored if the tree does not continue the one that was signed before.
        """
        with self._ledger.tree.try_lock() as mine:
            if not mine:
                return False
            size = self._ledger.tree.grow()
            kept = self._ledger.tree.checkpoint()
            note = self._next(kept, size)
            note = self._cosigned(note)
            if str(note) != kept:
                self._history.keep(str(note))
                self._ledger.tree.save_checkpoint(str(note), kept)
        return True

    def _run(self) -> None:
        last = False
        while not last:
            last = self._stop.is_set()
            try:
                self._report_round(None, signed=self.round())
            except (ServiceError, CheckpointError, NoteError, ProofError, OSError) as error:
                self._report_round(str(error))
            except Exception as error:  # a defect: charges go on, and somebody should hear of it
                self._report_round(f"{type(error).__name__}: {error}")
            self._stop.wait(self._seconds)

    def _report_round(self, found: str | None, *, signed: bool = False) -> None:
        """Log what is wrong, once, count it against the history, and set the metrics."""
        self._history.report(found)
        if found is not None and found != self._last_failure:
            log.error("no checkpoint was signed", cause=found)
        self._last_failure = found
        if self._metrics is not None and (signed or found is not None):
            self._metrics.signing.set(signed)
            if signed:
                self._metrics.signed.set_to_current_time()

    def _next(self, kept: str | None, size: int) -> Note:
        """Return the signed checkpoint of the tree as it is; the one that was kept if it is that.

        Raises LedgerRestored if the tree does not continue what this key signed before.
        """
        self._history.compare_with_ledger(kept)
        checkpoint = Checkpoint(self._key.name, size, self._ledger.tree.root(size))
        if kept is not None:
            note = Note.parse(kept)
            if note.text == checkpoint.text and note.signers([self._key.verifier]):
                return note
        return Note(checkpoint.text, (self._key.sign(checkpoint.text),))

    def _cosigned(self, note: Note) -> Note:
        """Return the note with all cosignatures that witnesses give now, and those it had."""
        if self._policy is None or not self._witnesses:
            return note
        there = self._policy.cosigned(note)
        asked = [
            witness
            for name, witness in self._witnesses.items()
            if there.get(name, 0) < time.time() - REFRESH_SECONDS and witness.may_retry
        ]
        if not asked:
            return note
        with ThreadPoolExecutor(min(len(asked), MAX_PARALLEL_WITNESSES)) as pool:
            given = [g for g in pool.map(lambda w: w.ask(self._ledger, note), asked) if g]
        new = {(signature.name, signature.key_id) for signature in given}
        old = [s for s in note.signatures if (s.name, s.key_id) not in new]
        return Note(note.text, (*old, *given))


def sign_now(ledger: Ledger, settings: Settings) -> str:
    """Return a checkpoint of everything that is in the ledger, as `Publisher.round` makes it.

    Raises CheckpointError also if there is no key, or another process signs all the time.
    """
    key = load_checkpoint_key(settings.checkpoint_key_path)
    if key is None:
        raise CheckpointError(
            f"The key of the log, {settings.checkpoint_key_path}, does not exist. "
            "Run `terrine init`, which makes one, or says which to put back."
        )
    policy = load_policy(settings.log_policy_path)
    # Who signs from elsewhere, by a key and a database of other places, has no data directory.
    signed = settings.signed_checkpoint_path if settings.data_dir.is_dir() else None
    history = SignedHistory(ledger, key.verifier, signed)
    publisher = Publisher(ledger, key, policy, settings.checkpoint_seconds, history)
    due = time.monotonic() + SIGNING_WAIT_SECONDS
    while not publisher.round():
        if time.monotonic() > due:
            raise CheckpointError("Another process signs all the time. Try again.")
        time.sleep(0.1)
    note = ledger.tree.checkpoint()
    assert note is not None  # noqa: S101 - the round kept one
    return note


class _Witness:
    """A witness of the policy: what it cosigned, and how often it failed."""

    def __init__(self, name: str, party: Party) -> None:
        self._name = name
        self._key: VerifierKey = party.key
        self._url = f"{(party.url or '').rstrip('/')}/add-checkpoint"
        self._seen = 0
        self._failures = 0
        self._until = 0.0

    @property
    def may_retry(self) -> bool:
        """Whether it may be asked again after failures."""
        return time.monotonic() >= self._until

    def ask(self, ledger: Ledger, note: Note) -> Signature | None:
        """Return its cosignature of a checkpoint (c2sp.org/tlog-witness); None if it gives none."""
        try:
            signature = self._add_checkpoint(ledger, note)
        except (*UNREACHABLE, NoteError, ProofError, ServiceError) as error:
            self._failures += 1
            pause = min(2.0 ** (self._failures - 1), MAX_PAUSE_SECONDS)
            self._until = time.monotonic() + pause
            if self._failures == 1:
                cause = str(error) or type(error).__name__
                log.warning("no cosignature", witness=self._name, cause=cause)
            return None
        if self._failures:
            log.info("cosigned again", witness=self._name)
        self._failures, self._until = 0, 0.0
        return signature

    def _add_checkpoint(self, ledger: Ledger, note: Note) -> Signature:
        size = Checkpoint.parse(note.text).size
        for _ in range(3):  # it may have cosigned another one meanwhile
            if self._seen > size:
                raise NoteError(
                    f"the witness has cosigned {self._seen} leaves, and this log has {size}: the "
                    "database is older than what was published"
                )
            status, kind, answer = self._post(_request_body(self._seen, ledger, note, size))
            if status == 409 and kind.startswith(SIZE_TYPE):
                self._seen = parse_decimal(answer.removesuffix("\n"))
                continue
            if status == 409:
                raise NoteError(f"the witness has cosigned another tree of {size} leaves")
            if status != 200:
                raise NoteError(f"the witness answered {status}: {answer.strip()[:200]}")
            for line in answer.splitlines():
                signature = Signature.parse(line)
                if (signature.name, signature.key_id) == (self._key.name, self._key.key_id):
                    self._key.verify(note.text, signature.signed)
                    self._seen = size
                    return signature
            raise NoteError("the answer has no cosignature with the witness's key")
        raise NoteError("the witness says another size each time")

    def _post(self, body: str) -> tuple[int, str, str]:
        """Return status, media type and text of the answer, of which a note's length is read."""
        with httpx.stream(
            "POST", self._url, content=body.encode(), timeout=WITNESS_SECONDS
        ) as response:
            answer, due = bytearray(), time.monotonic() + WITNESS_SECONDS
            for part in response.iter_bytes():
                answer += part
                if len(answer) > MAX_NOTE_BYTES or time.monotonic() > due:
                    raise NoteError("the answer is too long, or comes too slowly")
            kind = response.headers.get("content-type", "")
            return response.status_code, kind, answer.decode("utf-8", "replace")


def _request_body(seen: int, ledger: Ledger, note: Note, size: int) -> str:
    def lines() -> Iterator[str]:
        yield f"old {seen}\n"
        for hash in ledger.tree.consistency(seen, size):
            yield f"{base64.b64encode(hash).decode()}\n"

    return f"{''.join(lines())}\n{note}"
