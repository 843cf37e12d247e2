"""Sentences of a report, each with the statement that it makes; their words: ``words.yaml``."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.resources import files
from itertools import accumulate
from typing import Any, TypeVar

import numpy as np

from medclip_debias.phantom.catalogue import CHEX5_TYPES, CLASSES, TYPES, FindingClass
from medclip_debias.phantom.settings import PhantomSettings
from medclip_debias.phantom.truth import Clause, Statement
from medclip_debias.yaml_text import parse_yaml

T = TypeVar("T")
DEVICES = ("line", "tube", "pacemaker")
# Zipf exponents that bring the shares of distinct and of commonest sentences near Open-i's.
NOUN_ZIPF, CARRIER_ZIPF, PLACE_ZIPF = 1.5, 1.5, 1.7
LUNG_TYPES = ("pneumonia", "edema", "atelectasis", "nodule")
ACUTE_TYPES = ("pneumonia", "edema", "effusion", "pneumothorax")


@dataclass(frozen=True, slots=True)
class Noun:
    """A way to name a finding.

    ``article`` is ``a``, ``an`` or empty (mass nouns and plurals); ``label`` the CheXpert column
    it ticks; ``category`` the MS-CXR category, where it differs from that of the type.
    """

    text: str
    article: str = ""
    plural: bool = False
    label: str | None = None
    category: str | None = None


def _noun(label: str | None, text: str, article: str, category: str | None = None) -> Noun:
    plural = article == "plural"
    return Noun(text, "" if plural else article, plural, category or label, category)


WORDS: dict[str, Any] = parse_yaml((files(__package__) / "words.yaml").read_text(encoding="utf-8"))
"""The lists of ``words.yaml`` by their names there; every list is in Zipf order."""
NOUNS: dict[str, list[Noun]] = {
    finding: [_noun(entry["label"], *name) for name in entry["names"]]
    for finding, entry in WORDS["nouns"].items()
}
"""Nouns of each type of finding."""


@dataclass(frozen=True, slots=True)
class Sentence:
    """Text of one sentence, its statement, and the nouns' MS-CXR category if they set one."""

    text: str
    statement: Statement
    category: str | None = None


@lru_cache(maxsize=64)
def _cumulative(n: int, exponent: float) -> tuple[float, ...]:
    weights = [1.0 / rank**exponent for rank in range(1, n + 1)]
    total = sum(weights)
    return tuple(accumulate(w / total for w in weights))


def pick(rng: np.random.Generator, items: Sequence[T], exponent: float = 1.0) -> T:
    """Draw one item with Zipf weights ``1 / rank ** exponent``."""
    return items[min(bisect(_cumulative(len(items), exponent), rng.random()), len(items) - 1)]


