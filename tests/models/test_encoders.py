"""Public encoders of texts, by the files of a folder: tables of embeddings, and transformers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from support.tables import TABLE_ROWS, write_encoder
from support.wording import refuses
from terrine_protocol.errors import DataError
from terrine_protocol.schema import Column, Embedding, PublicFile, TableSchema
from terrine_tables.encoders import (
    ENCODERS,
    MAX_TOKENS,
    declare_embedding,
    load_embedding,
)
from terrine_tables.encoding import encode_rows

LABEL = Column(name="label", role="label", values=("a", "b"))
SCHEMA = TableSchema(columns=(Column(name="text", role="text", width=256), LABEL))


def encoded(texts: Sequence[Any], schema: TableSchema = SCHEMA) -> NDArray[np.float32]:
    return encode_rows([{"text": text} for text in texts], schema, lambda said: None)


def test_an_embedding_stands_beside_the_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_encoder(tmp_path / "encoder")
    embedding = declare_embedding(tmp_path / "encoder")
    schema = propose_schema_of(embedding)
    texts = ["fever cough", "cough fever", "", "fever\ud800", "שלום"]
    found = encoded(texts, schema)
    assert np.array_equal(found[:, :256], encoded(texts)[:, :256])
    vectors = found[:, 256:-1] * 2 - 1
    assert np.square(vectors).sum(1) == pytest.approx([1, 1, 0, 1, 1], abs=1e-5)
    assert np.array_equal(vectors[0], vectors[1])
    assert np.array_equal(encoded(["cough fever"], schema)[0], found[1]), "beside any other"


def propose_schema_of(embedding: Embedding) -> TableSchema:
    text = Column(name="text", role="text", width=256, encoder="embedding", embedding=embedding)
    return TableSchema(columns=(text, LABEL))


def test_whoever_lacks_the_encoder_s_files_is_told_which(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = hashlib.sha256(b"x").hexdigest()
    schema = propose_schema_of(
        Embedding(
            model=PublicFile(name="gone.safetensors", sha256=digest),
            tokenizer=PublicFile(name="gone.json", sha256=digest),
            width=8,
        )
    )
    monkeypatch.setenv(ENCODERS, str(tmp_path))
    with refuses(DataError, "gone.safetensors", digest, ENCODERS):
        encoded(["fever"], schema)
    (tmp_path / "gone.safetensors").write_bytes(b"another")
    with refuses(DataError, str(tmp_path / "gone.safetensors"), digest):
        encoded(["fever"], schema)


def _cut_short(folder: Path) -> None:
    path = folder / "table.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def _lying_header(folder: Path) -> None:
    (folder / "table.safetensors").write_bytes((2**60).to_bytes(8, "little") + b"{}")


def _three_dimensions(folder: Path) -> None:
    write_encoder(folder, np.zeros((TABLE_ROWS, 2, 2), np.float32))


def _whole_numbers(folder: Path) -> None:
    write_encoder(folder, np.zeros((TABLE_ROWS, 8), np.int64))


def _not_finite(folder: Path) -> None:
    write_encoder(folder, np.full((TABLE_ROWS, 8), np.nan, np.float32))


def _more_tokens(folder: Path) -> None:
    write_encoder(folder, tokens=TABLE_ROWS + 60)


def _no_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text('{"version": "1.0", "model": {"type": "s3cret"}}')


def _pickle(folder: Path) -> None:
    (folder / "tokenizer.json").write_bytes(b"\x80\x04\x95\x00")


def _two_tables(folder: Path) -> None:
    (folder / "second.safetensors").write_bytes(b"")


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (_cut_short, ("table.safetensors",)),
        (_lying_header, ("table.safetensors",)),
        (_three_dimensions, ("table.safetensors", "matrix", "[40, 2, 2]")),
        (_whole_numbers, ("table.safetensors", "I64")),
        (_not_finite, ("table.safetensors", "finite")),
        (_more_tokens, ("tokenizer.json", 99, 39)),
        (_no_tokenizer, ("tokenizer.json",)),
        (_pickle, ("tokenizer.json",)),
        (_two_tables, (2, "safetensors")),
    ],
)
def test_an_encoder_that_is_none_is_refused(
    tmp_path: Path, spoil: Any, said: tuple[object, ...]
) -> None:
    write_encoder(tmp_path / "encoder")
    spoil(tmp_path / "encoder")
    with refuses(DataError, *said):
        declare_embedding(tmp_path / "encoder")


WIDTH, POSITIONS = 8, 40


class Attention(torch.nn.Module):
    """A transformer of one layer: tokens and their places, and what each sees in the others."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = torch.nn.Embedding(TABLE_ROWS, WIDTH)
        self.places = torch.nn.Embedding(POSITIONS, WIDTH)
        self.query, self.key, self.value = (torch.nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.norm = torch.nn.LayerNorm(WIDTH)

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor
    ) -> torch.Tensor:
        """States [B, T, WIDTH] of tokens [B, T]."""
        places = torch.arange(input_ids.shape[1])
        x = self.tokens(input_ids) + self.places(places) + token_type_ids[:, :, None]
        hidden = (1 - attention_mask[:, None]) * 1e9
        seen = self.query(x) @ self.key(x).transpose(1, 2) - hidden
        found: torch.Tensor = self.norm(x + seen.softmax(2) @ self.value(x))
        return found


