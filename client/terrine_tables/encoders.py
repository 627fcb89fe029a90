"""Public encoders of texts: two files in a folder that give each text an embedding.

    embedding = declare_embedding(Path("minilm"))    # model.onnx, or a table, and tokenizer.json
    load_embedding(embedding).embed(["no fever since Monday"])       # [1, width], from 0 to 1

A table has a row of numbers for each token, and its sums are exact: whoever encodes gets the same
bytes. A transformer in ONNX is foreign code. It is given one text at a time, so that what it says
of one cannot depend on those beside it; and its products round as the processor and onnxruntime do,
so embeddings are rounded to few steps, and seldom differ elsewhere.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from terrine_protocol.errors import DataError
from terrine_protocol.files import read
from terrine_protocol.schema import MAX_EMBEDDING_WIDTH, Embedding, PublicFile

if TYPE_CHECKING:
    from tokenizers import Tokenizer

EMBEDDED_STEPS = 127
"""Steps of a number of an embedding to the largest of them."""
MAX_MODEL_BYTES = 4 * 2**30
MAX_TOKENIZER_BYTES = 256 * 2**20
MAX_TOKENS = 512
"""Of a text that a transformer is given, its special ones included; fewer if its tokenizer.json
truncates to fewer."""
TOKEN_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
"""What a transformer may take: the first, and any of the others."""
TOKEN_TYPES = {"tensor(int64)": np.int64, "tensor(int32)": np.int32}
SENTENCE_OUTPUT = "sentence_embedding"
"""The output of a transformer that is used; if it has none of this name, its first."""
CHANCE_OPERATORS = (
    "Bernoulli",
    "Multinomial",
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
)
"""What they draw follows from how often they were asked, and so from the texts before."""
ENCODERS = "TERRINE_ENCODERS"
"""The environment variable with the folders in which files of encoders are looked for."""


class TextEncoder(Protocol):
    """What gives texts embeddings."""

    @property
    def width(self) -> int:
        """Numbers in each embedding."""

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Embeddings [N, width] of clean texts, each of length 1, from −1 to 1 as 0 to 1.

        1/2 for each number of a text without tokens.
        """


class EmbeddingTable:
    """A static table of embeddings: a text's is the mean of the rows of its tokens."""

    def __init__(self, tokenizer: Tokenizer, rows: NDArray[np.float16]) -> None:
        self._tokenizer, self._rows = tokenizer, rows

    @property
    def width(self) -> int:
        """Numbers in each embedding."""
        return int(self._rows.shape[1])

    @classmethod
    def of_files(cls, table: PublicBytes, tokenizer: PublicBytes) -> EmbeddingTable:
        """Parse a safetensors file with one matrix, and a tokenizer.json. Raises DataError."""
        rows, known = _matrix(table), _tokenizer(tokenizer)
        most = _largest_token(known)
        if most >= len(rows):
            raise DataError(
                f"{tokenizer.path} has tokens up to number {most:,}, and {table.path} rows up to "
                f"{len(rows) - 1:,}: they do not belong together."
            )
        return cls(known, rows)

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """As `TextEncoder`."""
        found = np.empty((len(texts), self.width), np.float32)
        for row, text in enumerate(texts):
            tokens = self._tokenizer.encode(text, add_special_tokens=False).ids
            # Exact: what float16 holds are multiples of 2 ** -24, and float64 holds their sums.
            found[row] = _round_direction(self._rows[tokens].astype(np.float64).sum(0))
        return found


