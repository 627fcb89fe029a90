"""Write a fitted model of another library as an ONNX file, where that library is at hand.

    from terrine_models.teachers.convert import to_onnx

    to_onnx(model, "models/00017.onnx", shape=20)

It takes the living object: Terrine never loads a pickle. It is a shorthand for the converters' own
calls, and any other way to write an ONNX file will do.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from terrine_models.storage.onnx_models import ModelError, first_line, require_onnx

NEEDED = {
    "torch": (),
    "lightgbm": ("onnxmltools", "skl2onnx"),
    "xgboost": ("onnxmltools", "skl2onnx"),
    "sklearn": ("skl2onnx",),
}
"""The packages that convert each library's models. A model of LightGBM or XGBoost may be one of
scikit-learn's as well, so these come first."""


def to_onnx(model: Any, path: Path | str, shape: int | Sequence[int]) -> None:
    """Write `model`, which takes float32 inputs [B, *shape], to an ONNX file.

    A module of PyTorch keeps its output, scores [B, m]; it is switched to inference. A classifier
    of scikit-learn, LightGBM or XGBoost keeps the label that it predicts, and no probabilities.
    Raises ModelError for any other model, if the converter is not installed, and if it fails.
    """
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    origins = {kind.__module__.partition(".")[0] for kind in type(model).__mro__}
    library = next((name for name in NEEDED if name in origins), None)
    if library is None:
        raise ModelError(
            f"A {type(model).__name__} is no model of {', '.join(NEEDED)}. Write it as ONNX with "
            "its own library's exporter"
        )
    require_onnx(*NEEDED[library])
    if library == "torch":
        _export_torch(model, Path(path), sizes)
        return
    try:
        proto = _converted(library, model, sizes)
    except Exception as error:  # of libraries that know this kind of model in other versions alone
        raise ModelError(
            f"{' and '.join(NEEDED[library])} cannot convert this {type(model).__name__}: "
            f"{first_line(_cause(error))[:200].rstrip('.')}. Try another kind of model, other "
            "versions of them, or another program that writes ONNX"
        ) from None
    labels = [each for each in proto.graph.output if each.name == "label"]
    if not labels:
        raise ModelError(f"A {type(model).__name__} is no classifier: it predicts no label")
    del proto.graph.output[:]
    proto.graph.output.extend(labels)
    Path(path).write_bytes(proto.SerializeToString())


def _cause(error: Exception) -> Exception:
    """What it began with: what is said of it later may quote the whole model."""
    before = error.__cause__ or error.__context__
    return _cause(before) if isinstance(before, Exception) else error


def _export_torch(model: Any, path: Path, sizes: tuple[int, ...]) -> None:
    import torch

    with warnings.catch_warnings():
        # The newer exporter needs one more package and splits large weights off the file.
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.onnx.export(
            model.eval(),
            (torch.zeros((2, *sizes)),),
            str(path),
            input_names=["x"],
            output_names=["scores"],
            dynamic_axes={"x": {0: "batch"}, "scores": {0: "batch"}},
            dynamo=False,
        )


def _converted(library: str, model: Any, sizes: tuple[int, ...]) -> Any:
    # Imported by name: the server's image, which holds all that Terrine imports, converts nothing.
    package = NEEDED[library][0]
    converter = import_module(package)
    within = "common" if package == "skl2onnx" else "convert.common"
    types = import_module(f"{package}.{within}.data_types")
    inputs = [("x", types.FloatTensorType([None, *sizes]))]
    match library:
        case "sklearn":
            options = {id(model): {"zipmap": False}} if hasattr(model, "predict_proba") else None
            return converter.to_onnx(model, initial_types=inputs, options=options)
        case "lightgbm":
            return converter.convert_lightgbm(model, initial_types=inputs, zipmap=False)
        case _:
            return converter.convert_xgboost(model, initial_types=inputs)
