"""Terrine's server: private votes, priced and paid for."""
