"""Real servers: in this process, in others, in containers, with witnesses of their logs."""

from __future__ import annotations

import base64
import http.client
import json
import os
import queue
import re
import secrets
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from getpass import getuser
from ipaddress import ip_address
from itertools import count
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import httpx
import numpy as np
import pytest
import uvicorn
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from sklearn.datasets import load_digits
from sqlalchemy import Engine

from support import processes
from support.data import DigitsEnsemble
from support.databases import SECRET_KEY, SERVICE, as_owner, migrated
from support.documents import ROOT
from support.ledgers import terms
from support.processes import PATIENCE_SECONDS, Done, Terrine, held_port, run_program, until
from terrine_protocol import EnsembleRegister, ProjectOpen, Role, TokenCreate, transparency
from terrine_protocol.transparency import Checkpoint, KeyKind, Note, Policy, SignerKey, VerifierKey
from terrine_server.app import serving
from terrine_server.ledger import Ledger, NewProject, ProjectRecord, connect
from terrine_server.owner.checkpoints import Publisher
from terrine_server.owner.operations import open_project, register_ensemble
from terrine_server.owner.sign_in import Tokens, load_secret_key
from terrine_server.planning.opening import choose
from terrine_server.privacy import build_mechanism
from terrine_server.serving import listening
from terrine_server.serving.connections import uvicorn_options
from terrine_server.settings import Settings

if TYPE_CHECKING:
    from terrine_addons.witness.service import Witness


CAP_EPSILON, CAP_DELTA = 50.0, 5e-4
GNMAX = {"name": "gnmax", "sigma": 4.0}
"""Of 40 votes."""
INTERACTIVE = {
    "name": "interactive_gnmax",
    "threshold": 25,
    "sigma1": 8.0,
    "sigma2": 4.0,
    "confidence": 0.9,
}


class Owner:
    """What the owner of a service with the digits does on its machine, without HTTP."""

    ledger: Ledger
    ensemble: DigitsEnsemble

    def open_project(
        self,
        name: str = "study",
        mechanism: Mapping[str, Any] = GNMAX,
        *,
        epsilon: float = 5.0,
        delta: float = 1e-5,
        ensemble: str | None = None,
    ) -> ProjectRecord:
        """Open a project, on the digits unless an ensemble is named."""
        terms = {
            "name": name,
            "ensemble": ensemble or self.ensemble.manifest.name,
            "mechanism": mechanism,
            "epsilon": epsilon,
            "delta": delta,
        }
        return open_project(self.ledger, ProjectOpen.model_validate(terms))

    def token(self, role: str = "student", project: str | None = None, **more: Any) -> str:
        """Create a token; `more` is as in the API. A student's is of "study" by default."""
        if role == Role.STUDENT and project is None:
            project = "study"
        wanted = {"role": role, "project": project, "expires_in_days": 400, **more}
        return Tokens(self.ledger, SECRET_KEY).create(TokenCreate.model_validate(wanted)).token


@dataclass(frozen=True)
class RunningServer(Owner):
    """A server that listens at `url`, and its owner."""

    url: str
    settings: Settings
    ledger: Ledger
    ensemble: DigitsEnsemble

    @property
    def variables(self) -> dict[str, str]:
        """The environment of its owner's commands."""
        home, database = str(self.settings.data_dir), self.settings.database
        return {"TERRINE_DATA_DIR": home, "TERRINE_DATABASE_URL": database}


def installed(
    data_dir: Path,
    database_url: str,
    ensemble: DigitsEnsemble,
    kind: type[Settings] = Settings,
    /,
    **settings: Any,
) -> tuple[Settings, Engine]:
    """Prepare a server's tables and key, and register the digits with a cap of (50, 5e-4).

    The ensemble's files are copied: a test may alter them. `settings` override the defaults of
    this kind of settings, such as those of an add-on.
    """
    made = kind(data_dir=data_dir, database_url=database_url, **settings)
    made.ensembles_dir.mkdir(parents=True, exist_ok=True)
    made.secret_key_path.write_bytes(SECRET_KEY)
    made.secret_key_path.chmod(0o600)
    engine = migrated(database_url)
    register(made, Ledger(engine, SECRET_KEY), ensemble)
    return made, engine


