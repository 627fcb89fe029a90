"""ONNX files: of teachers and public backbones that were trained elsewhere, and of students."""

from terrine_models.addons import Addon

ADDON = Addon(
    commands={
        "ensemble import": (
            "terrine_addons.onnx.commands:import_",
            "Import teachers that you have: check ONNX files and copy them into an ensemble.",
        ),
        "student export": (
            "terrine_addons.onnx.students:export_",
            "Write a student as an ONNX graph, which any runtime loads without Terrine.",
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
