"""Texts as numbers, by a public encoder: hashed n-grams, and beside them a table of embeddings.

    encode_texts(["no fever since Monday"], column)        # [1, encoded width - 1], from 0 to 1

Whoever encodes a text gets the same bytes: numbers are whole until their last division, which IEEE
754 defines, so neither a processor nor a version of NumPy decides about the last digit. Hashes are
those of this module, and not Python's, which differ from run to run.
"""

from __future__ import annotations

import hashlib
import math
import os
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from terrine_protocol.base import normalize
from terrine_protocol.files import read
from terrine_protocol.tables import Column, DataError, Embedding, PublicFile

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MAX_TEXT_CHARACTERS = 10_000
"""Characters of a text that are read; what follows is cut off."""
NORMALIZED_CHARACTERS = 1_000
"""Characters that are normalized together: that may take time that grows with their square."""
WORD_SHARE = 4
"""One in so many numbers is for words and pairs of words; the others for parts of words."""
PART_LENGTHS = (3, 4, 5)
"""Characters in a part of a word, its ends included."""
MAX_COUNT = 255
"""Times that an n-gram of one text counts."""
BATCH_CHARACTERS = 2**19
BATCH_NUMBERS = 2**22
"""Characters, and numbers, of the texts that are encoded together."""
LOG_STEPS = 64
"""Steps of a scaled count to 1."""
SCALED_COUNTS = np.array(
    [0] + [round(LOG_STEPS * (1 + math.log(count))) for count in range(1, MAX_COUNT + 1)]
)
PRIME = np.uint64(0x9E3779B97F4A7C15)
PAIR = np.uint64(0xD6E8FEB86659FD93)
"""Odd multipliers, modulo 2 ** 64."""
EMBEDDED_STEPS = 127
"""Steps of a number of an embedding to the largest of them."""
MAX_EMBEDDING_BYTES = 4 * 2**30
MAX_TOKENIZER_BYTES = 256 * 2**20
ENCODERS = "TERRINE_ENCODERS"
"""The environment variable with the folders in which files of encoders are looked for."""


def clean_text(value: object) -> tuple[str, bool]:
    """Return a text as it is encoded, and whether it was cut: in Unicode NFC, and its beginning.

    Half a surrogate pair, which JSON can write, becomes the sign for what cannot be read.
    """
    text = value if isinstance(value, str) else str(value)
    cut = len(text) > MAX_TEXT_CHARACTERS
    text = text[:MAX_TEXT_CHARACTERS]
    if not text.isascii():
        starts = range(0, len(text), NORMALIZED_CHARACTERS)
        parts = (text[start : start + NORMALIZED_CHARACTERS] for start in starts)
        text = "".join(normalize(part) for part in parts)
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text, cut


def encode_texts(texts: Sequence[str], column: Column) -> NDArray[np.float32]:
    """Encode clean texts as numbers from 0 to 1: float32 [N, width], and embeddings after them.

    A text without a letter or a digit has no n-grams, and its embedding is that of no tokens: 0
    for each n-gram, and 1/2 for each number of the embedding. Raises DataError if an encoder's
    file is missing, or another than the schema names.
    """
    width = column.width or 0
    embedded = 0 if column.embedding is None else column.embedding.width
    found = np.empty((len(texts), width + embedded), np.float32)
    for some in _batches(texts, width):
        found[some, :width] = hashed_texts(texts[some], width)
    if column.embedding is not None:
        table = load_embedding(column.embedding)
        for row, text in enumerate(texts):
            found[row, width:] = table.embed(text)
    return found


def _batches(texts: Sequence[str], width: int) -> Iterator[slice]:
    start = characters = 0
    for place, text in enumerate(texts):
        full = (place - start + 1) * width > BATCH_NUMBERS
        if place > start and (full or characters + len(text) > BATCH_CHARACTERS):
            yield slice(start, place)
            start, characters = place, 0
        characters += len(text)
    if start < len(texts):
        yield slice(start, len(texts))