def register(settings: Settings, ledger: Ledger, ensemble: DigitsEnsemble) -> None:
    """Copy an ensemble's files to a server, and register it."""
    name = ensemble.manifest.name
    shutil.copytree(ensemble.directory, settings.ensembles_dir / name)
    delta = min(CAP_DELTA, 0.9 / ensemble.manifest.units)  # of MNIST, less is allowed
    wanted = EnsembleRegister(name=name, epsilon=CAP_EPSILON, delta=delta)
    register_ensemble(ledger, settings, wanted)


@contextmanager
def running_server(
    data_dir: Path,
    database_url: str,
    ensemble: DigitsEnsemble,
    kind: type[Settings] = Settings,
    /,
    **settings: Any,
) -> Iterator[RunningServer]:
    """Serve the digits from `data_dir` on a free port, in a thread; see `installed`."""
    made, engine = installed(data_dir, database_url, ensemble, kind, **settings)
    with serving(made) as url:
        yield RunningServer(url, made, Ledger(engine, SECRET_KEY), ensemble)
    engine.dispose()


@contextmanager
def behind_nginx(url: str, prefix: str, directory: Path) -> Iterator[httpx.HTTPTransport]:
    """Yield a way to an nginx that has the server at `url` below a prefix, as the manual says."""
    program = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        pytest.skip("NO NGINX: no proxy has the server below a path here. apt-get install nginx")
    manual = (ROOT / "docs" / "deploying.md").read_text()
    place = manual.partition("```nginx\n")[2].partition("```")[0]
    assert "location /terrine/ {" in place
    assert "http://127.0.0.1:8000;" in place
    place = place.replace("/terrine/", f"{prefix}/").replace("http://127.0.0.1:8000", url)
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    files = " ".join(f"{kind}_temp_path {directory / kind};" for kind in kinds)
    door, settings = directory / "door", directory / "nginx.conf"
    settings.write_text(
        f"daemon off; user {getuser()}; pid {directory / 'pid'}; error_log stderr; events {{}}\n"
        f"http {{ access_log off; {files}\nserver {{ listen unix:{door};\n{place}}} }}\n"
    )
    with subprocess.Popen([program, "-c", settings, "-p", directory]) as process:
        try:
            until(lambda: door.exists() or process.poll() is not None)
            assert process.poll() is None
            with httpx.HTTPTransport(uds=str(door)) as way:
                yield way
        finally:
            process.terminate()


NOISY = {"name": "gnmax", "sigma": 400.0}


@dataclass(frozen=True)
class Machine:
    """A data owner's machine: its data directory, its database, its commands."""

    data: Path
    database_url: str
    run: Terrine

    @property
    def ensemble(self) -> Path:
        return self.data / "ensembles" / "digits"

    @property
    def ledger(self) -> Ledger:
        return Ledger(connect(self.database_url), SECRET_KEY)

    def init(self) -> Done:
        """Run `terrine init`: on PostgreSQL as the tables' owner, for the role that then serves."""
        owner = as_owner(self.database_url)
        role = () if owner == self.database_url else ("--service-role", SERVICE)
        return self.run("init", *role, TERRINE_DATABASE_URL=owner)

    def student(self, project: str, queries: int, ensemble: str = "digits") -> dict[str, str]:
        """Return the headers of a student whose new project pays for exactly `queries`."""
        quoted = terms(queries, NOISY, self.ledger.ensembles.get(ensemble).population.rule)
        self.ledger.projects.open(NewProject(project, ensemble, NOISY, quoted))
        return self.bearer(Role.STUDENT, project)

    def bearer(self, role: str, project: str | None = None) -> dict[str, str]:
        """Return the headers of the holder of a new token."""
        tokens = Tokens(self.ledger, load_secret_key(self.data / "secret.key"))
        made = tokens.create(TokenCreate(role=Role(role), project=project))
        return {"Authorization": f"Bearer {made.token}"}

    def doctor(self, **variables: str) -> dict[str, Any]:
        """Return the output of `terrine --json doctor`; its exit code must agree."""
        done = self.run("--json", "doctor", **variables)
        report: dict[str, Any] = json.loads(done.out)
        assert done.code == (0 if report["ok"] else 1)
        assert done.err == ""
        return report

    def wrong(self, **variables: str) -> list[tuple[str, str, str, str]]:
        """Return all findings that are not ok, as (check, state, found, fix)."""
        findings = self.doctor(**variables)["findings"]
        for finding in findings:
            assert bool(finding["fix"]) == (finding["state"] != "ok"), finding
        return [tuple(f.values()) for f in findings if f["state"] != "ok"]


