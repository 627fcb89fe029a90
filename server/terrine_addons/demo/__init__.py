"""`terrine demo`: a complete run on one machine, with the real components.

material    finds the data
story       has the steps
"""

from terrine_models.addons import Addon

ADDON = Addon(
    commands={
        "demo": (
            "terrine_addons.demo.commands:demo",
            "Run all of Terrine once: let records vote, serve, teach a student, verify the ledger.",
        )
    }
)
