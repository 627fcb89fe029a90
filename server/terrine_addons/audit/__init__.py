"""Measures the privacy that Terrine delivers, and checks what it recorded."""

from terrine_models.addons import Addon

ADDON = Addon(commands={"audit": "terrine_addons.audit.commands:audit"})