def question(number: int) -> dict[str, Any]:
    """Return a request with an input that is different for every number."""
    image = np.zeros((8, 8), dtype=np.uint8)
    image.flat[:4] = [number // 17**k % 17 for k in range(4)]
    return {"inputs": [image.tolist()]}


class Serving:
    """A server in a separate process, its address, and its log so far."""

    def __init__(self, process: BaseProcess, log: Path) -> None:
        self.process = process
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, args=(log,), daemon=True)
        self._reader.start()
        self.url = self.wait_for(r"running on (http://\S+)")[0]

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def _read(self, log: Path) -> None:
        with log.open() as lines:  # until the last process that writes to it has ended
            for line in lines:
                self.lines.append(line)

    def entries(self, event: str) -> list[dict[str, Any]]:
        """Return the log lines, each a JSON object, whose event matches."""
        entries: list[dict[str, Any]] = [json.loads(line) for line in list(self.lines)]
        return [entry for entry in entries if re.search(event, entry["event"])]

    def wait_for(self, event: str, count: int = 1) -> list[str]:
        """Wait for `count` log lines; return what the pattern's group matched in each."""
        pattern = re.compile(event)
        return until(
            lambda: [
                found[pattern.groups]
                for e in self.entries(event)
                if (found := pattern.search(e["event"]))
            ],
            lambda found: len(found) >= count,
        )

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        os.kill(self.pid, how)
        self.process.join(timeout=PATIENCE_SECONDS)
        self._reader.join(timeout=PATIENCE_SECONDS)
        assert not self._reader.is_alive(), "a process outlived the server"
        assert self.process.exitcode is not None
        return self.process.exitcode


@contextmanager
def serving_process(
    machine: Machine, *options: str, descriptors: tuple[int, int] | None = None, **settings: object
) -> Iterator[Serving]:
    """Serve; `settings` override the defaults. `descriptors`: see `processes.command`."""
    variables = {
        "TERRINE_DATA_DIR": str(machine.data),
        "TERRINE_DATABASE_URL": machine.database_url,
        "TERRINE_REQUESTS_PER_MINUTE": "1000000",
        **{f"TERRINE_{name.upper()}": str(value) for name, value in settings.items()},
    }
    with started("serve", "--port", "0", *options, descriptors=descriptors, **variables) as server:
        yield server


@contextmanager
def started(
    *arguments: str, descriptors: tuple[int, int] | None = None, **variables: str
) -> Iterator[Serving]:
    """Run `terrine` with arguments that make it serve, and with these environment variables."""
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory, "log")
        os.mkfifo(log)
        given = (arguments, os.environ | variables, str(log), descriptors)
        process = processes.start(processes.command, *given, daemon=False)
        try:
            yield Serving(process, log)
        finally:
            process.kill()
            process.join()


PEOPLE = {"name": "neighbours", "sigma": 400.0}


