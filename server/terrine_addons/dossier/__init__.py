"""The dossier: one page of the ledger's facts, for an ethics board to file."""

from terrine_models.addons import Addon

ADDON = Addon(
    commands={
        "dossier": (
            "terrine_addons.dossier.commands:dossier",
            "Write a page about projects for an ethics board, from the ledger, which it verifies.",
        )
    },
    in_server=("dossier",),
    pages="terrine_addons.dossier.pages:router",
    project_buttons={"dossier": "Dossier"},
)
