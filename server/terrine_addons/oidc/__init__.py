"""Signing in to the pages through an issuer of OpenID Connect."""

from terrine_models.addons import Addon

ADDON = Addon(
    settings="terrine_addons.oidc.settings:OidcSettings",
    issuer="terrine_addons.oidc.issuer:make_issuer",
    templates="terrine_addons.oidc",
    pages="terrine_addons.oidc.pages:router",
    callbacks="terrine_addons.oidc.pages:callbacks",
    checks="terrine_addons.oidc.issuer:check_sign_in",
)