class Replicas:
    """Servers of one data directory and one database, each on a port that it keeps."""

    def __init__(self, settings: Settings, engine: Engine, count: int) -> None:
        self.engine = engine
        self.ledger = Ledger(engine, SECRET_KEY)
        self.database_url = settings.database
        self._held = [held_port() for _ in range(count)]
        self.ports = [each.getsockname()[1] for each in self._held]
        self._settings = settings
        self._log = settings.data_dir / "log"
        self._running = [self._launch(port) for port in self.ports]

    def __len__(self) -> int:
        return len(self.ports)

    def url(self, replica: int) -> str:
        return f"http://127.0.0.1:{self.ports[replica]}"

    def start(self, replica: int) -> None:
        """Run `terrine serve` on the replica's port; do not wait for it."""
        self._running[replica] = self._launch(self.ports[replica])

    def kill(self, replica: int) -> None:
        """SIGKILL it."""
        self._running[replica].kill()
        self._running[replica].join()

    def refusal(self, replica: int) -> str:
        """What it said last, when it ended by itself instead of serving."""
        self._running[replica].join(PATIENCE_SECONDS)
        assert self._running[replica].exitcode, "it ought to have refused to serve"
        return self._log.read_text().splitlines()[-1]

    def stop(self, replica: int) -> None:
        """SIGTERM it, and wait for its end."""
        self._running[replica].terminate()
        self._running[replica].join()

    def listens(self, replica: int) -> bool:
        """Whether it does now."""
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.ports[replica])):
            return True
        return False

    def wait_until_ready(self, replica: int) -> None:
        """Wait until it listens, which it does once its ensembles are loaded.

        A server that exits by itself, because its database is down, is restarted, as a supervisor
        would do.
        """
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            with suppress(OSError, http.client.HTTPException):
                connection = http.client.HTTPConnection("127.0.0.1", self.ports[replica], timeout=9)
                connection.request("GET", "/healthz")
                if connection.getresponse().status == 200:
                    return
            if time.monotonic() > deadline:
                raise RuntimeError(f"no server started: {self._log.read_text()[-3000:]}")
            if self._running[replica].exitcode is not None:
                self.start(replica)
            time.sleep(0.02)

    def open_project(self, name: str, queries: int) -> str:
        """Open a project whose budget pays for exactly `queries`; return a token for it.

        In one called "people", people vote: see `register`.
        """
        if name == "people":
            spec = PEOPLE | {"queries": queries}
            facts, rule = (
                self.ledger.ensembles.get(name).facts,
                self.ledger.ensembles.get(name).population.rule,
            )
            mechanism = build_mechanism(spec, teachers=facts.teachers, classes=len(facts.classes))
            agreed = choose(mechanism, 8.0, 1e-6, cap_rule=rule).terms
            self.ledger.projects.open(NewProject(name, name, spec, agreed))
        else:
            agreed = terms(queries, NOISY, self.ledger.ensembles.get("digits").population.rule)
            self.ledger.projects.open(NewProject(name, "digits", NOISY, agreed))
        tokens = Tokens(self.ledger, load_secret_key(self._settings.secret_key_path))
        return tokens.create(TokenCreate(role=Role.STUDENT, project=name)).token

    def register(self, ensemble: DigitsEnsemble) -> None:
        """Register another ensemble, while the servers run."""
        register(self._settings, self.ledger, ensemble)

    def close(self) -> None:
        for replica in range(len(self)):
            self.kill(replica)
        for each in self._held:
            each.close()
        self.engine.dispose()

    def _launch(self, port: int) -> BaseProcess:
        environment = os.environ | {
            "TERRINE_DATA_DIR": str(self._settings.data_dir),
            "TERRINE_DATABASE_URL": self.database_url,
            "TERRINE_REQUESTS_PER_MINUTE": "10000000",
            "TERRINE_LOG_LEVEL": "warning",
        }
        serve = ("serve", "--port", str(port))
        return processes.start(processes.command, serve, environment, str(self._log))


