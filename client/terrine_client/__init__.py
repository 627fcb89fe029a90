"""Terrine's client: ask a private ensemble for labels, within a privacy budget."""