def write_tokenizer(folder: Path, longest: int | None = POSITIONS, tokens: int = 7) -> None:
    """Words between a first and a last special token."""
    folder.mkdir(exist_ok=True)
    words = ["[CLS]", "[SEP]", "[UNK]", "fever", "cough", "sun", "snow"]
    words += [f"word{number}" for number in range(tokens - len(words))]
    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, "[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 0), ("[SEP]", 1)]
    )
    if longest is not None:
        made.enable_truncation(longest)
    made.enable_padding(length=30)  # of which nothing is heeded
    made.save(str(folder / "tokenizer.json"))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def write_transformer(folder: Path) -> Attention:
    folder.mkdir(exist_ok=True)
    torch.manual_seed(0)
    made = Attention().eval()
    names = ["input_ids", "attention_mask", "token_type_ids"]
    x = torch.zeros((1, 4), dtype=torch.int64)
    torch.onnx.export(
        made,
        (x, x + 1, x),
        folder / "model.onnx",
        input_names=names,
        output_names=["last_hidden_state"],
        dynamic_axes={each: {0: "batch", 1: "tokens"} for each in [*names, "last_hidden_state"]},
        dynamo=False,
    )
    write_tokenizer(folder)
    return made


def transformer_of(folder: Path) -> TableSchema:
    return propose_schema_of(declare_embedding(folder))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_transformer_s_embedding_is_the_mean_of_its_tokens(tmp_path: Path) -> None:
    made = write_transformer(tmp_path / "encoder")
    schema = transformer_of(tmp_path / "encoder")
    texts = ["fever cough", "snow", "cough fever", "fever " * 200, "", "?!"]
    found = encoded(texts, schema)
    assert np.array_equal(found[:, :256], encoded(texts)[:, :256]), "beside its n-grams"
    vectors = found[:, 256:-1] * 2 - 1
    tokens = [[0, 3, 4, 1], [0, 6, 1], [0, 4, 3, 1], [0, *[3] * (POSITIONS - 2), 1]]
    for each, vector in zip(tokens, vectors, strict=False):
        x = torch.tensor([each])
        with torch.no_grad():
            mean = made(x, torch.ones_like(x), torch.zeros_like(x))[0].mean(0).numpy()
        assert vector == pytest.approx(mean / np.linalg.norm(mean), abs=1 / 127)
    assert np.square(vectors[[0, 1, 2, 3, 5]]).sum(1) == pytest.approx(1, abs=1e-5)
    assert not vectors[4].any(), "a text without tokens"
    assert not np.array_equal(vectors[0], vectors[2]), "the order of words counts"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_schema_names_both_files_of_a_transformer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "encoder"
    write_transformer(folder)
    schema = transformer_of(folder)
    embedding = schema.columns[0].embedding
    assert embedding is not None
    for file in (embedding.model, embedding.tokenizer):
        assert file.sha256 == hashlib.sha256((folder / file.name).read_bytes()).hexdigest()
    assert (embedding.model.name, embedding.width) == ("model.onnx", WIDTH)
    monkeypatch.setattr("terrine_tables.encoders.known_folders", [])
    monkeypatch.setenv(ENCODERS, str(folder))
    write_tokenizer(folder, longest=5)
    load_embedding.cache_clear()
    with refuses(DataError, "tokenizer.json", embedding.tokenizer.sha256):
        encoded(["fever"], schema)