@contextmanager
def replicas(
    data_dir: Path, database_url: str, ensemble: DigitsEnsemble, count: int
) -> Iterator[Replicas]:
    """Prepare a data directory and a database with the digits; start `count` servers on them."""
    started = Replicas(*installed(data_dir, database_url, ensemble), count)
    try:
        for replica in range(count):
            started.wait_until_ready(replica)
        yield started
    finally:
        started.close()


NUMBERS = count()
"""Of servers, each of which has a log of its own."""


def certified(directory: Path, name: str) -> Path:
    """Make a certificate for 127.0.0.1, and its key beside it; it signs itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    who = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(who)
        .issuer_name(who)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=10))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    (directory / f"{name}.key").write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    path = directory / f"{name}.pem"
    path.write_bytes(made.public_bytes(pem))
    return path


@contextmanager
def small_server(certificate: Path, *arguments: object, **variables: object) -> Iterator[str]:
    """Run a `terrine` command that serves over TLS, with these settings; yield its URL."""
    given = {
        "PORT": 0,  # a free one
        "CERTIFICATE_FILE": certificate,
        "CERTIFICATE_KEY_FILE": certificate.with_suffix(".key"),
        **variables,
    }
    settings = {f"TERRINE_{name}": str(value) for name, value in given.items()}
    log = certificate.with_suffix(f".{next(NUMBERS)}.log")
    log.touch()
    command = tuple(map(str, arguments))
    server = processes.start(processes.command, command, os.environ | settings, str(log))
    try:
        trusted = ssl.create_default_context(cafile=certificate)

        def address() -> str | None:
            assert server.is_alive(), log.read_text()
            found = re.search(r"on (https://127\.0\.0\.1:\d+)\.", log.read_text())
            if found is not None:
                with suppress(httpx.TransportError):
                    httpx.get(f"{found[1]}/", verify=trusted)
                    return found[1]
            return None

        url = until(address)
        assert url is not None
        yield url
    finally:
        server.kill()
        server.join()


LOG = SignerKey("log.example/1", KeyKind.ED25519, bytes(range(32)))
"""The owner's key in tests."""


def witness_key(name: str) -> SignerKey:
    """The key of a witness in tests."""
    return SignerKey(f"{name}.example", KeyKind.COSIGNATURE, name.encode().ljust(32, b"."))


@dataclass(frozen=True)
class RunningWitness:
    """A witness that listens at `url`."""

    name: str
    url: str
    key: VerifierKey
    witness: Witness

    @property
    def line(self) -> str:
        return f"witness {self.name} {self.key} {self.url}"


@contextmanager
def witnessing(state: Path, name: str = "w", port: int = 0) -> Iterator[RunningWitness]:
    """Serve a witness of this log in a thread, with its state in this directory."""
    service = pytest.importorskip("terrine_addons.witness.service")
    key = witness_key(name)
    witness: Witness = service.Witness(key, [LOG.verifier], state)
    (own,) = listening.bind("127.0.0.1", port)
    app = service.serve_app(witness)
    config = uvicorn.Config(app, log_level="critical", **uvicorn_options(service.LIMITS))
    urls = queue.Queue[str]()
    server = listening.ListeningServer(config, urls.put)
    thread = threading.Thread(target=server.run, args=([own],), daemon=True)
    thread.start()
    try:
        url = urls.get(timeout=PATIENCE_SECONDS)
        yield RunningWitness(name, url, key.verifier, witness)
    finally:
        server.should_exit = True
        thread.join()
        witness.close()


def policy_text(*witnesses: RunningWitness, quorum: str = "all", log: SignerKey = LOG) -> str:
    """A policy that needs the log's signature, and those of `quorum` of the witnesses."""
    lines = [f"log {log.verifier}", *(witness.line for witness in witnesses)]
    if witnesses:
        lines += [f"group witnesses {quorum} {' '.join(w.name for w in witnesses)}"]
    return "\n".join([*lines, f"quorum {'witnesses' if witnesses else 'none'}", ""])


