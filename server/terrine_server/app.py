"""Wires the rooms together; holds no logic."""
