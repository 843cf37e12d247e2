"""From a sentence to the terms of the lexicon in it: the longest term at each place."""

from __future__ import annotations

from dataclasses import dataclass, field

from medclip_debias.data.text.claims.lexicon import Lexicon, tokens

SHORTEST_CORRECTED = 5
"""Letters of a word that may be read as a word of the lexicon one letter away."""

_MARKS = {".": "stop", ";": "stop", ",": "comma", "(": "comma", ")": "comma", ":": "verbs"}
_MARKS |= {"/": "joins", "&": "joins"}


@dataclass(slots=True)
class Item:
    """A term of a sentence, or a word that the lexicon does not have.

    Attributes:
        words: its tokens.
        kinds: what it is (``finding``, ``side``, ``negation_before``, ...), and the values.
        claimed: a modifier that belongs to a finding, or a structure that only says where.
    """

    words: tuple[str, ...]
    kinds: dict[str, tuple[str, ...]] = field(default_factory=dict)
    claimed: bool = False

    def has(self, *kinds: str) -> bool:
        return any(kind in self.kinds for kind in kinds)

    @property
    def text(self) -> str:
        return " ".join(self.words)


class Scanner:
    """Finds the terms of a lexicon."""

    def __init__(self, lexicon: Lexicon) -> None:
        self._terms = lexicon.phrases
        self._longest: dict[str, int] = {}
        for words in self._terms:
            self._longest[words[0]] = max(self._longest.get(words[0], 0), len(words))
        self._words = {word for words in self._terms for word in words}
        self._near: dict[str, list[str]] = {}
        for word in self._words:
            if len(word) >= SHORTEST_CORRECTED and word.isalpha():
                for short in {word, *_shorter(word)}:
                    self._near.setdefault(short, []).append(word)

    def scan(self, text: str) -> tuple[list[Item], int]:
        """Return the items of a text, and how many of its words were corrected."""
        words = tokens(text)
        corrected = 0
        for i, word in enumerate(words):
            if len(word) >= SHORTEST_CORRECTED and word not in self._words:
                right = self._correct(word)
                corrected += right != word
                words[i] = right
        items, at = [], 0
        while at < len(words):
            longest = min(self._longest.get(words[at], 0), len(words) - at)
            phrases = (tuple(words[at : at + length]) for length in range(longest, 0, -1))
            phrase = next((phrase for phrase in phrases if phrase in self._terms), None)
            if phrase is not None:
                items.append(self._item(phrase))
            else:
                mark = _MARKS.get(words[at])
                items.append(Item((words[at],), {mark: ("",)} if mark else {}))
            at += len(items[-1].words)
        return items, corrected

    def _item(self, phrase: tuple[str, ...]) -> Item:
        kinds = dict(self._terms[phrase])
        if len(phrase) > 1 and ("finding" in kinds or "structure" in kinds):
            for inner in range(len(phrase)):  # "elevated left diaphragm" says a side
                for length in (2, 1):
                    part = self._terms.get(phrase[inner : inner + length], {})
                    for kind in ("side", "zone"):
                        if kind in part and inner + length <= len(phrase):
                            kinds.setdefault(kind, part[kind])
        return Item(phrase, kinds)

    def _correct(self, word: str) -> str:
        candidates = {
            known
            for short in (word, *_shorter(word))
            for known in self._near.get(short, ())
            if known[0] == word[0] and _one_apart(word, known)
        }
        return candidates.pop() if len(candidates) == 1 else word


def _shorter(word: str) -> list[str]:
    return [word[:i] + word[i + 1 :] for i in range(len(word))]


def _one_apart(a: str, b: str) -> bool:
    """Whether one letter was left out, added, changed, or swapped with its neighbour."""
    if len(a) == len(b):
        apart = [i for i in range(len(a)) if a[i] != b[i]]
        if len(apart) == 2:
            i, j = apart
            return j == i + 1 and a[i] == b[j] and a[j] == b[i]
        return len(apart) == 1
    long, short = (a, b) if len(a) > len(b) else (b, a)
    return len(long) == len(short) + 1 and short in _shorter(long)
