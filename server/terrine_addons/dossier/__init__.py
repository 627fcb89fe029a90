"""The dossier: what an ethics board or a data-protection officer files about a service.

facts       what the ledger, the settings and the code say, gathered once
code        which code runs here: versions and digests
unchecked   what the dossier cannot vouch for
told        what only the owner can say, asked for in dossier.toml
registry    an entry in the fields of the Differential Privacy Deployments Registry
assessment  the pyramid and the hazards of NIST SP 800-226, one by one
folder      the folder: pages, JSON and PDF
signing     its signature with the log's key, and the check of one

Every figure is from the ledger or the code. What could not be checked is listed first.
"""

from terrine_models.addons import Addon

ADDON = Addon(
    commands={
        "dossier": (
            "terrine_addons.dossier.commands:dossier",
            "Write a signed dossier from the live ledger, which it verifies: HTML, JSON and PDF.",
        )
    },
    pages="terrine_addons.dossier.pages:router",
    templates="terrine_addons.dossier",
)