def hashed_texts(texts: Sequence[str], width: int) -> NDArray[np.float32]:
    """The n-grams of clean texts, hashed: [N, width], each row of length 1, or 0 without words.

    A quarter of the numbers counts words and pairs of words, the others parts of words of
    `PART_LENGTHS` characters; either is of length 1/√2. A count c becomes 1 + log c.
    """
    words_width = width // WORD_SHARE
    codes, owner = _word_characters(texts)
    words, of_word = _hash_words(codes, owner)
    same = of_word[1:] == of_word[:-1]
    pairs = (words[:-1] * PAIR + words[1:])[same]
    places = [_places(words, of_word * width, words_width)]
    places.append(_places(pairs, of_word[1:][same] * width, words_width))
    for length in PART_LENGTHS:
        parts, of_part = _hash_parts(codes, owner, length)
        places.append(_places(parts, of_part * width + words_width, width - words_width))
    counts = np.bincount(np.concatenate(places), minlength=len(texts) * width)
    scaled = SCALED_COUNTS[np.minimum(counts, MAX_COUNT)].reshape(len(texts), width)
    found = np.zeros(scaled.shape, np.float32)
    for at in (slice(0, words_width), slice(words_width, width)):
        squares = (scaled[:, at] ** 2).sum(1, keepdims=True)
        found[:, at] = scaled[:, at] / np.sqrt(np.maximum(2 * squares, 1))
    return found


def _places(hashes: NDArray[np.uint64], starts: NDArray[np.intp], size: int) -> NDArray[np.intp]:
    """Where each n-gram is counted: among `size` numbers from its start."""
    return (_mix(hashes) % np.uint64(size)).astype(np.intp) + starts


def _word_characters(texts: Sequence[str]) -> tuple[NDArray[np.uint64], NDArray[np.intp]]:
    """The letters, marks and digits of texts without case, a 0 around each word; whose each is."""
    folded = [f"{text.casefold()} " for text in texts]
    raw = np.frombuffer("".join(folded).encode("utf-32-le", "surrogatepass"), np.uint32)
    owner = np.repeat(np.arange(len(texts)), [len(text) for text in folded])
    different, places = np.unique(raw, return_inverse=True)
    kept = [unicodedata.category(chr(each))[0] in "LMN" for each in different.tolist()]
    inside = np.array(kept, dtype=bool)[places.ravel()]
    shown = inside.copy()
    shown[1:] |= inside[:-1]  # of what is between words, the first
    codes = np.where(inside, raw, 0)[shown].astype(np.uint64)
    first = owner[shown]
    return np.concatenate([np.zeros(1, np.uint64), codes]), np.concatenate([first[:1], first])


def _hash_words(
    codes: NDArray[np.uint64], owner: NDArray[np.intp]
) -> tuple[NDArray[np.uint64], NDArray[np.intp]]:
    """A hash of each word, and whose it is."""
    inside = codes > 0
    starts = np.flatnonzero(inside[1:] & ~inside[:-1]) + 1
    if not len(starts):
        return np.zeros(0, np.uint64), np.zeros(0, np.intp)
    ends = np.flatnonzero(inside[:-1] & ~inside[1:]) + 1
    lengths = ends - starts
    powers = np.full(int(lengths.max()), PRIME)
    powers[0] = 1
    powers = np.multiply.accumulate(powers)
    place = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    terms = codes[inside] * powers[place]
    return np.add.reduceat(terms, np.cumsum(lengths) - lengths), owner[starts]


def _hash_parts(
    codes: NDArray[np.uint64], owner: NDArray[np.intp], length: int
) -> tuple[NDArray[np.uint64], NDArray[np.intp]]:
    """A hash of each part of a word with so many characters, and whose it is."""
    count = max(0, len(codes) - length + 1)
    hashes = np.full(count, np.uint64(length))
    whole = np.ones(count, dtype=bool)
    for place in range(length):
        some = codes[place : place + count]
        hashes = hashes * PRIME + some
        if 0 < place < length - 1:
            whole &= some > 0
    return hashes[whole], owner[1 : 1 + count][whole]


