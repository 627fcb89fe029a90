"""What `terrine serve` says when it cannot start, what it waits for, and how it ends."""

from __future__ import annotations

import errno
import json
import os
import pty
import re
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from typing import Any

import httpx
import pytest

from support.databases import Postgres
from support.documents import ROOT
from support.processes import PATIENCE_SECONDS, command, start, until
from support.servers import Machine, question, serving_process
from support.wording import holds
from terrine_server.cli import serve
from terrine_server.serving.listening import _has_family, bind
from terrine_server.settings import Settings


def refusal(machine: Machine, *options: str, **variables: str) -> dict[str, Any]:
    """Return the last line of the log of a server that cannot start."""
    done = machine.run("serve", *options, **variables)
    assert done.code == 1
    assert done.out == ""
    entries: list[dict[str, Any]] = [json.loads(line) for line in done.err.splitlines()]
    for entry in entries:
        assert {"event", "level", "timestamp", "pid"} <= set(entry)
    assert (entries[-1]["event"], entries[-1]["level"]) == ("cannot start", "error")
    return entries[-1]


def all_of(one: socket.socket) -> bytes:
    """Read until the server closes."""
    received = b""
    while data := one.recv(65536):
        received += data
    return received


def test_a_port_in_use_is_the_last_line_and_found_before_anything_is_loaded(
    served_machine: Machine,
) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        port = listener.getsockname()[1]
        last = refusal(served_machine, "--port", str(port))
        assert last["setting"] == "TERRINE_PORT"
        holds(last["cause"], port, "use")
        served_machine.data.joinpath("secret.key").unlink()  # nobody has looked for it
        said = served_machine.run("serve", "--port", str(port)).refused
        assert said == last["cause"]


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("TERRINE_PORT", "many", "integer"),
        ("TERRINE_HOST", "192.0.2.1", "address machine"),
        ("TERRINE_WRITE_SECONDS", "0", "greater 1"),
    ],
)
def test_a_setting_that_is_wrong_is_named_in_the_format_of_the_log(
    served_machine: Machine, variable: str, value: str, said: str
) -> None:
    last = refusal(served_machine, **{variable: value})
    assert last["setting"] == variable
    holds(last["cause"], *said.split())


class Terminal:
    """`terrine serve` at a terminal, and what it has written there."""

    def __init__(self, machine: Machine, **variables: str) -> None:
        self._own, self._other = pty.openpty()
        os.set_blocking(self._own, False)
        self._written = b""
        database = {"TERRINE_DATABASE_URL": machine.database_url}
        home = {"TERRINE_DATA_DIR": str(machine.data), "COLUMNS": "60"}
        environment = {**os.environ, **database, **home, **variables}
        name = os.ttyname(self._other)
        self.process = start(command, ["serve", "--port", "0"], environment, name)

    def text(self) -> str:
        with suppress(BlockingIOError, OSError):  # nothing more now, or never
            while part := os.read(self._own, 65536):
                self._written += part
        return self._written.decode()

    def end(self) -> int | None:
        """Wait for its end, and return its exit code."""
        self.process.join(PATIENCE_SECONDS)
        os.close(self._own)
        os.close(self._other)
        return self.process.exitcode


def test_at_a_terminal_a_server_says_in_words_where_it_is_and_how_it_stops(
    served_machine: Machine,
) -> None:
    terminal = Terminal(served_machine)
    until(terminal.text, lambda text: "Ctrl+C" in text)
    url = re.findall(r"http://\S+", terminal.text())[0]
    assert httpx.get(f"{url}/budget", timeout=PATIENCE_SECONDS).status_code == 401
    until(terminal.text, lambda text: "unauthorized" in text)
    assert terminal.process.pid is not None
    os.kill(terminal.process.pid, signal.SIGINT)
    until(terminal.process.is_alive, lambda alive: not alive)
    lines = terminal.text().splitlines()
    assert terminal.end() == 130
    holds(lines, "Pages", f"{url}/admin")
    holds(lines, "Ledger", served_machine.database_url.removeprefix("sqlite:///"))
    holds(lines, "Data", served_machine.data)
    holds(lines, "request", "unauthorized", "/budget")
    assert [line for line in lines if line.startswith("{")] == []


@pytest.mark.parametrize("chosen", ["json", "auto"])
def test_at_a_terminal_the_log_is_json_only_if_that_is_chosen(
    served_machine: Machine, chosen: str
) -> None:
    terminal = Terminal(served_machine, TERRINE_LOG_FORMAT=chosen, TERRINE_HOST="192.0.2.1")
    until(terminal.process.is_alive, lambda alive: not alive)
    last = terminal.text().splitlines()[-1]
    assert terminal.end() == 1
    assert last.startswith("{") == (chosen == "json")
    holds(last, "TERRINE_HOST", "192.0.2.1")


