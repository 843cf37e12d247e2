"""Sentences that say the labels of a study, for archives that have labels and no reports.

CXR-CLIP (You et al. 2023) and UniChest (Dai et al. 2023) train so on such archives. The words are
those of the claims lexicon, so that the claims of a sentence are its label again; they stand in
``templates.yaml``. What is drawn for a study follows from the seed and its id alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Literal

from medclip_debias.config import Settings, json_hash, validate
from medclip_debias.data.layout import STATED, TEMPLATE
from medclip_debias.settings_files import load_yaml

State = Literal["present", "absent", "uncertain"]
STATES: dict[float, State] = {1.0: "present", 0.0: "absent", -1.0: "uncertain"}
"""What the values of a label mean."""
WORDINGS = 2
"""Most sentences of a label that is present or uncertain."""
ABSENT = 2
"""Most sentences of a study that say that something is absent, to be learned from."""


class Wording(Settings):
    """How a label is said; see ``templates.yaml``."""

    finding: str | None = None
    nouns: tuple[str, ...] = ()
    sentences: tuple[str, ...] = ()


class Wordings(Settings):
    """The content of ``templates.yaml``."""

    states: dict[State, tuple[str, ...]]
    labels: dict[str, Wording]


@cache
def wordings() -> Wordings:
    """Return how labels are said."""
    path = Path(__file__).with_name("templates.yaml")
    return validate(Wordings, load_yaml(path), path.name)


def wordings_hash() -> str:
    """Return 16 hex digits that name the wording: another one gives other sentences."""
    return json_hash([wordings().model_dump(mode="json"), WORDINGS, ABSENT])


@cache
def sentences_of(label: str, state: State) -> tuple[str, ...]:
    """Return every sentence that says a label in a state; none where there are no words for it.

    >>> sentences_of("Pneumothorax", "absent")
    ('No pneumothorax.', 'There is no pneumothorax.', 'No evidence of pneumothorax.')
    """
    wording = _wording(label)
    forms = wordings().states[state]
    said = (form.format(noun) for noun in wording.nouns for form in forms)
    sentences = tuple(words[:1].upper() + words[1:] for words in said)
    return sentences + (wording.sentences if state == "present" else ())


def sided_sentences(label: str, side: Literal["left", "right"]) -> list[str]:
    """Return the sentences that say that a label is present on one side.

    >>> sided_sentences("Pneumothorax", "left")[:2]
    ['There is left pneumothorax.', 'There is pneumothorax on the left.']
    """
    forms, nouns = wordings().states["present"], _wording(label).nouns
    placed = [words for noun in nouns for words in (f"{side} {noun}", f"{noun} on the {side}")]
    said = (form.format(words) for form in forms for words in placed)
    return [words[:1].upper() + words[1:] for words in said]


def contradicted(labels: Mapping[str, float | None]) -> set[str]:
    """Return the absent labels that another label of the study would contradict, if they were said.

    "No clavicle fracture." claims that there is no fracture, as the lexicon has it; beside a
    fractured rib that is false. So it is of "No opacity." beside a consolidation.

    >>> contradicted({"Rib fracture": 1.0, "Clavicle fracture": 0.0, "Edema": 0.0})
    {'Clavicle fracture'}
    """
    from medclip_debias.data.text.claims.lexicon import load_lexicon

    findings = {label: _wording(label).finding for label, v in labels.items() if v is not None}
    ancestors = load_lexicon().ancestors
    there = {finding for label, finding in findings.items() if labels[label] != 0 and finding}
    kinds = {above for finding in there for above in ancestors[finding]}
    return {label for label, finding in findings.items() if labels[label] == 0 and finding in kinds}


def label_sentences(
    labels: Mapping[str, float | None], study: str, seed: int = 0
) -> list[tuple[str, str]]:
    """Return sentences that say the labels of a study, each with its section.

    A label that is present or uncertain has up to `WORDINGS` sentences. Of those that are absent
    each has one, unless it is `contradicted`: `ABSENT` of them are to be learned from, the others
    (section `STATED`) are there for the claims of the study alone, for else most of what is learned
    would be that something is absent.
    """

    def rank(text: str) -> str:
        return hashlib.sha256(f"{seed}:{study}:{text}".encode()).hexdigest()

    learned: list[str] = []
    absent: list[str] = []
    for label in sorted({*labels} - contradicted(labels)):
        value = labels[label]
        if value is None:
            continue
        state = STATES[value]
        drawn = sorted(sentences_of(label, state), key=rank)
        if state == "absent":
            absent += drawn[:1]
        else:
            learned += drawn[:WORDINGS]
    absent.sort(key=rank)
    learned += absent[:ABSENT]
    return [
        *((TEMPLATE, text) for text in learned),
        *((STATED, text) for text in sorted(absent[ABSENT:])),
    ]


def _wording(label: str) -> Wording:
    return wordings().labels.get(label) or _by_name(label)


@cache
def _by_name(label: str) -> Wording:
    """A label that is said by its name, if the lexicon reads one finding in it."""
    from medclip_debias.data.text.claims.claim import Claim
    from medclip_debias.data.text.claims.rules import RuleParser

    noun = label.lower()
    claims = RuleParser().parse(f"There is {noun}.").claims
    if len(claims) != 1 or claims[0] != Claim(claims[0].finding):
        return Wording()
    return Wording(finding=claims[0].finding, nouns=(noun,))
