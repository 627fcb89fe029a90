"""Teachers and public backbones that were trained elsewhere, as ONNX files."""

from terrine_models.addons import Addon

ADDON = Addon(
    commands={
        "ensemble import": (
            "terrine_addons.onnx.commands:import_",
            "Import teachers that you have: check ONNX files and copy them into an ensemble.",
        ),
        "ensemble split": (
            "terrine_addons.onnx.commands:split_",
            "Split private data into disjoint shards (.npz), to train a teacher on each with "
            "anything.",
        ),
    },
    teachers="terrine_addons.onnx.teachers",
    backbones="terrine_addons.onnx.backbones:OnnxBackbone",
)
