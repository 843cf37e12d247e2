"""The sentences that a user hands in: checked, read from a file, and cut as the encoder cuts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from medclip_debias.errors import UserError
from medclip_debias.files import read_text
from medclip_debias.models.sentences import sentence_list

if TYPE_CHECKING:
    from medclip_debias.models.interface import ImageTextModel

_LARGEST = 1 << 30


def checked_sentences(texts: str | Sequence[str]) -> list[str]:
    """The sentences without surrounding white space; none may be empty. A string is one."""
    sentences = [text.strip() for text in sentence_list(texts)]
    if not sentences:
        raise UserError("No sentence was given; pass at least one with --text.")
    for number, text in enumerate(sentences, start=1):
        if not any(one.isprintable() and not one.isspace() for one in text):
            raise UserError(
                f"Sentence {number} is empty; write what to look for, as in 'Left lung.'."
            )
        if any("\ud800" <= one <= "\udfff" for one in text):
            raise UserError(f"Sentence {number} is not UTF-8 text; write it in UTF-8.")
    return sentences


def read_sentences(path: Path) -> list[str]:
    """Sentences of a UTF-8 text file, one a line; blank lines are left out."""
    return read_lines(Path(path), "sentence", "sentences")


def read_lines(path: Path, one: str, several: str) -> list[str]:
    """The lines of a UTF-8 text file that are not blank; there has to be ``one``."""
    remedy = f"give a text file of {several}, one per line, in UTF-8"
    content = read_text(path, remedy, limit=_LARGEST, encoding="utf-8-sig")
    lines = [line.strip() for line in content.splitlines() if line.strip()]
    if not lines:
        raise UserError(f"{path}: lists no {one}; write one per line.")
    return lines


def cut_sentences(model: ImageTextModel, sentences: Sequence[str]) -> dict[int, int]:
    """Which sentences are longer than the model's encoder reads.

    They are not refused: the encoder reads their first tokens, as it did in training. Whoever
    shows a result should say so.
    """
    # A sentence has at most as many tokens as characters, [CLS] and [SEP] aside.
    counts = [len(ids) for ids in model.tokenizer.encode(sentences, max(map(len, sentences)) + 2)]
    return {place: count for place, count in enumerate(counts) if count > model.max_tokens}


def cut_notes(model: ImageTextModel, sentences: Sequence[str]) -> list[str]:
    """One line about each sentence that is cut; it names its number, not its words."""
    cut = cut_sentences(model, sentences)
    return [
        f"Sentence {place + 1} has {tokens} tokens; the model reads the first"
        f" {model.max_tokens} of them."
        for place, tokens in cut.items()
    ]