class Writer:
    """Writes sentences about findings with one random generator and one set of settings."""

    def __init__(self, rng: np.random.Generator, settings: PhantomSettings) -> None:
        self.rng = rng
        self.settings = settings

    # ------------------------------------------------------------------ noun phrases

    def _chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def noun_phrase(self, clause: Clause, noun: Noun, bare: bool = False) -> tuple[str, str]:
        """Return the phrase with and without its article, naming what the clause names."""
        before: list[str] = []
        after: list[str] = []
        if clause.severity:
            # "mildly enlarged heart", but "mild cardiomegaly"
            adverb = noun.text.startswith("enlarged")
            table = WORDS["severity_adverb"] if adverb else WORDS["severity"]
            before.append(pick(self.rng, table[clause.severity], PLACE_ZIPF))
        places: Sequence[str] = ()
        if clause.zone:
            after_noun = self._chance(0.45)
            places = WORDS["zone_after" if after_noun else "zone_before"][clause.zone]
        elif clause.side:
            after_noun = self._chance(0.3)
            places = WORDS["side_after"][:3] if after_noun else WORDS["side_before"]
        if places:
            place = pick(self.rng, places, PLACE_ZIPF).format(s=clause.side or "")
            (after if after_noun else before).append(" ".join(place.split()))
        if not bare and clause.present and self._chance(0.08):
            before.insert(0, pick(self.rng, WORDS["modifier"]))
        text = " ".join([*before, noun.text, *after])
        text += self._measurement(clause) if clause.present and not bare else ""
        article = noun.article
        if article and before:
            article = "an" if before[0][0] in "aeiou" else "a"
        return (f"{article} {text}" if article else text), text

    def _measurement(self, clause: Clause) -> str:
        rng = self.rng
        if clause.finding == "nodule" and self._chance(0.2):
            return (
                f" measuring {pick(rng, ['', 'approximately ', 'up to '])}{rng.integers(4, 19)} mm"
            )
        if clause.finding == "pneumothorax" and self._chance(0.15):
            size = rng.integers(5, 25) if clause.severity != "large" else rng.integers(25, 70)
            return f" measuring {size / 10:.1f} cm"
        if clause.finding == "tube" and self._chance(0.35):
            end = pick(rng, ["with tip", "ending", "terminating"])
            return f" {end} {rng.integers(20, 70) / 10:.1f} cm above the carina"
        if clause.finding == "line" and self._chance(0.3):
            return " " + pick(
                rng,
                [
                    "with tip in the mid SVC",
                    "terminating in the lower SVC",
                    "ending at the cavoatrial junction",
                    "with tip projecting over the upper SVC",
                ],
            )
        return ""

    def _fill(self, carrier: str, clause: Clause, noun: Noun) -> str:
        return _filled(carrier, *self.noun_phrase(clause, noun), noun.plural)

    def _tail(self, positive: bool) -> str:
        if positive and self._chance(0.06):
            return ", " + pick(self.rng, WORDS["positive_tails"], 0.7)
        if self._chance(0.09 if positive else 0.05):
            return ", " + pick(self.rng, WORDS["tails"], 0.7)
        return ""

    def _name(self, finding: FindingClass, always: bool = False) -> Clause:
        """Choose what of a present finding is named."""
        rate = 1.0 if always else self.settings.naming_rate
        side = finding.side if self._chance(rate) else None
        zone = finding.zone if self._chance(rate) else None
        severity = finding.severity if self._chance(rate) else None
        return Clause(finding.type, True, side, zone, severity)

    # ---------------------------------------------------------------------- positives

    def positive(
        self, finding: FindingClass, *, hedged: bool = False, always_name: bool = False
    ) -> Sentence:
        """State one present finding; a device is never hedged."""
        hedged = hedged and finding.type not in DEVICES
        # Now and then only the finding's name, as a headline: "Pneumothorax."
        short = 0.0 if always_name or hedged else 0.18 * (1.0 - self.settings.naming_rate)
        headline = self._chance(short)
        clause = Clause(finding.type, True) if headline else self._name(finding, always_name)
        clause = replace(clause, hedged=hedged)
        if headline:
            noun = pick(self.rng, NOUNS[clause.finding], NOUN_ZIPF)
            statement = Statement("positive", (replace(clause, label=noun.label),))
            return Sentence(finish(noun.text), statement, noun.category)
        if clause.finding == "cardiomegaly" and not hedged and self._chance(0.4):
            adverb = (
                pick(self.rng, WORDS["severity_adverb"][clause.severity]) if clause.severity else ""
            )
            text = pick(self.rng, WORDS["heart_positive"], CARRIER_ZIPF).replace("{v}", adverb)
            text = text.replace("  ", " ").replace("a enlarged", "an enlarged")
            clause = replace(clause, label="Cardiomegaly")
            category = None
        else:
            noun = pick(self.rng, NOUNS[clause.finding], NOUN_ZIPF)
            clause = replace(clause, label=noun.label)
            device = clause.finding in DEVICES
            certain = WORDS["device_positive"] if device else WORDS["positive"]
            carriers = WORDS["hedged"] if hedged else certain
            text = self._fill(pick(self.rng, carriers, CARRIER_ZIPF), clause, noun)
            category = noun.category
        text += self._tail(True)
        return Sentence(
            finish(text), Statement("hedged" if hedged else "positive", (clause,)), category
        )

    def bilateral(self, left: FindingClass, right: FindingClass) -> Sentence:
        """State two findings that differ in side (and perhaps severity) as a bilateral one."""
        severity = left.severity if left.severity == right.severity else None
        named = severity if severity and self._chance(self.settings.naming_rate) else None
        noun = pick(self.rng, [n for n in NOUNS[left.type] if n.plural] or NOUNS[left.type])
        clauses = tuple(
            Clause(left.type, True, side, None, named, label=noun.label)
            for side in ("right", "left")
        )
        size = pick(self.rng, WORDS["severity"][named]) + " " if named else ""
        phrase = f"{size}bilateral {noun.text}"
        text = _filled(pick(self.rng, WORDS["positive"], CARRIER_ZIPF), phrase, phrase, noun.plural)
        if left.severity != right.severity and self._chance(0.6):
            larger = "right" if right.severity == "large" else "left"
            text += f", {larger} greater than {'left' if larger == 'right' else 'right'}"
            clauses = tuple(
                replace(c, severity="large" if c.side == larger else "small") for c in clauses
            )
        else:
            text += self._tail(True)
        return Sentence(finish(text), Statement("compound", clauses))

    def compound(self, first: FindingClass, second: FindingClass) -> Sentence:
        """State two present findings in one sentence."""
        clauses, phrases = [], []
        for finding in (first, second):
            noun = pick(self.rng, NOUNS[finding.type], NOUN_ZIPF)
            clause = replace(self._name(finding), label=noun.label)
            phrases.append(self.noun_phrase(clause, noun, bare=True))
            clauses.append(clause)
        link = pick(self.rng, WORDS["adjacent"], 0.8)
        carrier = pick(self.rng, ["there is {a}", "{n}", "{n} are seen", "again seen is {a}"])
        text = carrier.replace("{a}", f"{phrases[0][0]} {link} {phrases[1][1]}")
        text = text.replace("{n}", f"{phrases[0][1]} {link} {phrases[1][1]}") + self._tail(True)
        return Sentence(finish(text), Statement("compound", tuple(clauses)))

    def mixed(self, finding: FindingClass, absent: str) -> Sentence:
        """State a present finding and deny an absent one in one sentence."""
        noun, other = (
            pick(self.rng, NOUNS[finding.type], NOUN_ZIPF),
            pick(self.rng, NOUNS[absent], NOUN_ZIPF),
        )
        clause = replace(self._name(finding), label=noun.label)
        denied = Clause(absent, False, label=other.label)
        link = pick(self.rng, ["without", "but no", "with no evidence of", "without associated"])
        phrase, bare = self.noun_phrase(clause, noun, bare=True)
        text = pick(self.rng, [f"there is {phrase}", bare]) + f" {link} {other.text}"
        if noun.plural:
            text = text.replace("there is", "there are", 1)
        return Sentence(finish(text), Statement("mixed", (clause, denied)))

    # ---------------------------------------------------------------------- negatives

    def negative(self, finding: str) -> Sentence:
        """Deny one finding; sometimes only on one side or of one severity."""
        noun = pick(self.rng, NOUNS[finding], NOUN_ZIPF)
        clause = Clause(finding, False, label=noun.label)
        if finding == "cardiomegaly" and self._chance(0.65):
            text = pick(self.rng, WORDS["heart_negative"], CARRIER_ZIPF) + self._tail(False)
            return Sentence(
                finish(text), Statement("negative", (replace(clause, label="Cardiomegaly"),))
            )
        possible = [c for c in CLASSES if c.type == finding]
        example = possible[int(self.rng.integers(len(possible)))]
        if self._chance(0.12):
            clause = replace(clause, severity=example.severity)
        if self._chance(0.12):
            clause = replace(clause, side=example.side, zone=example.zone)
        text = self._fill(
            pick(self.rng, WORDS["negative"], CARRIER_ZIPF), clause, noun
        ) + self._tail(False)
        return Sentence(finish(text), Statement("negative", (clause,)))

    def combined(self, absent: Sequence[str]) -> Sentence | None:
        """Deny several of the absent types in one sentence; None when no such sentence is true."""
        options: list[str] = []
        if all(t in absent for t in LUNG_TYPES):
            options.append("lungs")
        if len([t for t in absent if t in CHEX5_TYPES]) >= 2:
            options += ["list", "list"]
        if not options:
            return None
        if options[int(self.rng.integers(len(options)))] == "lungs":
            clauses = tuple(
                Clause(t, False, label="Lung Opacity" if t == "pneumonia" else None)
                for t in LUNG_TYPES
            )
            text = pick(self.rng, WORDS["lungs_clear"], CARRIER_ZIPF)
            if self._chance(0.45) and "effusion" in absent:
                others = [t for t in ("effusion", "pneumothorax") if t in absent]
                listed, more = self._list(others[: 1 + int(self._chance(0.6))])
                text += f" {pick(self.rng, ['without', 'with no', 'without evidence of'])} {listed}"
                clauses += more
        else:
            # Effusion and pneumothorax are what hospital reports deny together most often.
            ranked = [t for t in ("effusion", "pneumothorax", "pneumonia", "edema") if t in absent]
            ranked += [t for t in ("cardiomegaly",) if t in absent]
            count = 2 + int(self._chance(0.35)) + int(self._chance(0.1))
            keys = self.rng.random(len(ranked)) + 0.35 * np.arange(len(ranked))
            chosen = [ranked[i] for i in np.argsort(keys)[:count]]
            self.rng.shuffle(chosen)
            listed, clauses = self._list(chosen)
            text = pick(self.rng, WORDS["combined"], CARRIER_ZIPF).replace("{x}", listed)
        return Sentence(finish(text + self._tail(False)), Statement("combined", clauses))

    def _list(self, types: Sequence[str]) -> tuple[str, tuple[Clause, ...]]:
        nouns = [pick(self.rng, NOUNS[t], NOUN_ZIPF) for t in types]
        names = [n.text for n in nouns]
        text = names[0] if len(names) == 1 else ", ".join(names[:-1]) + f" or {names[-1]}"
        return text, tuple(
            Clause(t, False, label=n.label) for t, n in zip(types, nouns, strict=True)
        )

    def no_acute(self) -> Sentence:
        """Deny pneumonia, edema, effusion and pneumothorax at once."""
        clauses = tuple(Clause(t, False) for t in ACUTE_TYPES)
        text = pick(self.rng, WORDS["no_acute"], CARRIER_ZIPF) + self._tail(False)
        return Sentence(finish(text), Statement("combined", clauses))

    def boilerplate(self) -> Sentence:
        """Say something that no finding makes false."""
        if self._chance(0.3):
            text = self._slots(pick(self.rng, WORDS["incidental"], 0.3), 0.4)
        else:
            text = self._slots(pick(self.rng, WORDS["boilerplate"], 1.1), 1.4)
        return Sentence(finish(text), Statement("boilerplate"))

    def _slots(self, text: str, exponent: float) -> str:
        for name, items in {**WORDS["slots"], "thing2": WORDS["slots"]["thing"][::-1]}.items():
            if "{" + name + "}" not in text:
                continue
            chosen = pick(self.rng, items, exponent)
            singular = chosen in WORDS["singular"] or chosen.startswith(("a ", "an "))
            for verb in ("are", "are2"):
                if ("2" in name) == (verb == "are2") and name[:5] in ("struc", "thing"):
                    text = text.replace("{" + verb + "}", "is" if singular else "are")
            text = text.replace("{" + name + "}", chosen)
        return text.replace("{are}", "are").replace("{are2}", "are")

    def misspell(self, sentence: Sentence) -> Sentence:
        """Swap, drop or double one letter of one longer word, as a dictation does."""
        parts = sentence.text.split(" ")
        long = [i for i, w in enumerate(parts) if len(w) > 5 and w.strip(".,").isalpha() and i > 0]
        if not long:
            return sentence
        at = long[int(self.rng.integers(len(long)))]
        word = parts[at]
        k = int(self.rng.integers(1, len(word.strip(".,")) - 2))
        how = int(self.rng.integers(3))
        if how == 0:
            word = word[:k] + word[k + 1] + word[k] + word[k + 2 :]
        elif how == 1:
            word = word[:k] + word[k + 1 :]
        else:
            word = word[:k] + word[k] + word[k:]
        parts[at] = word
        return replace(sentence, text=" ".join(parts))


def _filled(carrier: str, with_article: str, without: str, plural: bool) -> str:
    return (
        carrier.replace("{a}", with_article)
        .replace("{n}", without)
        .replace("{is}", "are" if plural else "is")
        .replace("{has}", "have" if plural else "has")
    )


def finish(text: str) -> str:
    """First letter large, one full stop, single spaces."""
    text = " ".join(text.split())
    return text[0].upper() + text[1:] + ("" if text.endswith(".") else ".")


def absent_types(findings: np.ndarray) -> list[str]:
    """Types of which no class is present."""
    present = {CLASSES[i].type for i in np.flatnonzero(findings)}
    return [t for t in TYPES if t not in present]