class Transformer:
    """A sentence encoder in ONNX: a text becomes its sentence output, or the mean of its tokens."""

    def __init__(self, session: Any, tokenizer: Tokenizer, width: int) -> None:
        self._session, self._tokenizer, self.width = session, tokenizer, width

    @classmethod
    def of_files(cls, model: PublicBytes, tokenizer: PublicBytes) -> Transformer:
        """Parse an ONNX file and a tokenizer.json, and try them. Raises DataError."""
        _check_model(model)
        session, known = _session(model), _tokenizer(tokenizer, MAX_TOKENS)
        _check_inputs(model, session)
        most, longest = _largest_token(known), (known.truncation or {})["max_length"]
        try:
            one = _sentence(session, [most])
        except Exception as error:  # onnxruntime's errors have no class in common
            raise DataError(
                f"{model.path} fails on token number {most:,}, the last of {tokenizer.path}: they "
                f"do not belong together, or it is not an encoder of texts: {_first_line(error)}."
            ) from None
        try:
            long = _sentence(session, [most] * longest)
        except Exception as error:  # onnxruntime's errors have no class in common
            raise DataError(
                f"{model.path} fails on a text of {longest} tokens: {_first_line(error)}. Let "
                f"{tokenizer.path} truncate to as many as it takes (truncation.max_length)."
            ) from None
        if not one.shape == long.shape or not 0 < len(one) <= MAX_EMBEDDING_WIDTH:
            raise DataError(
                f"{model.path} gives {len(one):,} numbers for one text and {len(long):,} for "
                f"another; expected as many for each, from 1 to {MAX_EMBEDDING_WIDTH:,}."
            )
        if not (np.isfinite(one).all() and np.isfinite(long).all()):
            raise DataError(f"{model.path} gives numbers that are not finite.")
        if not np.array_equal(one, _sentence(session, [most])):
            raise DataError(
                f"{model.path} answers the same text differently when it is asked again; export it "
                "for inference, as with model.eval()."
            )
        return cls(session, known, len(one))

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """As `TextEncoder`. A text on which the model fails has 1/2 for each number, too: what one
        record raises must not stop the others. Raises MemoryError."""
        if len(texts) == 1:  # in the thread that asks: whoever counts its work counts this
            found = [self._embed_one(texts[0])]
        else:
            with ThreadPoolExecutor(os.cpu_count() or 1, "terrine-encoder") as threads:
                found = list(threads.map(self._embed_one, texts))
        return np.array(found, np.float32).reshape(len(texts), self.width)

    def _embed_one(self, text: str) -> NDArray[np.float32]:
        nothing = np.zeros(self.width)
        try:
            encoding = self._tokenizer.encode(text)
            if all(encoding.special_tokens_mask):
                return _round_direction(nothing)
            found = _sentence(self._session, encoding.ids)
        except (KeyboardInterrupt, SystemExit, MemoryError):
            raise
        except BaseException as error:  # a panic of Rust is no Exception
            if "alloc" in str(error):  # std::bad_alloc, Failed to allocate
                raise MemoryError from None
            return _round_direction(nothing)
        fits = found.shape == (self.width,) and np.isfinite(found).all()
        return _round_direction(found if fits else nothing)


def _round_direction(vector: NDArray[np.float64]) -> NDArray[np.float32]:
    """A vector in its direction, of length 1 and whole multiples of a step, from 0 to 1."""
    largest = float(np.abs(vector).max(initial=0))
    if not largest:
        return np.full(len(vector), 0.5, np.float32)
    whole = np.rint(vector / largest * EMBEDDED_STEPS).astype(np.int64)
    unit = whole / math.sqrt(int((whole**2).sum()))
    found: NDArray[np.float32] = ((unit + 1) / 2).astype(np.float32)
    return found


def _sentence(session: Any, tokens: Sequence[int]) -> NDArray[np.float64]:
    """What a transformer says of one text [D]: nothing is padded, so every token counts.

    Raises DataError for another shape than [1, D] or [1, tokens, D], and what onnxruntime raises.
    """
    given = {
        each.name: np.full((1, len(tokens)), each.name == "attention_mask", TOKEN_TYPES[each.type])
        for each in session.get_inputs()
    }
    given["input_ids"][0] = tokens
    names = [each.name for each in session.get_outputs()]
    output = SENTENCE_OUTPUT if SENTENCE_OUTPUT in names else names[0]
    values: NDArray[Any] = np.asarray(session.run([output], given)[0])
    if values.ndim == 2:
        values = values[:, None]
    if values.dtype.kind != "f" or values.ndim != 3 or values.shape[0] != 1:
        raise DataError(
            f"its output {output} is {values.dtype} {list(values.shape)}, expected numbers in "
            "floating point, [1, D] or [1, tokens, D]"
        )
    mean: NDArray[np.float64] = values[0].mean(0, np.float64)
    return mean


def _check_model(file: PublicBytes) -> None:
    """Refuse a file that is not whole, or that draws by chance. Raises DataError."""
    import onnx
    from google.protobuf.message import DecodeError

    try:
        model = onnx.ModelProto.FromString(file.data)
    except DecodeError:
        raise DataError(f"{file.path} is not an ONNX file.") from None
    for message in messages_in(model):
        kind = type(message).__name__
        if kind == "TensorProto" and (message.data_location or message.external_data):
            raise DataError(
                f"{file.path} has weights in another file (external data). Put them into this one: "
                "onnx.save_model(onnx.load(path), path)."
            )
        if kind == "NodeProto" and message.op_type in CHANCE_OPERATORS:
            raise DataError(
                f"{file.path} draws by chance ({message.op_type}); export it for inference."
            )