def policy_of(*witnesses: RunningWitness, quorum: str = "all") -> Policy:
    return Policy.parse(policy_text(*witnesses, quorum=quorum).encode())


def log_settings(directory: Path, database_url: str, witness: RunningWitness) -> Settings:
    """Settings of a service whose log this witness cosigns; its files are made in `directory`."""
    policy = directory / "policy"
    policy.write_text(policy_text(witness))
    settings = Settings(
        data_dir=directory,
        database_url=database_url,
        checkpoint_seconds=0.1,
        log_policy_file=policy,
    )
    settings.secret_key_path.write_bytes(SECRET_KEY)
    settings.checkpoint_key_path.write_text(LOG.secret)
    return settings


def publisher(ledger: Ledger, policy: Policy | None = None) -> Publisher:
    """The owner's publisher, whose rounds a test runs itself."""
    return Publisher(ledger, LOG, policy, 3600)


def signed(size: int, root: bytes, log: SignerKey = LOG) -> str:
    """A checkpoint that the log signed."""
    text = Checkpoint(log.name, size, root).text
    return str(Note(text, (log.sign(text),)))


def root_of(leaves: Iterable[bytes]) -> bytes:
    """The root over leaves, given by their hashes."""
    tree = transparency.Frontier()
    for leaf in leaves:
        tree.append(leaf)
    return tree.root


class History:
    """A history of a log in memory: what it could have signed, and how it could prove it."""

    def __init__(self, name: str, entries: int, shared: int = 0) -> None:
        texts = [f"{'shared' if n < shared else name} {n}" for n in range(entries)]
        self._leaves = [transparency.leaf_hash(text.encode()) for text in texts]

    def root(self, size: int) -> bytes:
        return root_of(self._leaves[:size])

    def note(self, size: int) -> str:
        return signed(size, self.root(size))

    def body(self, old: int, size: int) -> bytes:
        """The body of `add-checkpoint`."""
        lines = [f"old {old}", *map(_base64, self.proof(old, size)), "", self.note(size)]
        return "\n".join(lines).encode()

    def proof(self, old: int, size: int) -> list[bytes]:
        return transparency.prove_consistency(old, size, self._perfect)

    def _perfect(self, height: int, index: int) -> bytes:
        return root_of(self._leaves[index << height : (index + 1) << height])


def _base64(hash: bytes) -> str:
    return base64.b64encode(hash).decode()


REPOSITORY = Path(__file__).resolve().parents[2]
SECRETS = ("db_password", "service_password", "secret_key")


