"""Where a token may be sent, and where it must not appear."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import AsyncIterator
from datetime import datetime, timedelta, timezone

import pytest

import terrine_client
from support.clients import FaultyServer, hangs_up, problem, replies, running_faulty_server
from support.wording import holds, refuses
from terrine_client import (
    AsyncClient,
    Client,
    ClientError,
    ConfigurationError,
    InternalError,
    NotFound,
    ProblemError,
    RateLimited,
    UnexpectedReply,
)
from terrine_client._connection import _ssl_context
from terrine_client.errors import make_problem_error
from terrine_protocol import PROBLEMS, Outcome, Problem

TOKEN = "terrine_id_verysecret"


URLS: dict[str, list[str]] = {
    "https, or within the machine": [
        "https://labels.example.org",
        "https://labels.example.org/terrine/",
        "http://localhost:8000",
        "http://terrine.localhost",
        "http://127.0.0.1:8000",
        "http://127.8.9.10",
        "http://[::1]:8000",
    ],
    "insecure=True": [
        "http://labels.example.org",
        "http://10.0.0.7:8000",
        "http://localhost.example.org",
        "http://127.0.0.1.example.org",
        "http://0.0.0.0:8000",
        "http://server:8000",
    ],
    "no server": [
        "",
        "labels.example.org",
        "localhost:8000",
        "ftp://labels.example.org",
        "https://",
        "https://me:pass@labels.example.org",
        "https://labels.example.org/?project=1",
        "https://labels.example.org/#top",
        "https://labels.example.org:port",
    ],
}
"""What is sent to, what needs consent, and what cannot be a server."""


@pytest.mark.parametrize(("url", "kind"), [(url, kind) for kind in URLS for url in URLS[kind]])
def test_tokens_are_sent_over_https_or_within_the_machine_unless_one_consents(
    url: str, kind: str
) -> None:
    if kind == "https, or within the machine":
        Client(url, TOKEN).close()
        return
    for client in (Client, AsyncClient):
        with pytest.raises(ConfigurationError) as caught:
            client(url, TOKEN)
        assert ("insecure=True" in str(caught.value)) == (kind == "insecure=True")
        assert "pass@" not in str(caught.value)
    if kind == "insecure=True":
        Client(url, TOKEN, insecure=True).close()


@pytest.mark.parametrize("token", ["", "  ", "two words", "line\nbreak", "schlüssel", "a\x00b"])
def test_a_token_that_no_header_can_carry_is_refused_and_not_printed(token: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Client("https://labels.example.org", token)
    assert not token.strip() or token not in "".join(traceback.format_exception(caught.value))


def test_the_token_may_come_from_the_environment(
    faulty: FaultyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERRINE_TOKEN", f"{TOKEN}\n")
    with Client(faulty.url) as client:
        client.budget()
    assert faulty.seen[0].headers["Authorization"] == f"Bearer {TOKEN}"
    monkeypatch.delenv("TERRINE_TOKEN")
    with refuses(ConfigurationError, "TERRINE_TOKEN"):
        Client(faulty.url)


@pytest.mark.parametrize("options", [{"timeout": 0}, {"retries": -1}, {"batch_size": 0}])
def test_invalid_options_are_refused(options: dict[str, object]) -> None:
    with refuses(ConfigurationError, next(iter(options))):
        Client("https://labels.example.org", TOKEN, **options)  # type: ignore[arg-type]


def test_the_token_is_never_printed(
    faulty: FaultyServer, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level("DEBUG")
    with Client(faulty.url, TOKEN, retries=1) as client:
        faulty.faults.extend([hangs_up, replies(500, b"?")])
        with pytest.raises(ClientError) as caught:
            client.budget()
        shown = [repr(client), str(vars(client)), *traceback.format_exception(caught.value)]
    printed = capsys.readouterr()
    assert repr(client) == f"<Client {faulty.url}>"
    assert "verysecret" not in "".join([*shown, caplog.text, printed.out, printed.err])


@pytest.mark.parametrize("name", ["http_proxy", "HTTP_PROXY", "all_proxy"])
def test_a_token_for_this_machine_never_goes_to_a_proxy(
    faulty: FaultyServer, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_faulty_server() as proxy:
        monkeypatch.setenv(name, proxy.url)
        for host in ("127.0.0.1", "localhost"):
            with Client(faulty.url.replace("127.0.0.1", host), TOKEN, retries=0) as client:
                client.budget()
        assert len(faulty.seen) == 2
        assert proxy.seen == []
        with Client("http://labels.example.org", TOKEN, retries=0, insecure=True) as client:
            client.budget()
        assert [seen.path for seen in proxy.seen] == ["http://labels.example.org/budget"]


BAD_ENVIRONMENTS = [
    {"NO_PROXY": "[::1]"},
    {"no_proxy": "10.0.0.0/8, ::1/128"},
    {"ALL_PROXY": "socks5://127.0.0.1:1080"},
    {"https_proxy": "ftp://proxy.example.org"},
    {"HTTPS_PROXY": "::::"},
    {"SSL_CERT_FILE": "/missing/certificates.pem"},
    {"SSL_CERT_FILE": __file__},
]


@pytest.mark.parametrize("variables", BAD_ENVIRONMENTS)
def test_an_environment_that_cannot_be_used_is_told_by_its_variable(
    variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (name, value), *_ = variables.items()
    monkeypatch.setenv(name, value)
    _ssl_context.cache_clear()
    for kind in (Client, AsyncClient):
        with refuses(ConfigurationError, name):
            kind("https://labels.example.org", TOKEN)
    _ssl_context.cache_clear()


def test_a_proxy_that_takes_no_large_request_is_told_from_another_url(faulty: FaultyServer) -> None:
    page = b"<html><head><title>413 Request Entity Too Large</title></head></html>"
    faulty.faults.append(replies(413, page))
    held = (413, "batch_size", "client_max_body_size")
    with Client(faulty.url, TOKEN) as client, refuses(UnexpectedReply, *held):
        client.label([[1.0, 2.0]])


def test_a_path_prefix_is_kept(faulty: FaultyServer) -> None:
    with Client(f"{faulty.url}/terrine/", TOKEN) as client:
        client.budget()
    assert faulty.seen[0].path == "/terrine/budget"


@pytest.mark.parametrize("slug", list(PROBLEMS))
def test_every_problem_has_its_own_error_class(faulty: FaultyServer, slug: str) -> None:
    status = PROBLEMS[slug].status
    faulty.faults.append(replies(*problem(status, slug, limit=7)))
    with Client(faulty.url, TOKEN, retries=0) as client, pytest.raises(ProblemError) as caught:
        client.budget()
    error = caught.value
    assert type(error) is not ProblemError
    assert error.slug == slug
    assert getattr(terrine_client, type(error).__name__) is type(error)
    assert error.status == status
    assert error.problem.model_extra == {"limit": 7}
    assert str(error) == "A title: What is wrong and what to do."


def test_the_drawn_error_tree_is_complete() -> None:
    def names(kind: type[ClientError]) -> set[str]:
        return {kind.__name__}.union(*map(names, kind.__subclasses__()))

    drawing = terrine_client.errors.__doc__ or ""
    assert [name for name in sorted(names(ClientError)) if name not in drawing.split()] == []


def test_a_malformed_request_names_each_field(faulty: FaultyServer) -> None:
    errors = [{"field": "name", "message": "M1"}, {"field": "delta", "message": "too large"}]
    faulty.faults.append(replies(*problem(422, "invalid-request", errors=errors)))
    with Client(faulty.url, TOKEN) as client, pytest.raises(ProblemError) as caught:
        client.budget()
    assert str(caught.value).splitlines()[1:] == ["  delta: too large"]


def test_an_internal_error_names_the_request_id_for_the_log(faulty: FaultyServer) -> None:
    faulty.faults.append(replies(*problem(500, "internal", request_id="r-17")))
    with Client(faulty.url, TOKEN) as client, refuses(InternalError, "r-17"):
        client.budget()


def test_errors_can_be_pickled() -> None:
    details = Problem(type="/problems/rate-limited", title="T", status=429, detail="D")
    error = pickle.loads(pickle.dumps(make_problem_error(details, 3.0)))
    assert (type(error), error.retry_after, error.problem) == (RateLimited, 3.0, details)
    unexpected = pickle.loads(pickle.dumps(UnexpectedReply(502, "why")))
    holds(str(unexpected), 502, "Gateway", "why")


def test_a_newer_server_may_send_more_fields(faulty: FaultyServer) -> None:
    body = faulty.budget() | {"mood": "excellent", "rule": {"name": "gdp", "strict": True}}
    faulty.faults.append(replies(200, body))
    with Client(faulty.url, TOKEN) as client:
        assert client.budget().project == "study"


def charge(seq: int) -> dict[str, object]:
    return {
        "project": "study",
        "seq": seq,
        "created_at": "2026-01-02T03:04:05Z",
        "outcome": "answered",
        "label": 3,
        "cost": 5,
        "delta": 0,
        "mechanism": {"name": "gnmax", "sigma": 40.0},
        "event": {},
        "query_digest": "00",
        "hash": "11",
    }


PAGES = [
    replies(200, {"items": [charge(1), charge(2)], "next": "a/b c"}),
    replies(200, {"items": [charge(3)], "next": None}),
]


def test_charges_are_fetched_as_they_are_read(faulty: FaultyServer) -> None:
    faulty.faults.extend(PAGES)
    since = datetime(2026, 1, 1, 2, tzinfo=timezone(timedelta(hours=2)))
    with Client(faulty.url, TOKEN) as client:
        charges = client.charges("study", outcome=Outcome.ANSWERED, since=since)
        assert len(faulty.seen) == 0
        assert next(charges).seq == 1
        assert len(faulty.seen) == 1
        assert [entry.seq for entry in charges] == [2, 3]
    query = "limit=1000&outcome=answered&since=2026-01-01T00%3A00%3A00%2B00%3A00"
    assert faulty.seen[0].path == f"/ledger/study?{query}"
    assert faulty.seen[1].path in (
        f"/ledger/study?{query}&cursor=a%2Fb+c",
        f"/ledger/study?{query}&cursor=a%2Fb%20c",
    )


def test_an_outcome_may_be_given_by_its_name_and_must_exist(faulty: FaultyServer) -> None:
    faulty.faults.extend(PAGES)
    with Client(faulty.url, TOKEN) as client:
        assert len(list(client.charges("study", outcome="answered"))) == 3
        assert "outcome=answered" in faulty.seen[0].path
        with refuses(ConfigurationError, "answered", "abstained"):
            client.charges("study", outcome="anything")


async def test_charges_can_be_awaited_page_by_page(faulty: FaultyServer) -> None:
    faulty.faults.extend(PAGES)
    async with AsyncClient(faulty.url, TOKEN) as client:
        charges = client.charges("study")
        assert isinstance(charges, AsyncIterator)
        assert [entry.seq async for entry in charges] == [1, 2, 3]


def test_a_name_cannot_lead_out_of_its_path(faulty: FaultyServer) -> None:
    faulty.faults.append(replies(*problem(404, "not-found")))
    with Client(faulty.url, TOKEN) as client, pytest.raises(NotFound):
        client.verify("../tokens?x=1#")
    assert faulty.seen[0].path == "/ledger/..%2Ftokens%3Fx%3D1%23/verify"


def test_a_closed_client_sends_nothing(faulty: FaultyServer) -> None:
    client = Client(faulty.url, TOKEN)
    client.close()
    with refuses(RuntimeError, "closed"):
        client.budget()