def messages_in(message: Any) -> Iterator[Any]:
    """A protocol buffer message and all those in it."""
    yield message
    for kind, value in message.ListFields():
        if kind.message_type is not None:
            for each in [value] if hasattr(value, "ListFields") else value:
                yield from messages_in(each)


def _session(file: PublicBytes) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1  # the thread that calls
    options.use_deterministic_compute = True
    options.enable_cpu_mem_arena = False  # it would keep what the longest text needed
    options.enable_mem_pattern = False
    options.log_severity_level = 4  # what it says may depend on the text
    try:
        return onnxruntime.InferenceSession(file.data, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's errors have no class in common
        raise DataError(f"{file.path} cannot be loaded: {_first_line(error)}.") from None


def _check_inputs(file: PublicBytes, session: Any) -> None:
    inputs = session.get_inputs()
    names = [each.name for each in inputs]
    expected = f"{TOKEN_INPUTS[0]} and, if it likes, {' and '.join(TOKEN_INPUTS[1:])}"
    if TOKEN_INPUTS[0] not in names or not set(names) <= set(TOKEN_INPUTS):
        raise DataError(f"{file.path} takes {', '.join(names) or 'nothing'}; expected {expected}.")
    for each in inputs:
        shape = list(each.shape)
        whole = each.type in TOKEN_TYPES and len(shape) == 2
        if not whole or (shape[0] not in (1, None) and not isinstance(shape[0], str)):
            raise DataError(
                f"{file.path} takes {each.name} as {each.type} {shape}; expected whole numbers "
                "[batch, tokens]."
            )
        if isinstance(shape[1], int):
            raise DataError(
                f"{file.path} takes texts of {shape[1]} tokens alone; export it with a dynamic "
                "number of tokens."
            )


def _first_line(error: BaseException) -> str:
    text = next(iter(str(error).strip().splitlines()), type(error).__name__)[:300]
    return "".join(c if c.isprintable() else "\ufffd" for c in text).rstrip(".")


def _matrix(file: PublicBytes) -> NDArray[np.float16]:
    from safetensors import SafetensorError, deserialize

    try:
        parse: Callable[[bytes], list[tuple[str, Any]]] = deserialize
        tensors = [each for _, each in parse(file.data)]
    except (SafetensorError, ValueError, OverflowError) as error:
        raise DataError(f"{file.path} is not a safetensors file: {error}.") from None
    kinds: dict[str, Any] = {"F16": np.float16, "F32": np.float32, "F64": np.float64}
    fitting = [each for each in tensors if len(each["shape"]) == 2 and each["dtype"] in kinds]
    if len(fitting) != 1:
        shapes = ", ".join(f"{each['dtype']} {list(each['shape'])}" for each in tensors[:5])
        raise DataError(
            f"{file.path} holds {shapes or 'nothing'}; expected one matrix, tokens x numbers, of "
            "the type F16 or F32. A transformer is read as an ONNX file."
        )
    kind, shape = kinds[fitting[0]["dtype"]], fitting[0]["shape"]
    found = np.frombuffer(fitting[0]["data"], kind).reshape(shape)
    with np.errstate(over="ignore"):
        rows = found.astype(np.float16)
    if not all(rows.shape) or rows.shape[1] > MAX_EMBEDDING_WIDTH or not np.isfinite(rows).all():
        raise DataError(
            f"{file.path} has no rows, more than {MAX_EMBEDDING_WIDTH:,} numbers in each, or some "
            "that are not finite in float16."
        )
    return rows


def _tokenizer(file: PublicBytes, most_tokens: int | None = None) -> Tokenizer:
    """What cuts texts into tokens: into so many of a text at most, or fewer if the file says so."""
    from tokenizers import Tokenizer

    try:
        found = Tokenizer.from_str(file.data.decode())
        found.no_padding()
        own = found.truncation
        found.no_truncation()
        if most_tokens is not None:
            longest = most_tokens if own is None else min(most_tokens, own["max_length"])
            if longest <= found.num_special_tokens_to_add(is_pair=False):
                raise ValueError(f"it truncates texts to {longest} tokens")
            found.enable_truncation(longest)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic of Rust is no Exception
        raise DataError(f"{file.path} is not a tokenizer.json: {_first_line(error)}.") from None
    return found


def _largest_token(tokenizer: Tokenizer) -> int:
    return max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)