def _mix(hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Spread the bits of hashes (Steele and others, "Fast Splittable Pseudorandom Number
    Generators", OOPSLA 2014)."""
    hashes = (hashes ^ (hashes >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    hashes = (hashes ^ (hashes >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return hashes ^ (hashes >> np.uint64(31))


class EmbeddingTable:
    """A static table of embeddings: a row of numbers for each token. Make one with `of_files`.

    One text is tokenized at a time, so what is made of one depends on no other.
    """

    def __init__(self, tokenizer: Tokenizer, rows: NDArray[np.float16]) -> None:
        self._tokenizer, self._rows = tokenizer, rows

    @property
    def width(self) -> int:
        """Numbers in each embedding."""
        return int(self._rows.shape[1])

    @classmethod
    def of_files(cls, table: PublicBytes, tokenizer: PublicBytes) -> EmbeddingTable:
        """Parse a safetensors file with one matrix, and a tokenizer.json. Raises DataError."""
        try:
            rows, known = _matrix(table), _tokenizer(tokenizer)
        except ImportError:
            raise DataError(
                "Embeddings of texts need safetensors and tokenizers. In a checkout: pip install "
                "'.[embedding]'. Hashed texts need neither."
            ) from None
        most = max(known.get_vocab(with_added_tokens=True).values(), default=-1)
        if most >= len(rows):
            raise DataError(
                f"{tokenizer.path} has tokens up to number {most:,}, and {table.path} rows up to "
                f"{len(rows) - 1:,}: they do not belong together."
            )
        return cls(known, rows)

    def embed(self, text: str) -> NDArray[np.float32]:
        """The mean of the rows of a clean text's tokens, of length 1, from −1 to 1 as 0 to 1."""
        tokens = self._tokenizer.encode(text, add_special_tokens=False).ids
        # Exact: what float16 holds are multiples of 2 ** -24, and float64 holds their sums.
        total = self._rows[tokens].astype(np.float64).sum(0)
        largest = float(np.abs(total).max(initial=0))
        if not largest:
            return np.full(self.width, 0.5, np.float32)
        whole = np.rint(total / largest * EMBEDDED_STEPS).astype(np.int64)
        unit = whole / math.sqrt(int((whole**2).sum()))
        found: NDArray[np.float32] = ((unit + 1) / 2).astype(np.float32)
        return found


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
            "the type F16 or F32."
        )
    kind, shape = kinds[fitting[0]["dtype"]], fitting[0]["shape"]
    found = np.frombuffer(fitting[0]["data"], kind).reshape(shape)
    with np.errstate(over="ignore"):
        rows = found.astype(np.float16)
    if 0 in rows.shape or not np.isfinite(rows).all():
        raise DataError(f"{file.path} has no rows, or numbers that are not finite in float16.")
    return rows


def _tokenizer(file: PublicBytes) -> Tokenizer:
    from tokenizers import Tokenizer

    try:
        found = Tokenizer.from_str(file.data.decode())
        found.no_padding()
        found.no_truncation()
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic of Rust is no Exception
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise DataError(f"{file.path} is not a tokenizer.json: {reason}.") from None
    return found


def declare_embedding(folder: Path) -> Embedding:
    """State that the encoder in a folder is public: one safetensors file, and its tokenizer.json.

    From now on this process finds it there. Raises DataError.
    """
    folder = Path(folder)
    tables = sorted(folder.glob("*.safetensors"))
    tokenizers = sorted(folder.glob("tokenizer.json")) or sorted(folder.glob("*tokenizer*.json"))
    if len(tables) != 1 or len(tokenizers) != 1:
        raise DataError(
            f"{folder} has {len(tables)} safetensors files and {len(tokenizers)} tokenizers; "
            "expected one of each: a table of tokens x numbers, and its tokenizer.json."
        )
    table = PublicBytes.read(tables[0], MAX_EMBEDDING_BYTES)
    tokenizer = PublicBytes.read(tokenizers[0], MAX_TOKENIZER_BYTES)
    width = EmbeddingTable.of_files(table, tokenizer).width
    known_folders.insert(0, folder)
    return Embedding(table=table.named, tokenizer=tokenizer.named, width=width)


known_folders: list[Path] = []
"""Folders in which encoders are looked for first."""


@lru_cache(maxsize=4)
def load_embedding(embedding: Embedding) -> EmbeddingTable:
    """The encoder that a schema names, found by the names and digests of its files.

    It is looked for in `known_folders`, in those of the variable TERRINE_ENCODERS, and in the
    current one. Raises DataError.
    """
    table = _find(embedding.table, MAX_EMBEDDING_BYTES)
    tokenizer = _find(embedding.tokenizer, MAX_TOKENIZER_BYTES)
    found = EmbeddingTable.of_files(table, tokenizer)
    if found.width != embedding.width:
        raise DataError(
            f"{table.path} has {found.width} numbers for each token; the schema says "
            f"{embedding.width}."
        )
    return found


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
