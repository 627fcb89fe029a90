"""A witness: cosigns the transparency log of somebody else."""

from terrine_models.addons import Addon

ADDON = Addon(
    commands={
        "witness": (
            "terrine_addons.witness.commands:witness",
            "Cosign the checkpoints of a transparency log that is not yours, until interrupted.",
        )
    },
    extras={"witness": "witness"},
)