def declare_embedding(folder: Path) -> Embedding:
    """State that the encoder in a folder is public: a model, and its tokenizer.json.

    The model is the ONNX file, and without one the safetensors file. From now on this process finds
    them there. Raises DataError.
    """
    folder = Path(folder)
    models = sorted(folder.glob("*.onnx")) or sorted(folder.glob("*.safetensors"))
    tokenizers = sorted(folder.glob("tokenizer.json")) or sorted(folder.glob("*tokenizer*.json"))
    if len(models) != 1 or len(tokenizers) != 1:
        raise DataError(
            f"{folder} has {len(models)} models (*.onnx, or else *.safetensors) and "
            f"{len(tokenizers)} tokenizers; expected one of each: a transformer in ONNX or a table "
            "of tokens x numbers, and its tokenizer.json."
        )
    model = PublicBytes.read(models[0], MAX_MODEL_BYTES)
    tokenizer = PublicBytes.read(tokenizers[0], MAX_TOKENIZER_BYTES)
    named = {"model": model.named, "tokenizer": tokenizer.named}
    width = _encoder(model, tokenizer).width
    known_folders.insert(0, folder)
    return Embedding(**named, width=width)


def _encoder(model: PublicBytes, tokenizer: PublicBytes) -> TextEncoder:
    kind = Transformer if model.path.suffix == ".onnx" else EmbeddingTable
    try:
        return kind.of_files(model, tokenizer)
    except ImportError as error:
        extras = "embedding,onnx" if kind is Transformer else "embedding"
        raise DataError(
            f"{model.path} needs {error.name}, which is not installed. In a checkout: pip install "
            f"'.[{extras}]'. Hashed texts need nothing."
        ) from None


known_folders: list[Path] = []
"""Folders in which encoders are looked for first."""


@lru_cache(maxsize=4)
def load_embedding(embedding: Embedding) -> TextEncoder:
    """The encoder that a schema names, found by the names and digests of its files.

    It is looked for in `known_folders`, in those of the variable TERRINE_ENCODERS, and in the
    current one. Raises DataError.
    """
    model = _find(embedding.model, MAX_MODEL_BYTES)
    tokenizer = _find(embedding.tokenizer, MAX_TOKENIZER_BYTES)
    found = _encoder(model, tokenizer)
    if found.width != embedding.width:
        raise DataError(
            f"{model.path} gives {found.width} numbers for each text; the schema says "
            f"{embedding.width}."
        )
    return found


Embed = Callable[[Embedding, Sequence[str]], NDArray[np.float32]]
"""Embeddings [N, width] of clean texts, by what a schema says of their encoder."""


def embed_texts(embedding: Embedding, texts: Sequence[str]) -> NDArray[np.float32]:
    """As `Embed`, all at once. Raises DataError as `load_embedding`."""
    return load_embedding(embedding).embed(texts)


def _find(wanted: PublicFile, most: int) -> PublicBytes:
    named = [Path(each) for each in os.environ.get(ENCODERS, "").split(os.pathsep) if each]
    other = None
    for folder in [*known_folders, *named, Path()]:
        if (folder / wanted.name).is_file():
            found = PublicBytes.read(folder / wanted.name, most)
            if found.named == wanted:
                return found
            other = found
    if other is not None:
        raise DataError(
            f"{other.path} is another file than the schema names: its SHA-256 is "
            f"{other.named.sha256}, expected {wanted.sha256}. Get the one that the owner used."
        )
    raise DataError(
        f"Texts are encoded by the public file {wanted.name} (SHA-256 {wanted.sha256}), which is "
        f"in no folder that {ENCODERS} names. Get it from where the owner did, and set "
        f"{ENCODERS}=FOLDER."
    )


@dataclass(frozen=True)
class PublicBytes:
    """A public file, and what it holds."""

    path: Path
    data: bytes

    @classmethod
    def read(cls, path: Path, most: int) -> PublicBytes:
        """Read a file of at most so many bytes. Raises DataError."""
        try:
            return cls(path, read(path, most))
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror or error}.") from None

    @property
    def named(self) -> PublicFile:
        """Its name and digest."""
        return PublicFile(name=self.path.name, sha256=hashlib.sha256(self.data).hexdigest())