def test_the_log_is_text_elsewhere_if_that_is_chosen(served_machine: Machine) -> None:
    done = served_machine.run("serve", TERRINE_LOG_FORMAT="text", TERRINE_HOST="192.0.2.1")
    assert done.code == 1
    assert not done.err.startswith("{")
    holds(done.err, "TERRINE_HOST", "192.0.2.1")


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ({}, "http://127.0.0.1:8000"),
        ({"host": "*", "port": 81}, "http://127.0.0.1:81"),
        ({"host": "192.0.2.1"}, "http://192.0.2.1:8000"),
        ({"host": "*", "public_url": "https://terrine.example/x/"}, "https://terrine.example/x"),
    ],
)
def test_others_are_told_the_address_that_they_reach(given: dict[str, Any], url: str) -> None:
    assert Settings(**given).url == url


def test_the_database_s_password_is_not_said(capsys: pytest.CaptureFixture[str]) -> None:
    url = "postgresql+psycopg://terrine:s3cret@database/terrine"
    serve.show_addresses("http://127.0.0.1:8000", Settings(database_url=url))
    said = capsys.readouterr().err
    holds(said, "Ledger", "database/terrine")
    assert "s3cret" not in said


def test_the_image_listens_on_each_family_of_addresses_that_there_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A cluster may have IPv6 alone, and another machine no IPv6 at all."""
    host = re.search(r"TERRINE_HOST=(\S+)", (ROOT / "Dockerfile").read_text())
    assert host is not None
    made = socket.socket

    def families(lacking: int) -> set[int]:
        def make(family: int = socket.AF_INET, *more: Any) -> socket.socket:
            if family == lacking:
                raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
            return made(family, *more)

        with monkeypatch.context() as patched:
            patched.setattr("terrine_server.serving.listening.socket.socket", make)
            sockets = bind(host[1], 0)
        for each in sockets:
            each.close()
        return {each.family for each in sockets}

    if _has_family(socket.AF_INET6):
        assert families(-1) == {socket.AF_INET, socket.AF_INET6}
        assert families(socket.AF_INET) == {socket.AF_INET6}
    assert families(socket.AF_INET6) == {socket.AF_INET}


def test_what_is_set_and_is_probably_not_meant_is_warned_of(served_machine: Machine) -> None:
    """To trust everybody to name an address; a setting of nothing that is installed."""
    with serving_process(served_machine, forwarded_allow_ips="*", greeting="hello") as server:
        warnings = server.entries("may be a mistake")
    assert [each["setting"] for each in warnings] == [
        "TERRINE_GREETING",
        "TERRINE_FORWARDED_ALLOW_IPS",
    ]


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_server_waits_for_a_postgresql_that_recovers(
    served_machine: Machine, postgres: Postgres
) -> None:
    """A standby without connections, which is promoted once it has turned the server away."""
    before = postgres.turned_away()
    with postgres.recovering():

        def promote() -> None:
            until(postgres.turned_away, lambda count: count > before)
            postgres.promote()

        with ThreadPoolExecutor(1) as pool:
            promoted = pool.submit(promote)
            with serving_process(served_machine) as server:
                promoted.result()
                assert (
                    httpx.get(f"{server.url}/readyz", timeout=PATIENCE_SECONDS).status_code == 200
                )


def test_a_stopping_server_announces_the_close_and_never_fails_bare(
    served_machine: Machine,
) -> None:
    """Requests in progress are answered and say `Connection: close`; those cut off get a 503."""
    headers = served_machine.student("ending", 5)
    body = json.dumps(question(1)).encode()
    head = (
        "POST /label HTTP/1.1\r\nHost: terrine\r\nContent-Type: application/json\r\n"
        f"Authorization: {headers['Authorization']}\r\nContent-Length: {len(body)}\r\n"
        "Expect: 100-continue\r\n\r\n"
    ).encode()
    with serving_process(served_machine, shutdown_seconds=10) as server:
        url = httpx.URL(server.url)
        finishing, cut = (socket.create_connection((url.host, url.port)) for _ in range(2))
        for one in (finishing, cut):
            one.settimeout(120)
            one.sendall(head)
            assert one.recv(65536).startswith(b"HTTP/1.1 100")
            one.sendall(body[:5])
        os.kill(server.pid, signal.SIGTERM)
        server.wait_for("Shutting down")
        finishing.sendall(body[5:])
        answered, refused = all_of(finishing), all_of(cut)
        server.process.join(timeout=PATIENCE_SECONDS)
    assert answered.startswith(b"HTTP/1.1 200")
    assert b"connection: close" in answered.lower()
    assert refused.startswith(b"HTTP/1.1 503")
    assert b"connection: close" in refused.lower()
    assert b"/problems/overloaded" in refused
    assert b"retry-after" in refused.lower()
