"""Whether prompts say what they are meant to say: said in the training text, read the right way.

A text encoder that has never read a prompt may give it any vector: of Open-i's "Abnormal chest",
which no report says, the score fell where the chest was abnormal. So what training text does not
say is named, and so is a class whose AUC lies below .5 by more than chance.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from medclip_debias.data.prompts import load_prompts, packaged_sets

if TYPE_CHECKING:
    from medclip_debias.data.store import PreparedSet

UNSAID = "unsaid_prompts"
"""Key in a model's provenance; see `prompt_record`."""
_NAMED = 5
"""Prompts that a warning quotes; the others are counted."""


def training_sentences(data: PreparedSet) -> list[str]:
    """The distinct sentences of the studies that are trained on."""
    studies = data.studies.loc[data.studies["split"] == "train", "study_id"]
    table = data.sentences
    return list(dict.fromkeys(table.loc[table["study_id"].isin(set(studies)), "text"]))


def unsaid(prompts: Iterable[str], sentences: Iterable[str]) -> list[str]:
    """Those of ``prompts`` whose words stand, in their order and unbroken, in no sentence.

    Letter case, blanks and punctuation do not matter.

    >>> unsaid(["Pleural effusion", "Abnormal chest"], ["Small left pleural effusion."])
    ['Abnormal chest']
    """
    text = "\n".join(f" {bare_words(sentence)} " for sentence in sentences)
    return [prompt for prompt in prompts if f" {bare_words(prompt)} " not in text]


def bare_words(text: str) -> str:
    """The words of ``text`` in lower case, a blank between two."""
    return " ".join(re.findall(r"\w+", text.lower()))


def prompt_record(sentences: Iterable[str]) -> dict[str, Any]:
    """What a model keeps of its training sentences: which packaged prompts are in none of them.

    No sentence of a report is in it: the prompts come with the package, and all that is said of
    one is that no report says it.

    Returns:
        ``absent``, those prompts, and ``of``, 16 hex digits naming the prompts that were looked
        for.
    """
    prompts = _packaged()
    return {"absent": unsaid(prompts, sentences), "of": _digest(prompts)}


def unsaid_prompts(
    provenance: Mapping[str, Any], prompts: Sequence[str], data: PreparedSet | None = None
) -> list[str] | None:
    """Those of ``prompts`` that the training text of a model does not say; None if not known."""
    trained = provenance.get("provenance")
    hashed = trained.get("data_hash") if isinstance(trained, Mapping) else None
    if data is not None and hashed is not None and hashed == data.content_hash:
        return unsaid(prompts, training_sentences(data))
    record, packaged = provenance.get(UNSAID), _packaged()
    if not isinstance(record, Mapping) or record.get("of") != _digest(packaged):
        return None
    if not set(prompts) <= set(packaged):
        return None
    absent = set(record.get("absent") or ())
    return [prompt for prompt in prompts if prompt in absent]


def unsaid_warning(absent: Sequence[str] | None, count: int) -> list[str]:
    """One sentence on the prompts that training text does not say; none where there is none."""
    if not absent:
        return []
    quoted = ", ".join(f"'{prompt}'" for prompt in absent[:_NAMED])
    others = f" and {len(absent) - _NAMED} more" if len(absent) > _NAMED else ""
    return [
        f"{len(absent)} of {count} prompts are in no sentence that the model was trained on"
        f" ({quoted}{others}): how it scores them is not known; prefer words from its reports."
    ]


def inverted_warnings(aucs: Mapping[str, tuple[float, float, float]]) -> list[str]:
    """A sentence for each class whose AUC lies below .5 with its whole interval."""
    return [
        f"'{name}': its AUC is {value:.3f} [{low:.3f}, {high:.3f}], below .5: the model reads the"
        " prompts of this class the wrong way round; choose others."
        for name, (value, low, high) in aucs.items()
        if high < 0.5
    ]


@cache
def _packaged() -> list[str]:
    texts = (text for name in packaged_sets() for text in load_prompts(name).texts)
    return sorted(set(texts))


def _digest(prompts: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(prompts).encode()).hexdigest()[:16]
