"""Ensembles whose teachers stay with their owners, who are asked for their votes."""

from terrine_models.addons import Addon

ADDON = Addon(
    commands={
        "federation": (
            "terrine_addons.federation.commands:app",
            "Let owners vote who keep their teachers; be one, or the server that hides votes.",
        ),
    },
    ensembles="terrine_addons.federation.federations:Federations",
    voters={
        "remote": "terrine_addons.federation.voters:remote_voters",
        "shared": "terrine_addons.federation.voters:make_shared_voters",
    },
    probes={
        "remote": "terrine_addons.federation.voters:reach",
        "shared": "terrine_addons.federation.voters:reach",
    },
)
