"""An owner's own server, in a process of its own, and the commands that gather several."""

from __future__ import annotations

import ssl
from pathlib import Path

import httpx
import pytest

from support.data import DigitsEnsemble
from support.processes import Terrine
from support.servers import certified, small_server
from support.wording import holds
from terrine_addons.federation import inference
from terrine_addons.federation.federations import load_federation
from terrine_addons.federation.voters import probe

TOKEN = "a-token-of-more-than-twenty-characters"


@pytest.mark.slow
def test_owners_serve_their_teachers_and_are_gathered(
    tmp_path: Path, digits_ensemble: DigitsEnsemble, terrine: Terrine
) -> None:
    good = certified(tmp_path, "good")
    certified(tmp_path, "other")
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "wrong").write_text("not-the-token-of-this-teacher")
    serve = ("federation", "serve-teacher", digits_ensemble.directory)
    with small_server(good, *serve, TEACHER_TOKEN_FILE=tmp_path / "token") as url:
        entry = f'url = "{url}"\nmodel = "digits"\n'
        head = (
            f"classes = {list(digits_ensemble.manifest.classes)}\nunits = 1200\n"
            'disjoint_by = "one owner has all"\nquorum = 1\ntimeout_seconds = 20\n'
            '[input]\nshape = [8, 8]\ndtype = "uint8"\nlow = 0\nhigh = 16\n'
        )
        file = tmp_path / "owners.toml"
        file.write_text(
            f'{head}[[owner]]\nname = "a"\n{entry}certificate = "good.pem"\ntoken_file = "token"\n'
            f'[[owner]]\nname = "b"\nurl = "{url}/"\nmodel = "ghost"\ncertificate = "good.pem"\n'
            f'token_file = "token"\n'
            f'[[owner]]\nname = "c"\nurl = "{url}/x"\nmodel = "digits"\n'
            f'certificate = "other.pem"\ntoken_file = "token"\n'
            f'[[owner]]\nname = "d"\nurl = "{url}//"\nmodel = "other"\ncertificate = "good.pem"\n'
            f'token_file = "wrong"\n'
        )
        said = terrine("federation", "gather", file, "--name", "ward").fine
        holds(said, 4, 1)
        holds(said, 3, "answer")
        assert "CERTIFICATE_VERIFY_FAILED" in said
        directory = tmp_path / "data/ensembles/ward"
        assert all(path.stat().st_mode & 0o077 == 0 for path in directory.iterdir())
        assert TOKEN not in (directory / "federation.json").read_text()
        assert probe(directory, load_federation(directory))[0] is None
        assert "answers" in terrine("ensemble", "show", "ward", "--verify").fine
        assert "exists" in terrine("federation", "gather", file, "--name", "ward").refused

        with httpx.Client(base_url=url, verify=ssl.create_default_context(cafile=good)) as http:
            x = digits_ensemble.public[:8]
            body, headers = inference.encode_request(x, "input", None, binary=True)
            infer = "/v2/models/digits/infer"
            assert http.post(infer, content=body, headers=headers).status_code == 401
            assert http.get("/v2/models/digits").status_code == 401
            http.headers["Authorization"] = f"Bearer {TOKEN}"
            assert http.get("/v2/models/digits").json()["inputs"][0]["shape"] == [-1, 8, 8]
            answer = http.post(infer, content=body, headers=headers)
            labels = inference.decode_labels(answer.content, None, 8, 10)
            assert (labels == digits_ensemble.public_labels[:8]).mean() > 0.7
            bad = http.post(infer, content=body[:-1], headers=headers)
            assert bad.status_code == 400
            holds(bad.json()["error"], "header")
            assert http.post(infer, content=b"{", headers={}).status_code == 400
            headers[inference.HEADER_LENGTH] = "-1"
            assert http.post(infer, content=body, headers=headers).status_code == 400


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("owner = 3", "owners"),
        ("[[owner", "TOML"),
        (
            "aggregator = {url = 'https://a.example', sigma = 9}\nclasses = ['a', 'b']\nunits = 9\n"
            "disjoint_by = 'x'\n[input]\nshape = [2]\ndtype = 'float32'\nlow = 0\nhigh = 1\n"
            "[[owner]]\nname = 'a'\nurl = 'http://localhost:9'\nmodel = 'm'\n"
            "[[owner]]\nname = 'b'\nurl = 'http://localhost:9'\nmodel = 'n'",
            "[aggregator] second server",
        ),
        ("[[owner]]\nname = '../x'", "owner ../x: name"),
        ("[[owner]]\nname = 'a'\nurl = 'https://a.example'", "owner a: model"),
        (
            "[[owner]]\nname = 'a'\nurl = 'https://a.example'\nmodel = 'm'\n"
            "certificate = 'gone.pem'",
            "gone.pem read",
        ),
        ("[[owner]]\nname = 'a'\nurl = 'https://a.example'\nmodel = 'm'", "input"),
        ("[[owner]]\nname = 'a'\nurl = 'http://a.example'\nmodel = 'm'", "https"),
        (
            "classes = [\"a\\u001b]0;owned\", 'b']\nunits = 9\ndisjoint_by = 'x'\n"
            "[input]\nshape = [2]\ndtype = 'float32'\nlow = 0\nhigh = 1\n"
            "[[owner]]\nname = 'a'\nurl = 'http://localhost:9'\nmodel = 'm'\n"
            "[[owner]]\nname = 'b'\nurl = 'http://localhost:9'\nmodel = 'n'",
            "show a<U+001B>]0;owned",
        ),
    ],
)
def test_a_file_of_owners_that_cannot_be_used_leaves_nothing(
    tmp_path: Path, terrine: Terrine, text: str, says: str
) -> None:
    file = tmp_path / "owners.toml"
    file.write_text(text)
    holds(terrine("federation", "gather", file, "--name", "ward").refused, *says.split())
    assert not (tmp_path / "data/ensembles/ward").exists()
    holds(terrine("federation", "gather", tmp_path / "no", "--name", "w").refused, "read")


def test_votes_do_not_cross_a_network_in_the_clear(
    tmp_path: Path, digits_ensemble: DigitsEnsemble, terrine: Terrine
) -> None:
    serve = ("federation", "serve-teacher", digits_ensemble.directory)
    assert "TERRINE_TEACHER_TOKEN_FILE" in terrine(*serve).refused
    own = {"TERRINE_TEACHER_TOKEN_FILE": str(tmp_path / "token")}
    holds(terrine(*serve, **own, TERRINE_HOST="0.0.0.0").refused, "TLS")
    alone = terrine(*serve, **own, TERRINE_CERTIFICATE_FILE=str(tmp_path / "a.pem")).refused
    holds(alone, "together")
    (tmp_path / "token").write_text("short")
    holds(terrine(*serve, **own).refused, "token")