Nodes = Sequence[onnx.NodeProto]
IDS = helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "tokens"])
STATES = helper.make_tensor_value_info("states", TensorProto.FLOAT, None)
ROWS = np.random.default_rng(0).normal(size=(7, WIDTH)).astype(np.float32)


def write_graph(
    folder: Path,
    nodes: Nodes | None = None,
    given: Sequence[onnx.ValueInfoProto] = (IDS,),
    rows: NDArray[Any] = ROWS,
    said: Sequence[onnx.ValueInfoProto] = (STATES,),
) -> None:
    """A graph whose weights are `rows`, and a tokenizer of 7 tokens. Its nodes make `states`."""
    folder.mkdir(exist_ok=True)
    graph = helper.make_graph(
        nodes or [helper.make_node("Gather", ["rows", "input_ids"], ["states"])],
        "encoder",
        given,
        said,
        [numpy_helper.from_array(rows, "rows")],
    )
    opset = helper.make_opsetid("", 18)
    onnx.save_model(
        helper.make_model(graph, opset_imports=[opset], ir_version=10), folder / "model.onnx"
    )
    write_tokenizer(folder, longest=None)


def gathered(*after: tuple[str, Sequence[str], Sequence[str]], **attributes: Any) -> Nodes:
    """The rows of tokens as `x`, and what follows. The attributes are of the last node."""
    nodes = [("Gather", ["rows", "input_ids"], ["x"]), *after]
    return [helper.make_node(*each, **(attributes if each is nodes[-1] else {})) for each in nodes]


def test_a_transformer_is_given_one_text_at_a_time(tmp_path: Path) -> None:
    """Its scale is taken over all that it is given: an extreme text would change the others."""
    scaled = gathered(
        ("DynamicQuantizeLinear", ["x"], ["whole", "scale", "zero"]),
        ("DequantizeLinear", ["whole", "scale", "zero"], ["states"]),
    )
    rows = ROWS.copy()
    rows[6] *= 1000
    write_graph(tmp_path / "encoder", scaled, rows=rows)
    schema = transformer_of(tmp_path / "encoder")
    texts = ["fever", "cough fever", "snow", "sun cough"]
    together = encoded(texts, schema)
    for text, row in zip(texts, together, strict=True):
        assert np.array_equal(encoded([text], schema)[0], row)


def test_a_sentence_output_is_used_as_it_is(tmp_path: Path) -> None:
    sentence = helper.make_tensor_value_info("sentence_embedding", TensorProto.FLOAT, None)
    nodes = [
        *gathered(("Identity", ["x"], ["states"])),
        helper.make_node("ReduceMax", ["x", "axis"], ["sentence_embedding"], keepdims=0),
        helper.make_node("Constant", [], ["axis"], value_ints=[1]),
    ]
    nodes.insert(1, nodes.pop())
    write_graph(tmp_path / "encoder", nodes, said=(STATES, sentence))
    vector = encoded(["fever"], transformer_of(tmp_path / "encoder"))[0, 256:-1] * 2 - 1
    expected = ROWS[[0, 3, 1]].max(0)
    assert vector == pytest.approx(expected / np.linalg.norm(expected), abs=1 / 127)


def test_a_text_on_which_a_transformer_fails_stops_no_other(tmp_path: Path) -> None:
    """What one private record raises would else be seen in all."""
    places = np.array([0, 1, 2, 10**6, 4, 5, 6])
    nodes = [
        helper.make_node("Constant", [], ["places"], value=numpy_helper.from_array(places)),
        helper.make_node("Gather", ["places", "input_ids"], ["chosen"]),
        helper.make_node("Gather", ["rows", "chosen"], ["states"]),
    ]
    write_graph(tmp_path / "encoder", nodes)
    found = encoded(["fever", "cough"], transformer_of(tmp_path / "encoder"))[:, 256:-1]
    assert (found[0] == 0.5).all()
    assert (found[1] != 0.5).any()


