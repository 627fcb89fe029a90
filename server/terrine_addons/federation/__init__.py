"""Ensembles whose teachers stay with their owners, who are asked for their votes."""

from terrine_models.addons import Addon

ADDON = Addon(
    commands={
        "owners": "terrine_addons.federation.commands:owners",
        "teacher": "terrine_addons.federation.commands:teacher",
        "aggregator": "terrine_addons.federation.commands:aggregator_app",
    },
    ensembles="terrine_addons.federation.federations:Federations",
    voters={
        "remote": "terrine_addons.federation.voters:remote_voters",
        "shared": "terrine_addons.federation.voters:shared_voters",
    },
)