@dataclass(frozen=True)
class Composition:
    """One run of docker-compose.yml, with its own name, port and secrets."""

    files: tuple[Path, ...]
    environment: dict[str, str]
    url: str

    def __call__(
        self, *arguments: str | Path, stdin: IO[bytes] | None = None
    ) -> subprocess.CompletedProcess[str]:
        files = [part for file in self.files for part in ("--file", str(file))]
        return run_program(
            "docker",
            "compose",
            *files,
            *map(str, arguments),
            cwd=REPOSITORY,
            env=self.environment,
            stdin=stdin,
        )

    def succeed(self, *arguments: str | Path, stdin: IO[bytes] | None = None) -> str:
        done = self(*arguments, stdin=stdin)
        assert done.returncode == 0, f"{arguments}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def type_in(self, line: str, cwd: Path = REPOSITORY) -> str:
        """Run a page's line on a terminal, which `docker compose exec` wants; return its output."""
        done = run_program(
            "script",
            "--quiet",
            "--return",
            "--command",
            line,
            os.devnull,
            cwd=cwd,
            env=self.environment | {"COMPOSE_FILE": ":".join(map(str, self.files))},
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}"
        return done.stdout

    def start_again(self) -> None:
        """Start what is not running, and wait until the proxy, which is, has found it."""
        self.succeed("up", "--detach", "--wait")
        until(lambda: httpx.get(f"{self.url}/readyz").status_code == 200)

    def terrine(self, *arguments: str) -> str:
        """Run `terrine` in a separate container, next to the server's."""
        return self.succeed("run", "--rm", "--no-TTY", "--no-deps", "server", *arguments)

    def with_files(self, directory: Path, file: str, *arguments: str) -> str:
        """Run `terrine` beside a file, or a directory, of `directory`."""
        send = ["tar", "--directory", str(directory), "--create", file]
        with subprocess.Popen(send, stdout=subprocess.PIPE) as sent:
            return self.succeed(
                "run", "--rm", "--no-TTY", "with-files", *arguments, stdin=sent.stdout
            )

    def with_teachers(self, directory: Path) -> np.ndarray:
        """Train and register teachers inside; return images that they have not seen."""
        data = load_digits()
        images = data.images.astype(np.uint8)
        file = directory / "digits.npz"
        names = [str(name) for name in range(10)]
        np.savez(file, x=images[:1200], y=data.target[:1200], classes=names)
        file.chmod(0o600)
        train = ("ensemble", "train", file.name, "--name", "digits", "--teachers", "20")
        self.with_files(directory, file.name, *train)
        self.terrine("ensemble", "register", "digits", "--epsilon", "20", "--delta", "1e-4")
        unseen: np.ndarray = images[1200:]
        return unseen

    def student(self, project: str, ensemble: str) -> httpx.Client:
        """Open a project; return what its student asks with, through the proxy."""
        self.terrine(
            "project",
            "open",
            project,
            "--ensemble",
            ensemble,
            "--mechanism",
            "gnmax:sigma=4",
            "--epsilon",
            "8",
            "--delta",
            "1e-5",
        )
        made = self.terrine("token", "create", "--role", "student", "--project", project)
        headers = {"Authorization": f"Bearer {made.strip()}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=90)


def docker(*arguments: str) -> str:
    done = run_program("docker", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextmanager
def composed(
    directory: Path, images: dict[str, str] | None = None, **variables: str
) -> Iterator[Composition]:
    """Yield a composition that nobody has started yet. Nothing of it may remain after `down`.

    `images`: of services beside the usual ones, by the suffix of an image of this run.
    """
    for name in SECRETS:
        (directory / name).write_text(secrets.token_hex(32))
        (directory / name).chmod(0o444)
    name = f"terrine-test-{secrets.token_hex(4)}"
    images = {"migrate": "", "server": "", "with-files": "", "proxy": "-proxy"} | (images or {})
    override = directory / "override.yml"
    override.write_text(
        "services:\n"
        + "".join(f'  {each}: {{image: "{name}{suffix}"}}\n' for each, suffix in images.items())
    )
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    of_this_run = {
        "COMPOSE_PROJECT_NAME": name,
        "SECRETS_DIR": str(directory),
        "TERRINE_PORT": str(port),
        "REPLICAS": "1",
        "BUILDKIT_PROGRESS": "plain",
        **variables,
    }
    composition = Composition(
        files=(REPOSITORY / "docker-compose.yml", override),
        environment=os.environ | of_this_run,
        url=f"http://127.0.0.1:{port}",
    )
    down = ("down", "--volumes", "--timeout", "10")
    try:
        yield composition
        composition.succeed(*down)
        mine = f"label=com.docker.compose.project={name}"
        for kind in (["ps", "--all"], ["volume", "ls"], ["network", "ls"]):
            assert docker(*kind, "--quiet", "--filter", mine) == ""
    finally:
        composition(*down)
        remove = ["docker", "image", "rm", *{f"{name}{suffix}" for suffix in images.values()}]
        subprocess.run(remove, capture_output=True, check=False)