def _external(folder: Path) -> None:
    write_graph(folder, rows=np.ones((7, 1000), np.float32))
    onnx.save_model(
        onnx.load(folder / "model.onnx"),
        folder / "model.onnx",
        save_as_external_data=True,
        location="s3cret.data",
    )


def _pictures(folder: Path) -> None:
    pixels = helper.make_tensor_value_info("pixel_values", TensorProto.FLOAT, ["b", 3, 8, 8])
    write_graph(folder, [helper.make_node("Identity", ["pixel_values"], ["states"])], [pixels])


def _numbers_as_tokens(folder: Path) -> None:
    ids = helper.make_tensor_value_info("input_ids", TensorProto.FLOAT, ["batch", "tokens"])
    write_graph(folder, [helper.make_node("Identity", ["input_ids"], ["states"])], [ids])


def _fixed_length(folder: Path) -> None:
    ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", 128])
    write_graph(folder, given=[ids])


def _wrong_rank(folder: Path) -> None:
    write_graph(folder, gathered(("Flatten", ["x"], ["y"]), ("Size", ["y"], ["states"])))
    path = folder / "model.onnx"
    model = onnx.load(path)
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.INT64
    onnx.save_model(model, path)


def _size_of_the_text(folder: Path) -> None:
    write_graph(folder, gathered(("Flatten", ["x"], ["states"]), axis=1))


def _not_finite_numbers(folder: Path) -> None:
    write_graph(folder, rows=np.full((7, WIDTH), np.inf, np.float32))


def _by_chance(folder: Path) -> None:
    drawn = ("RandomNormalLike", ["x"], ["y"])
    write_graph(folder, gathered(drawn, ("Add", ["x", "y"], ["states"])))


def _tokens_that_the_model_lacks(folder: Path) -> None:
    write_graph(folder)
    write_tokenizer(folder, tokens=60)


def _longer_than_it_takes(folder: Path) -> None:
    write_transformer(folder)
    write_tokenizer(folder, longest=10**9)


def _truncated_to_nothing(folder: Path) -> None:
    write_graph(folder)
    write_tokenizer(folder, longest=5)
    path = folder / "tokenizer.json"
    path.write_text(path.read_text().replace('"max_length": 5', '"max_length": 0'))


def _another_file(folder: Path) -> None:
    write_graph(folder)
    (folder / "model.onnx").write_bytes(b"\x80\x04\x95s3cret")


def _cut_model(folder: Path) -> None:
    write_graph(folder)
    path = folder / "model.onnx"
    path.write_bytes(path.read_bytes()[:-20])


def _too_wide(folder: Path) -> None:
    write_graph(folder, rows=np.ones((7, 5000), np.float32))


def _two_models(folder: Path) -> None:
    write_graph(folder)
    (folder / "second.onnx").write_bytes(b"")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (_external, ("model.onnx", "external")),
        (_pictures, ("model.onnx", "pixel_values", "input_ids")),
        (_numbers_as_tokens, ("model.onnx", "input_ids", "tensor(float)")),
        (_fixed_length, ("model.onnx", 128)),
        (_wrong_rank, ("model.onnx", "int64", "[]")),
        (_size_of_the_text, ("model.onnx", WIDTH, "4,096")),
        (_not_finite_numbers, ("model.onnx", "finite")),
        (_by_chance, ("model.onnx", "RandomNormalLike")),
        (_tokens_that_the_model_lacks, ("model.onnx", "tokenizer.json", 59)),
        (_longer_than_it_takes, ("model.onnx", "tokenizer.json", MAX_TOKENS, "truncation")),
        (_truncated_to_nothing, ("tokenizer.json", 0)),
        (_another_file, ("model.onnx", "ONNX")),
        (_cut_model, ("model.onnx",)),
        (_too_wide, ("model.onnx", "5,000", "4,096")),
        (_two_models, (2, "*.onnx")),
    ],
)
def test_a_transformer_that_is_none_is_refused(
    tmp_path: Path, spoil: Callable[[Path], None], said: tuple[object, ...]
) -> None:
    spoil(tmp_path / "encoder")
    with refuses(DataError, *said) as caught:
        declare_embedding(tmp_path / "encoder")
    assert "s3cret" not in str(caught.value)
