"""Measures the privacy that Terrine delivers, and checks what it recorded."""
