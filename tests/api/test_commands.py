"""The owner's commands, as a person types them: real processes, real exit codes."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.data import DigitsEnsemble
from support.processes import Terrine, run_program
from support.servers import started
from support.wording import holds
from terrine_server.cli.console import as_typed, command_text, explain

BARE = "torch fastapi sqlalchemy alembic scipy uvicorn pydantic_settings"
HEAVY = {
    "": BARE,
    "ensemble": BARE,
    "student label": "torch pyarrow sklearn scipy sqlalchemy",
    "ledger show": "torch pyarrow sklearn fastapi",
    "ensemble show": "torch pyarrow sklearn",
}
"""What each command does not import. One process runs all, those that import least first."""


@pytest.mark.slow
def test_a_command_imports_no_more_than_it_needs() -> None:
    code = f"""
import json, sys
from terrine_server.cli import main
found = {{}}
for words, heavy in {HEAVY!r}.items():
    sys.argv = ["terrine", *words.split(), "--help"]
    try:
        main()
    except SystemExit as ended:
        assert not ended.code, ended.code
    found[words] = [each for each in heavy.split() if each in sys.modules]
print(json.dumps(found))
"""
    done = run_program(sys.executable, "-c", code, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == {words: [] for words in HEAVY}


@pytest.mark.slow
def test_a_server_without_teachers_of_its_own_loads_no_pytorch() -> None:
    """It takes as much memory as all else together."""
    code = """
import sys
from terrine_server.app import create_app
from terrine_server.cli import main
from terrine_server.settings import Settings
sys.argv = ["terrine", "init"]
try:
    main()
except SystemExit as ended:
    assert not ended.code, ended.code
