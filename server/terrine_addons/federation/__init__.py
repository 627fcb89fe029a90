"""Ensembles whose teachers stay with their owners, who are asked for their votes."""

from terrine_models.addons import Addon

ADDON = Addon(
    commands={
        "owners": (
            "terrine_addons.federation.commands:owners",
            "Let owners vote who keep their teachers.",
        ),
        "teacher": ("terrine_addons.federation.commands:teacher", "Be one of these owners."),
        "aggregator": (
            "terrine_addons.federation.commands:aggregator_app",
            "Be the second of two servers that add up votes neither sees.",
        ),
    },
    ensembles="terrine_addons.federation.federations:Federations",
    voters={
        "remote": "terrine_addons.federation.voters:remote_voters",
        "shared": "terrine_addons.federation.voters:shared_voters",
    },
)
