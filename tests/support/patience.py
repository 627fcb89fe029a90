"""How long tests wait for what is to come."""

PATIENCE_SECONDS = 240
"""Less than pytest's own limit. Only a hang reaches it, also on a machine that does much else."""
