"""A table of which studies agree with which sentences, one bit each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from medclip_debias.data.sources.ids import STUDY, Ids
from medclip_debias.errors import UserError, explained
from medclip_debias.files import atomic_file

Bools = NDArray[np.bool_]


def write_agreement(path: Path, texts: Sequence[str], studies: Sequence[str], agree: Bools) -> None:
    """Write the table as ``.npz``: ``texts``, ``studies`` and ``agree``, eight studies a byte.

    Args:
        path: of the file.
        texts: T distinct sentences.
        studies: S distinct study ids.
        agree: ``[T, S]``.
    """
    if agree.shape != (len(texts), len(studies)):
        raise ValueError(f"agree has shape {agree.shape}, expected {(len(texts), len(studies))}")
    with atomic_file(path) as temporary, temporary.open("wb") as stream:
        np.savez(
            stream,
            texts=np.array(texts, dtype=np.str_),
            studies=np.array(studies, dtype=np.str_),
            agree=np.packbits(agree, axis=1),
        )


def read_agreement(path: Path, texts: Sequence[str], studies: Sequence[str]) -> Bools:
    """Read the rows and columns wanted.

    Returns:
        ``[len(studies), len(texts)]``: whether the study agrees with the sentence.
    """
    with explained(f"{path}: this is no table of agreement", Exception):
        with np.load(path, allow_pickle=False) as content:
            known = {str(text): number for number, text in enumerate(content["texts"])}
            place = {str(name): number for number, name in enumerate(content["studies"])}
            agree = np.unpackbits(content["agree"], axis=1, count=len(place)).astype(bool)
        if agree.shape != (len(known), len(place)):
            raise ValueError
    ids = Ids(place, STUDY)
    studies = [ids.find(name) for name in studies]
    for what, wanted, there in (("sentences", texts, known), ("studies", studies, place)):
        absent = sum(name not in there for name in wanted)
        if absent:
            raise UserError(f"{path}: {absent} of the {len(wanted)} {what} are not in this table.")
    rows, columns = [known[text] for text in texts], [place[name] for name in studies]
    return np.ascontiguousarray(agree[np.ix_(rows, columns)].T)
