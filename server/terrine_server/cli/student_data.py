"""The data of a student's commands: files, converted as the project's ensemble says."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from terrine_server.cli.console import fail, writing
from terrine_server.cli.tables import note

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from terrine_client import Client, Labels
    from terrine_client.distill import Examples
    from terrine_models.students.settings import Training
    from terrine_protocol.images import ImageFormat
    from terrine_protocol.tables import TableSchema


@dataclass(frozen=True)
class StudentFiles:
    """How a student's files are read: what the command line says of it."""

    accept_clipped: bool

    def check(self, path: Path) -> None:
        """Refuse what cannot be read, before anything else is asked for."""
        from terrine_models.data.images import list_images
        from terrine_models.tables.loading import check_table, is_table

        if is_table(path):
            check_table(path)
        elif path.is_dir():
            list_images(path)

    def public(
        self, path: Path, client: Client
    ) -> tuple[npt.NDArray[np.generic], TableSchema | None]:
        """Inputs without labels, and the schema of a table."""
        from terrine_models.data.arrays import load_inputs
        from terrine_models.data.images import load_images
        from terrine_models.tables.loading import is_table
        from terrine_protocol.tables.encoding import encode_table

        if not is_table(path):
            if path.is_dir():
                return load_images(path, self._image(path, client)), None
            return load_inputs(path), None
        schema = self._schema(path, client)
        return encode_table(path, schema, note, accept_clipped=self.accept_clipped), schema

    def held_out(self, path: Path, client: Client) -> Examples:
        """Labelled data, with the class names of the project."""
        from terrine_models.data.arrays import load_idx, load_npz
        from terrine_models.data.images import load_image_classes
        from terrine_models.tables.loading import is_table, load_table

        ensemble = client.project().ensemble
        classes = ensemble.classes
        if is_table(path):
            data = load_table(path, self._schema(path, client), note, public=True)
        elif path.suffix.lower() == ".npz":
            data = load_npz(path, classes=classes)
        elif path.is_dir() and ensemble.image is not None:
            data = load_image_classes(path, ensemble.image, classes=classes)
        else:
            data = load_idx(path, classes=classes)
        return data.inputs, data.labels

    def _schema(self, path: Path, client: Client) -> TableSchema:
        schema = client.project().ensemble.encoding
        if schema is None:
            fail(
                f"{path} is a table, and the server does not say how its rows are encoded. Send "
                "arrays of the ensemble's shape (GET /project): .npy, or .npz with x."
            )
        return schema

    def _image(self, path: Path, client: Client) -> ImageFormat:
        image = client.project().ensemble.image
        if image is None:
            fail(
                f"{path} is a folder, and the project's ensemble was not trained on folders of "
                "pictures. Convert them to an .npy array of its shape (GET /project) yourself."
            )
        return image


def rehearse(
    client: Client,
    inputs: npt.NDArray[np.generic],
    examples: Examples | None,
    queries: int | None,
    training: Training,
) -> Table:
    """Check data and options as the training would, and say what it could cost, for nothing."""
    from terrine_client.distill import check_data, check_training, task_of
    from terrine_server.cli.student_report import spent_by_whom

    project = client.project()
    check_data(inputs, project, examples)
    check_training(training, task_of(inputs, project))
    wanted = min(len(inputs), queries or len(inputs))
    left = client.budget()
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_row("project", f"{project.name} ({project.status}), {project.mechanism.name}")
    table.add_row("inputs", f"{len(inputs):,}, as the ensemble takes them; {wanted:,} to be asked")
    if examples is not None:
        table.add_row("held out", f"{len(examples[0]):,} labelled inputs, none of them to be asked")
    table.add_row(
        "ε spent",
        f"{left.epsilon_spent:.4g} of {left.epsilon:g}, δ {left.delta:g}"
        f"{spent_by_whom(str(project.mechanism.name))}",
    )
    fits = f"all {wanted:,}" if wanted <= left.affordable else f"at least {left.affordable:,}"
    table.add_row("queries", f"{fits} fit the budget, whatever the answers")
    table.add_row("", "Nothing was sent and nothing was charged.")
    return table


def save_labels(labels: Labels, out: Path) -> None:
    """Write answers as arrays to an .npz file, or as rows to a .csv file."""
    import numpy as np

    from terrine_client import NO_COUNT
    from terrine_protocol.files import replacing
    from terrine_server.sheets import Sheet

    names = np.array([name or "" for name in labels.names], dtype=np.str_)
    if out.suffix.lower() == ".npz":
        arrays: dict[str, Any] = {
            name: getattr(labels, name)
            for name in ("outcomes", "labels", "charges", "noisy_counts", "noise_sigma")
        }
        given = {name: value for name, value in arrays.items() if value is not None}
        with replacing(out) as archive:
            np.savez_compressed(archive, **given, names=names)
        return
    columns: dict[str, list[Any]] = {
        "outcome": labels.outcomes.tolist(),
        "label": ["" if label < 0 else label for label in labels.labels.tolist()],
        "label_name": names.tolist(),
        "charge": ["" if charge < 0 else charge for charge in labels.charges.tolist()],
    }
    if labels.noisy_counts is not None:
        for label, counts in enumerate(labels.noisy_counts.T.tolist()):
            columns[f"count_{label}"] = ["" if count == NO_COUNT else count for count in counts]
    with writing(out) as file:
        sheet = Sheet(file)
        sheet.row(columns)
        for row in zip(*columns.values(), strict=True):
            sheet.row(row)
