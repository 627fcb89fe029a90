"""Ensembles whose teachers stay with their owners, who are asked for their votes."""

from terrine_models.addons import Addon

ADDON = Addon(
    commands={
        "federation": (
            "terrine_addons.federation.commands:app",
            "Let owners vote who keep their teachers, or be one of them.",
        ),
    },
    in_server=("federation",),
    settings="terrine_addons.federation.settings:TeacherServer",
    ensembles="terrine_addons.federation.federations:Federations",
    voters={
        "remote": "terrine_addons.federation.voters:remote_voters",
        # Of earlier releases: refused by `load_federation`, with what to do.
        "shared": "terrine_addons.federation.voters:remote_voters",
    },
    probes={"remote": "terrine_addons.federation.voters:reach"},
)
