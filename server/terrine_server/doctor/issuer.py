"""Check of the issuer through which admins and auditors may sign in."""

from __future__ import annotations

from collections.abc import Iterator

from terrine_server.doctor import files
from terrine_server.doctor.finding import Finding, Severity
from terrine_server.owner.issuer import CALLBACK, Issuer, IssuerError
from terrine_server.settings import Settings


def sign_in(settings: Settings) -> Iterator[Finding]:
    """Check that the issuer answers, as an issuer that can be used here."""
    if settings.oidc_issuer is None:
        return
    try:
        issuer = Issuer(settings)
        issuer.metadata()
    except IssuerError as error:
        fix = "Correct TERRINE_OIDC_ISSUER, or see to the issuer; tokens are admitted meanwhile"
        yield Finding("sign-in", Severity.PROBLEM, str(error), fix)
        return
    if settings.oidc_client_secret_file is not None:
        yield files.private("client secret", settings.oidc_client_secret_file)
    back = f"{(settings.oidc_public_url or '').rstrip('/')}{CALLBACK}"
    found = f"{issuer.host} answers as an issuer. It must know the address {back}."
    yield Finding("sign-in", Severity.OK, found)
