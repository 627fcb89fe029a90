"""The whole way of shares by the commands: an aggregator, an owner and the service, over TLS."""

from __future__ import annotations

import socket
from pathlib import Path

import httpx
import numpy as np
import pytest
from scipy.stats import chi2

from addons.federation.owners import listening
from support.data import DigitsEnsemble
from support.databases import SECRET_KEY, migrated
from support.processes import Terrine
from support.servers import certified, small_server
from support.wording import holds, refuses
from terrine_addons.federation import voters
from terrine_addons.federation.aggregator import Aggregator, ReleaseCounter, make
from terrine_addons.federation.federations import read_token
from terrine_addons.federation.teacher import AgreedAggregator, Teacher
from terrine_addons.federation.voters import make_client, read_terms
from terrine_client import Client
from terrine_protocol import ProjectOpen, Role, TokenCreate
from terrine_server.app import serving
from terrine_server.errors import InvalidTerms
from terrine_server.ledger import Ledger
from terrine_server.owner.operations import open_project
from terrine_server.owner.sign_in import Tokens
from terrine_server.settings import Settings

AGGREGATOR = 'owners = ["a", "b", "c"]\nclasses = 10\nsigma = 4\nepsilon = 50\ndelta = 1e-6\n'


@pytest.mark.slow
def test_labels_without_anybody_seeing_a_vote(
    tmp_path: Path, digits_ensemble: DigitsEnsemble, terrine: Terrine
) -> None:
    pem, party = certified(tmp_path, "both"), tmp_path / "party"
    (tmp_path / "aggregator.toml").write_text(AGGREGATOR)
    holds(
        terrine("federation", "make-aggregator", tmp_path / "aggregator.toml", party).fine,
        "queries",
        "released",
    )
    settings = Settings(data_dir=tmp_path / "data")
    settings.data_dir.mkdir()
    settings.secret_key_path.write_bytes(SECRET_KEY)
    settings.secret_key_path.chmod(0o600)
    engine = migrated(settings.database)
    ledger = Ledger(engine, SECRET_KEY)
    teacher = ("federation", "serve-teacher", digits_ensemble.directory)
    with small_server(pem, "federation", "serve-aggregator", party) as aggregator_url:
        shared = {
            "TEACHER_TOKEN_FILE": tmp_path / "token",
            "AGGREGATOR_URL": aggregator_url,
            "AGGREGATOR_CERTIFICATE_FILE": pem,
            "AGGREGATOR_TOKEN_FILE": party / "owners/a.token",
            "AGGREGATOR_TERMS_FILE": tmp_path / "aggregator.toml",
        }
        with small_server(pem, *teacher, **shared) as url:
            file = tmp_path / "owners.toml"
            common = 'model = "digits"\ncertificate = "both.pem"\ntoken_file = "token"\n'
            file.write_text(
                'classes = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"]\nunits = 1200\n'
                'disjoint_by = "town"\nquorum = 1\ntimeout_seconds = 20\n'
                '[input]\nshape = [8, 8]\ndtype = "uint8"\nlow = 0\nhigh = 16\n'
                f'[aggregator]\nurl = "{aggregator_url}"\nsigma = 4\ncertificate = "both.pem"\n'
                'token_file = "party/service.token"\n'
                f'[[owner]]\nname = "a"\nurl = "{url}"\n{common}'
                f'[[owner]]\nname = "b"\nurl = "https://127.0.0.1:9"\n{common}'
                f'[[owner]]\nname = "c"\nurl = "https://127.0.0.1:9/c"\n{common}'
            )
            said = terrine("federation", "gather", file, "--name", "ward").fine
            holds(said, 2, "answer")
            assert "aggregator" in said
            register = ("ensemble", "register", "ward", "--epsilon", 50, "--delta", 5e-4)
            assert "ward" in terrine(*register).fine
            opened(ledger)
            request = TokenCreate(role=Role.STUDENT, project="study")
            student = Tokens(ledger, SECRET_KEY).create(request).token
            x = digits_ensemble.public[:40]
            with serving(settings) as service, Client(service, student, retries=0) as make_client:
                answers, again = make_client.label(x), make_client.label(x[:8])
                assert make_client.project().ensemble.aggregator_sigma == 4
            assert answers.noise_sigma == 5, "σ = 3 of the project, and 4 of the aggregator"
            counts = np.asarray(answers.noisy_counts)
            # The mean of 40 sums of ten draws of σ = 5 has a deviation of 2.5: beyond 17 is once
            # in 10¹¹ times. Narrower than this is once in 10⁹ times; half of the noise is found.
            assert abs(counts.sum(axis=1).mean() - 3) < 17
            assert counts.std() > 5 * np.sqrt(chi2.ppf(1e-9, counts.size - 1) / counts.size)
            assert (np.asarray(again.noisy_counts) == counts[:8]).all()
            assert (ledger.project("study").charges, ReleaseCounter(party).released) == (40, 40)

            plain = httpx.Client(base_url=url, verify=False)
            bearer = {"Authorization": f"Bearer {(tmp_path / 'token').read_text().strip()}"}
            refused = plain.post("/v2/models/digits/infer", headers=bearer)
            assert refused.status_code == 403
            holds(refused.text, "nobody")
            nameless = plain.post("/v2/models/digits/share", headers=bearer)
            assert nameless.status_code == 400
            holds(nameless.text, "Terrine-Round")
            plain.close()
    holds(terrine("ensemble", "show", "ward", "--verify").err, "federation")
    serve = ("federation", "serve-aggregator", party)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        said = terrine(*serve, TERRINE_PORT=str(taken.getsockname()[1])).out
    holds(said, "released", "40", "of")
    with serving(settings) as service:
        answer = httpx.post(
            f"{service}/label",
            json={"inputs": digits_ensemble.public[50:52].tolist()},
            headers={"Authorization": f"Bearer {student}"},
        )
        assert answer.status_code == 503
    assert ledger.project("study").charges == 40
    assert ledger.verify("study").ok
    engine.dispose()


