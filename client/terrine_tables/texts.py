"""Texts as numbers: hashed n-grams.

    encode_texts(["no fever since Monday"], 2048)        # [1, 2048], from 0 to 1

Whoever encodes a text gets the same bytes: numbers are whole until their last division, which IEEE
754 defines, so neither a processor nor a version of NumPy decides about the last digit. Hashes are
those of this module, and not Python's, which differ from run to run.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from terrine_protocol.base import normalize

# Characters of a text that are read; what follows is cut off.
MAX_TEXT_CHARACTERS = 10_000
# Characters that are normalized together: that may take time that grows with their square.
NORMALIZED_CHARACTERS = 1_000
# One in so many numbers is for words and pairs of words; the others for parts of words.
WORD_SHARE = 4
# Characters in a part of a word, its ends included.
PART_LENGTHS = (3, 4, 5)
# Times that an n-gram of one text counts.
MAX_COUNT = 255
BATCH_CHARACTERS = 2**16
# Characters, and numbers, of the texts that are encoded together.
BATCH_NUMBERS = 2**22
# Steps of a scaled count to 1.
LOG_STEPS = 64
SCALED_COUNTS = np.array(
    [0] + [round(LOG_STEPS * (1 + math.log(count))) for count in range(1, MAX_COUNT + 1)]
)
PRIME = np.uint64(0x9E3779B97F4A7C15)
# Odd multipliers, modulo 2 ** 64.
PAIR = np.uint64(0xD6E8FEB86659FD93)


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


def encode_texts(texts: Sequence[str], width: int) -> NDArray[np.float32]:
    """Encode clean texts as numbers from 0 to 1: float32 [N, width].

    A text without a letter or a digit has no n-grams: 0 for each.
    """
    found = np.empty((len(texts), width), np.float32)
    for some in _batches(texts, width):
        found[some] = hash_texts(texts[some], width)
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


def hash_texts(texts: Sequence[str], width: int) -> NDArray[np.float32]:
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
