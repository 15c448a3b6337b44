"""Packing in slow, obvious Python: what the product must equal (`docs/howto/packing.md`).

A document is a list of tokens; a sequence is the list of its pieces. Nothing here is shared with the product.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

Pieces = list[list[int]]


def concat(documents: Sequence[Sequence[int]], length: int) -> list[Pieces]:
    """Returns all tokens, end to end, cut every `length`; a document that is cut goes on in the next sequence."""
    sequences: list[Pieces] = [[]]
    room = length
    for document in documents:
        rest = list(document)
        while rest:
            if room == 0:
                sequences.append([])
                room = length
            piece, rest = rest[:room], rest[room:]
            sequences[-1].append(piece)
            room -= len(piece)
    return [sequence for sequence in sequences if sequence]


def best_fit(documents: Sequence[Sequence[int]], length: int, window: int) -> list[Pieces]:
    """Returns the sequences of each window of documents, longest pieces first into the fullest that has room."""
    sequences: list[Pieces] = []
    for begin in range(0, len(documents), window):
        pieces = [
            list(document[at : at + length])
            for document in documents[begin : begin + window]
            for at in range(0, len(document), length)
        ]
        bins: list[list[int]] = []
        for index in sorted(range(len(pieces)), key=lambda index: (-len(pieces[index]), index)):
            rooms = [length - sum(len(pieces[other]) for other in held) for held in bins]
            fitting = [place for place, room in enumerate(rooms) if room >= len(pieces[index])]
            if fitting:
                bins[min(fitting, key=lambda place: (rooms[place], place))].append(index)
            else:
                bins.append([index])
        sequences += [[pieces[index] for index in sorted(held)] for held in sorted(map(sorted, bins))]
    return sequences


def row(pieces: Pieces, length: int, pad: int) -> list[int]:
    """Returns a sequence as the tokens of one row."""
    tokens = [token for piece in pieces for token in piece]
    return tokens + [pad] * (length - len(tokens))


def segments(pieces: Pieces, length: int) -> list[int]:
    """Returns the lengths of a row's pieces, with that of its padding."""
    lengths = [len(piece) for piece in pieces]
    rest = length - sum(lengths)
    return lengths + [rest] * (rest > 0)
