"""Teachers and public backbones that were trained elsewhere, as ONNX files."""

from terrine_models.addons import Addon

ADDON = Addon(
    commands={
        "ensemble import": "terrine_addons.onnx.commands:import_",
        "ensemble split": "terrine_addons.onnx.commands:split_",
    },
    teachers="terrine_addons.onnx.teachers",
    backbones="terrine_addons.onnx.backbones:OnnxBackbone",
)