def opened(ledger: Ledger) -> None:
    """Open a project with noisy votes; with votes that nobody has, none can be opened."""
    request = {"name": "study", "ensemble": "ward", "epsilon": 20, "delta": 1e-5}
    gnmax = {**request, "mechanism": {"name": "gnmax", "sigma": 3.0}}
    with refuses(InvalidTerms, "gnmax", "noisy_votes"):
        open_project(ledger, ProjectOpen.model_validate(gnmax))
    noisy = {**request, "mechanism": {"name": "noisy_votes", "sigma": 3.0}}
    open_project(ledger, ProjectOpen.model_validate(noisy))


def test_commands_say_what_is_missing(
    tmp_path: Path, terrine: Terrine, digits_ensemble: DigitsEnsemble
) -> None:
    file = tmp_path / "aggregator.toml"
    holds(terrine("federation", "make-aggregator", file, tmp_path / "x").refused, "read")
    file.write_text("owners = [")
    holds(terrine("federation", "make-aggregator", file, tmp_path / "x").refused, "TOML")
    file.write_text(AGGREGATOR.replace("sigma = 4", "sigma = 0"))
    assert "sigma" in terrine("federation", "make-aggregator", file, tmp_path / "x").refused
    assert not (tmp_path / "x").exists()
    serve = ("federation", "serve-aggregator", tmp_path)
    holds(terrine(*serve).refused, "aggregator")
    holds(terrine(*serve, TERRINE_HOST="0.0.0.0").refused, "TLS")
    (tmp_path / "token").write_text("a-token-of-more-than-twenty-characters")
    teacher = ("federation", "serve-teacher", digits_ensemble.directory)
    url = {"TERRINE_AGGREGATOR_URL": "https://b.example"}
    token = {"TERRINE_AGGREGATOR_TOKEN_FILE": str(tmp_path / "token")}
    own = {"TERRINE_TEACHER_TOKEN_FILE": str(tmp_path / "token")}
    holds(terrine(*teacher, **own, **url).refused, "TERRINE_AGGREGATOR_TOKEN_FILE")
    holds(terrine(*teacher, **own, **token).refused, "TERRINE_AGGREGATOR_URL")
    plain = own | token | {"TERRINE_AGGREGATOR_URL": "http://b.example"}
    holds(terrine(*teacher, **plain).refused, "TERRINE_AGGREGATOR_TERMS_FILE")
    terms = {"TERRINE_AGGREGATOR_TERMS_FILE": str(file)}
    holds(terrine(*teacher, **plain, **terms).refused, "https")


def test_an_owner_shares_nothing_under_terms_that_it_did_not_agree_to(
    tmp_path: Path, terrine: Terrine, digits_ensemble: DigitsEnsemble
) -> None:
    """Who tells the aggregator its terms may be the service, so the owner asks and compares."""
    file, other = tmp_path / "agreed.toml", tmp_path / "other.toml"
    file.write_text(AGGREGATOR)
    served = 'owners = ["a", "b", "c"]\nclasses = 20\nsigma = 2\nepsilon = 50\ndelta = 1e-6\n'
    other.write_text(served)
    make(read_terms(other), tmp_path / "party")
    aggregator = Aggregator(tmp_path / "party")
    (tmp_path / "token").write_text("a-token-of-more-than-twenty-characters")
    with listening(aggregator.app()) as url:
        serve = ("federation", "serve-teacher", digits_ensemble.directory)
        shared = {
            "TERRINE_TEACHER_TOKEN_FILE": str(tmp_path / "token"),
            "TERRINE_AGGREGATOR_URL": url,
            "TERRINE_AGGREGATOR_TOKEN_FILE": str(tmp_path / "party/owners/a.token"),
            "TERRINE_AGGREGATOR_TERMS_FILE": str(file),
        }
        refused = terrine(*serve, **shared).refused
        holds(refused, "terms")
        holds(refused, "classes", 20, 10, "sigma", 2, 4)
        theirs = shared | {"TERRINE_AGGREGATOR_TERMS_FILE": str(other)}
        holds(terrine(*serve, **theirs).refused, 20, "classes")  # nor would the owner agree
        wrong = shared | {"TERRINE_AGGREGATOR_TOKEN_FILE": str(tmp_path / "token")}
        holds(terrine(*serve, **wrong).refused, 401)

        # An aggregator that changes under a teacher that runs: its owner's word comes with every
        # share.
        http = make_client(url, None, read_token(tmp_path / "party/owners/a.token"))
        agreed = AgreedAggregator(http, read_terms(file))
        teacher = Teacher(digits_ensemble.directory, "digits", "secret", agreed)
        with listening(teacher.app()) as asked:
            x = digits_ensemble.public[:8]
            body, headers = voters.encode_request(x, "input", None, binary=True)
            headers |= {"Authorization": "Bearer secret", voters.ROUND: voters.new_round()}
            answer = httpx.post(
                f"{asked}/v2/models/digits/share", content=body, headers=headers, timeout=60
            )
    assert answer.status_code == 502
    holds(answer.json()["error"], "terms")
    assert aggregator.count.released == 0
    holds(terrine(*serve, **shared).refused, "ConnectError")
