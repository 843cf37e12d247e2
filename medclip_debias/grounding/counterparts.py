"""What a sentence says is there, and the sentence that says that it is not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from medclip_debias.data.text.claims.claim import Claim
from medclip_debias.data.text.claims.rules import RuleParser
from medclip_debias.grounding.denials import is_groundable

GENERAL = "No acute cardiopulmonary process."
"""Stands against a sentence in which no finding of the lexicon is named."""


class Reader:
    """Reads sentences with the rules of docs/claims.md; each distinct one once."""

    def __init__(self) -> None:
        parser = RuleParser()
        self.lexicon = parser.lexicon

        @lru_cache(maxsize=1 << 17)
        def claims(text: str) -> tuple[Claim, ...]:
            return parser.parse(text).claims

        self.claims = claims

    def asserted(self, text: str) -> tuple[str, ...]:
        """Findings that the sentence says are there, each once."""
        return tuple(dict.fromkeys(c.finding for c in self.claims(text) if c.present))

    def denies(self, text: str) -> bool:
        """Whether the sentence only says that something is absent or normal.

        True where the words say so (`medclip_debias.grounding.denials`), or where claims were
        read and all are of absence. A sentence in which nothing is read denies nothing.
        """
        claims = self.claims(text)
        all_absent = bool(claims) and not any(claim.present for claim in claims)
        return all_absent or not is_groundable(text)

    def states(self, text: str) -> bool:
        """Whether all that the sentence claims is there for certain, and it claims something."""
        claims = self.claims(text)
        stated = all(claim.present and claim.certain for claim in claims)
        return bool(claims) and stated and is_groundable(text)

    def negated(self, text: str) -> str:
        """The sentence that denies what this one says is there: "No X or Y.".

        >>> Reader().negated("Small left pleural effusion."), Reader().negated("As before.")
        ('No pleural effusion.', 'No acute cardiopulmonary process.')
        """
        names = [name.replace("_", " ") for name in self.asserted(text)]
        return f"No {' or '.join(names)}." if names else GENERAL

    def named(self, text: str) -> list[str]:
        """The sentence with nothing but its findings; none where none is read.

        >>> Reader().named("There is now a small left pleural effusion with atelectasis.")
        ['Atelectasis and pleural effusion.']
        """
        names = [name.replace("_", " ") for name in self.asserted(text)]
        return [f"{' and '.join(names)}.".capitalize()] if names else []


@dataclass(frozen=True)
class StatedFindings:
    """What a report says of the findings of one study."""

    there: frozenset[str]
    denied: frozenset[str]

    @classmethod
    def of(cls, texts: Iterable[str], reader: Reader) -> StatedFindings:
        """From the sentences of a report.

        A denial of one side or zone, or of what is new, denies nothing of the whole image.
        """
        above, below = reader.lexicon.ancestors, reader.lexicon.descendants
        there: set[str] = set()
        denied: set[str] = set()
        for claim in (claim for text in texts for claim in reader.claims(text)):
            if claim.present:
                there |= above[claim.finding] | below[claim.finding]
            elif claim.certain and not (claim.side or claim.zone or claim.change == "new"):
                denied |= below[claim.finding]
        return cls(frozenset(there), frozenset(denied))

    def lacks(self, findings: Sequence[str]) -> bool:
        """Whether every one of ``findings`` (one at least) is denied and none may be there."""
        return bool(findings) and all(
            name in self.denied and name not in self.there for name in findings
        )


def without_words(text: str) -> list[str]:
    """The sentence with each of its words left out in turn; none for a sentence of one word.

    >>> without_words("Small left effusion.")
    ['left effusion.', 'Small effusion.', 'Small left.']
    """
    words = text.split()
    if len(words) < 2:
        return []
    end = text.rstrip()[-1] if text.rstrip()[-1] in ".!?" else ""
    shorter = (" ".join(words[:n] + words[n + 1 :]) for n in range(len(words)))
    return [one if not end or one.endswith(end) else one + end for one in shorter]
