"""Measures the privacy that Terrine delivers, and checks what it recorded."""

from terrine_models.addons import Addon

ADDON = Addon(
    commands={
        "audit": (
            "terrine_addons.audit.commands:audit",
            "Measure how much privacy is lost, and compare it with what was charged.",
        )
    },
    in_server=("audit",),
    extras={"audit": "auditor", "audit student": "server"},
)