create_app(Settings())
print([heavy for heavy in ("torch", "sklearn", "pyarrow", "onnxruntime") if heavy in sys.modules])
"""
    done = run_program(sys.executable, "-c", code, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_serve_refuses_to_start_until_all_is_set_up(
    terrine: Terrine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    monkeypatch.setenv("TERRINE_PORT", "0")
    assert "terrine init" in terrine("serve").refused
    assert not data.exists()
    terrine("init").fine  # noqa: B018 - asserts
    key = data / "secret.key"
    assert key.stat().st_mode & 0o777 == 0o600
    secret = key.read_text()

    key.unlink()
    assert "terrine init" in terrine("serve").refused
    key.write_text("short")
    holds(terrine("serve").refused, "secret.key", "init")
    key.write_text(secret)
    (data / "terrine.sqlite").unlink()
    assert "terrine init" in terrine("serve").refused
    holds(terrine("init").fine, "Kept", "key")
    assert key.read_text() == secret
    nowhere = "postgresql+psycopg://nobody:hush@127.0.0.1:1/nothing"
    unreachable = terrine("serve", TERRINE_DATABASE_URL=nowhere).refused
    assert "127.0.0.1" in unreachable
    assert "hush" not in unreachable
    assert "port" in terrine("serve", TERRINE_PORT="many").refused
    misspelt = terrine("serve", TERRINE_REQUEST_PER_MINUTE="5").refused
    holds(misspelt, "TERRINE_REQUESTS_PER_MINUTE?")
    for name in ("TERRINE_HOST", "TERRINE_DATABASE_URL", "TERRINE_DATA_DIR"):
        holds(terrine("serve", **{name: ""}).refused, name, "empty")
    assert "quantum" in terrine("serve", TERRINE_DEVICE="quantum").refused
    junk = tmp_path / "junk.sqlite"
    junk.write_bytes(bytes(range(256)) * 16)
    for command in ("init", "serve"):
        said = terrine(command, TERRINE_DATABASE_URL=f"sqlite:///{junk}").refused
        holds(said, "database")
        assert "defect" not in said
    gone = str(tmp_path / "no-such-secret")
    assert gone in terrine("serve", TERRINE_DATABASE_PASSWORD_FILE=gone).refused


@pytest.mark.slow
def test_an_owner_goes_from_nothing_to_a_served_label_and_back(
    terrine: Terrine, tmp_path: Path, digits_ensemble: DigitsEnsemble
) -> None:
    data = tmp_path / "data"
    terrine("init").fine  # noqa: B018
    budget = ["--epsilon", "5", "--delta", "1e-5"]
    opening = ["--ensemble", "digits", "--mechanism", "gnmax:sigma=4", *budget]
    holds(terrine("project", "open", "study", *opening).refused, "ensemble")
    shutil.copytree(digits_ensemble.directory, data / "ensembles" / "digits")
    register = ["ensemble", "register", "digits", "--epsilon", "20", "--delta"]
    outside = terrine("ensemble", "register", "../digits", *register[3:], "1e-4").refused
    holds(outside, "NAME", 64)
    assert "delta" in terrine(*register, "2").refused
    terrine(*register, "1e-4").fine  # noqa: B018
    holds(terrine(*register, "1e-4").refused, "registered", "already")
    assert "digits" in terrine("ensemble", "show").fine

    for absurd in ("0.001", "-1", "0", "nan", "inf"):
        said = terrine(
            "project", "open", "study", *opening, "--mechanism", f"gnmax:sigma={absurd}"
        ).refused
        assert "sigma" in said
    for absurd in ("-1", "0", "inf", "nan"):
        said = terrine("project", "open", "study", *opening, "--epsilon", absurd).refused
        assert "epsilon" in said
    assert "δ is 0.01" in terrine("project", "open", "study", *opening, "--delta", "0.01").refused
    holds(terrine("project", "open", "study", *opening).fine, "queries", "left")
    assert "study" in terrine("project", "show").fine
    assert "gnmax" in terrine("project", "show", "study").fine
    assert "nobody" in terrine("project", "show", "nobody").refused
    assert "project" in terrine("token", "create", "--role", "student").refused
    token = terrine("token", "create", "--role", "student", "--project", "study").fine.strip()
    assert re.fullmatch(r"terrine_[0-9a-f]{16}_[0-9a-f]{64}", token)

    with started("--data-dir", str(data), "serve", "--port", "0") as server:
        student = httpx.Client(base_url=server.url, headers={"Authorization": f"Bearer {token}"})
        body = {"inputs": digits_ensemble.public[:2].tolist()}
        assert student.post("/label", json=body).status_code == 200
        terrine("project", "pause", "study").fine  # noqa: B018
        holds(terrine("project", "pause", "--all").fine, "No")
        holds(terrine("project", "resume", "--all").fine, "Nothing")
        terrine("project", "resume", "study").fine  # noqa: B018
        holds(terrine("project", "pause", "--all").fine, "study", "resume", "--all")
        holds(terrine("project", "pause", "study", "--all").refused, "--all")
        holds(terrine("project", "resume").refused, "--all")
        assert student.post("/label", json=body).json()["type"].endswith("project-paused")
        holds(terrine("project", "resume", "--all").fine, "Resumed", "study")
        assert student.post("/label", json=body).status_code == 200
        listed = terrine("token", "list").fine
        assert token.split("_")[1] in listed
        assert token.split("_")[2] not in listed
        terrine("token", "revoke", token.split("_")[1]).fine  # noqa: B018
        assert student.post("/label", json=body).status_code == 401
        holds(terrine("project", "close", "nobody").refused, "nobody")  # without a prompt
        terrine("project", "close", "study", "--yes").fine  # noqa: B018
        assert "closed" in terrine("project", "resume", "study").refused
        assert server.stop() in (0, -signal.SIGTERM)
    log = server.lines
    holds(log[-1], "Finished", "server", "process")
    assert "Traceback" not in "".join(log)
    assert token.split("_")[2] not in "".join(log)


@pytest.mark.parametrize(
    ("words", "typed"),
    [
        (("serve",), "terrine serve"),
        (("train", Path("-rf.csv"), "--near", 40), "terrine train ./-rf.csv --near 40"),
        (("train", Path("--public")), "terrine train ./--public"),
        (("train", Path("a b.csv"), Path("x/-y")), "terrine train 'a b.csv' x/-y"),
        (("train", Path("-a;b")), "terrine train './-a;b'"),
    ],
)
def test_a_command_is_printed_as_it_can_be_typed(words: tuple[object, ...], typed: str) -> None:
    assert command_text(*words) == typed


@pytest.mark.parametrize(
    ("told", "typed"),
    [
        ("terrine doctor", "docker compose exec server terrine doctor"),
        ("terrine serve", "docker compose up --detach --wait"),
        ("terrine backup DIR", "docker compose run --rm --no-deps migrate backup DIR"),
        (
            "Run `terrine init`.",
            "Run `docker compose run --rm --no-deps migrate init --service-role terrine_service`.",
        ),
        (
            "terrine init --service-role mine",
            "docker compose run --rm --no-deps migrate init --service-role mine",
        ),
        ("terrine ledger restored", "docker compose run --rm --no-deps migrate ledger restored"),
        ("terrine ledger verify", "docker compose exec server terrine ledger verify"),
        ("the terrine of a project", "the terrine of a project"),
        ("terrine student budget", "terrine student budget"),
    ],
)
def test_in_compose_a_command_is_told_as_its_host_takes_it(
    monkeypatch: pytest.MonkeyPatch, told: str, typed: str
) -> None:
    assert as_typed(told) == told
    monkeypatch.setenv("TERRINE_STARTED_BY", "compose")
    assert as_typed(told) == typed
    assert as_typed(typed) == typed


@pytest.mark.parametrize(
    ("words", "typed"),
    [
        (("project", "show"), "docker compose exec server terrine project show"),
        (("student", "train", Path("a.csv")), "terrine student train a.csv"),
        (
            ("quickstart", Path("a b.csv"), "--public", Path("-p.csv")),
            "tar --create -- 'a b.csv' -p.csv | docker compose run --rm --no-TTY with-files "
            "quickstart 'a b.csv' --public ./-p.csv",
        ),
        (
            ("plan", "--votes", Path("/var/lib/terrine/x")),
            "docker compose exec server terrine plan --votes /var/lib/terrine/x",
        ),
    ],
)
def test_in_compose_a_command_gets_the_files_that_it_names(
    monkeypatch: pytest.MonkeyPatch, words: tuple[object, ...], typed: str
) -> None:
    monkeypatch.setenv("TERRINE_STARTED_BY", "compose")
    assert command_text(*words) == typed


@pytest.mark.slow
def test_what_commands_print_is_typed_where_the_service_was_started(terrine: Terrine) -> None:
    here = {"TERRINE_STARTED_BY": "compose"}
    init = "docker compose run --rm --no-deps migrate init"
    assert init in terrine("project", "show", **here).refused
    assert init in terrine("serve", **here).refused
    assert init in terrine("doctor", **here).out
    findings = json.loads(terrine("--json", "doctor", **here).out)["findings"]
    assert any(init in found["fix"] for found in findings)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is full")
def test_a_token_that_could_not_be_printed_is_revoked(terrine: Terrine, tmp_path: Path) -> None:
    terrine("init").fine  # noqa: B018
    command = (sys.executable, "-m", "terrine_server", "--data-dir", tmp_path / "data")
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*command, "token", "create", "--role", "auditor"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert done.returncode == 1
    holds(done.stderr, "space")
    (token,) = json.loads(terrine("--json", "token", "list").fine)
    assert token["revoked_at"] is not None


@pytest.mark.slow
def test_json_is_what_the_http_api_returns(
    terrine: Terrine, tmp_path: Path, digits_ensemble: DigitsEnsemble
) -> None:
    data = tmp_path / "data"
    terrine("init").fine  # noqa: B018
    shutil.copytree(digits_ensemble.directory, data / "ensembles" / "digits")
    terrine("ensemble", "register", "digits", "--epsilon", "20", "--delta", "1e-4").fine  # noqa: B018

    def said(*arguments: str, **extra: str) -> Any:
        return json.loads(terrine("--json", *arguments, **extra).fine)

    assert said("project", "show") == []
    terms = ["--ensemble", "digits", "--mechanism", "gnmax:sigma=4"]
    opened = said("project", "open", "study", *terms, "--epsilon", "5", "--delta", "1e-5")
    holds(opened.pop("warning"), "student")
    admin = said("token", "create", "--role", "admin", "--label", "mine")
    student = said("token", "create", "--role", "student", "--project", "study")["token"]

    with started("--data-dir", str(data), "serve", "--port", "0") as server:
        url = server.url

        def replied(path: str, token: str = admin["token"]) -> Any:
            return httpx.get(f"{url}{path}", headers={"Authorization": f"Bearer {token}"}).json()

        assert opened == said("project", "show", "study") == replied("/projects/study")
        assert said("project", "show") == replied("/projects?cursor=")["items"] == [opened]
        assert said("ensemble", "show") == replied("/ensembles")
        assert said("ensemble", "show")[0]["available"]
        assert said("token", "list") == replied("/tokens?cursor=")["items"]
        assert said("token", "list")[0] == {k: v for k, v in admin.items() if k != "token"}
        account = said("student", "--url", url, "budget", TERRINE_TOKEN=student)
        assert account == replied("/budget", student)
    holds(terrine("--json", "project", "pause", "study").refused, "JSON")
    assert said("project", "show", "study")["status"] == "active"


def test_unusual_text_is_shown_verbatim_or_refused(terrine: Terrine) -> None:
    terrine("init").fine  # noqa: B018
    terrine("token", "create", "--role", "auditor", "--label", "[/b] [red]x").fine  # noqa: B018
    assert "[/b] [red]x" in terrine("token", "list").fine
    assert "UTF-8" in terrine("token", "revoke", "\udcff").refused
    for odd in ("[/b]", "[red]x[/red]", "\\[b]"):
        holds(terrine("project", "show", odd).refused, odd)


def test_mechanisms_are_listed_shown_and_stated(terrine: Terrine) -> None:
    from terrine_protocol import MECHANISM_SPECS
    from terrine_protocol.mechanisms import mechanism_text
    from terrine_server.cli.options import parse_mechanism
    from terrine_server.privacy.mechanisms import MECHANISMS

    assert set(MECHANISM_SPECS) == set(MECHANISMS)
    listed = terrine("parameters").fine
    for name, spec in MECHANISM_SPECS.items():
        assert name in listed
        shown = terrine("parameters", name).fine
        assert all(parameter in shown for parameter in spec.model_fields if parameter != "name")
        stated = json.loads(terrine("--json", "parameters", name).fine)["mechanism"]
        assert [each["parameter"] for each in stated] == [*spec.model_fields][1:]
    found = json.loads(terrine("--json", "parameters").fine)
    assert found["mechanism"].keys() == MECHANISM_SPECS.keys()
    assert {"heads", "networks", "forest", "neighbours"} <= found["kind"].keys()
    both = json.loads(terrine("--json", "parameters", "neighbours").fine)
    assert "norm" in [each["parameter"] for each in both["mechanism"]]
    assert "near" in [each["parameter"] for each in both["kind"]]
    holds(terrine("parameters", "votes").refused, "'votes'")
    stable: dict[str, object] = {"name": "stable", "sigma": 60, "delta_per_query": 1e-10}
    assert parse_mechanism(mechanism_text(stable)) == stable
    assert parse_mechanism("stable: sigma=60, delta-per-query=1e-10") == stable


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("gnmax", "gnmax sigma: gnmax:sigma=…"),
        ("gnmax:", "gnmax sigma"),
        ("gnmax:sigma", "PARAMETER=VALUE"),
        ("gnmax:sigma=four", "sigma: number"),
        ("gnmax:sigma=4,sigma=5", "sigma twice"),
        ("gnmax:sigma=4,gamma=1", "gamma gnmax"),
        ("gnmax:name=lnmax", "PARAMETER=VALUE"),
        ("votes:sigma=4", "--mechanism one of"),
    ],
)
def test_a_mechanism_that_is_stated_wrongly_is_refused(
    terrine: Terrine, given: str, said: str
) -> None:
    terms = ("--ensemble", "digits", "--epsilon", 5, "--delta", 1e-5)
    refused = terrine("project", "open", "study", *terms, "--mechanism", given).refused
    holds(refused.replace("\n", " "), *said.split())


def test_too_little_memory_is_no_bug_of_ours() -> None:
    said = explain(MemoryError("Unable to allocate 14.0 TiB"))
    assert said is not None
    holds(said, "memory", "limit", "fewer")
