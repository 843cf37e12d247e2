"""Which language a report clearly is in: function words counted, and the script of its letters.

No library is needed: reports are short and telegraphic, statistical models of general text are
unsure of them, and what matters here is only to notice a report that is not in the language that
the source states. So the guess is conservative: where it is not clear, there is none.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from functools import lru_cache
from pathlib import Path

from medclip_debias.settings_files import load_yaml

MIN_WORDS = 4
"""Distinct function words of a language that a report must have of it."""

MIN_SHARE = 0.15
"""Share of a report's words that must be function words of its language."""

LEAD = 2.0
"""How many times as many as of any other language."""

_CODES = {"English": "en", "Spanish": "es", "French": "fr", "Portuguese": "pt", "German": "de"}
_WORD = re.compile(r"[^\W\d_]+")
_SCRIPTS = (
    "CYRILLIC",
    "GREEK",
    "ARABIC",
    "HEBREW",
    "CJK",
    "HANGUL",
    "HIRAGANA",
    "KATAKANA",
    "THAI",
)


def guess_language(text: str) -> str | None:
    """Return the language that a text clearly is in; ``None`` where it is not clear.

    Returns:
        The code of a supported language, or the English name of another (``Italian``,
        ``a language in Cyrillic letters``).

    >>> guess_language("Il cuore è nei limiti. Non si osservano lesioni della pleura.")
    'Italian'
    >>> guess_language("cambi pulmonar cronic sever")
    """
    words = _WORD.findall(text.lower())
    script = _script(words)
    if script:
        return f"a language in {script.capitalize()} letters"
    known = _known()
    all_hits: Counter[str] = Counter()
    own_hits: Counter[str] = Counter()
    for word in set(words):
        having = known.get(word, ())
        all_hits.update(having)
        if len(having) == 1:
            own_hits.update(having)
    if not own_hits:
        return None
    (best, own), *rest = own_hits.most_common(2)
    among = sum(best in known.get(word, ()) for word in words)
    clear = own >= LEAD * (rest[0][1] if rest else 0) and all_hits[best] == max(all_hits.values())
    if own < 2 or all_hits[best] < MIN_WORDS or among < MIN_SHARE * len(words) or not clear:
        return None
    return _CODES.get(best, best)


def _script(words: list[str]) -> str:
    """Name a script other than Latin that most letters are of; ``""`` for none."""
    letters = [c for word in words for c in word if not c.isascii()]
    if len(letters) < 10 or 2 * len(letters) < sum(map(len, words)):
        return ""
    names = Counter(unicodedata.name(c, "").split(" ", 1)[0] for c in letters)
    name, count = names.most_common(1)[0]
    return name if name in _SCRIPTS and 2 * count > len(letters) else ""


@lru_cache(maxsize=1)
def _known() -> dict[str, tuple[str, ...]]:
    """Languages by function word."""
    content = load_yaml(Path(__file__).with_name("words.yaml"))
    found: dict[str, tuple[str, ...]] = {}
    for group in ("supported", "unsupported"):
        for name, words in content[group].items():
            for word in words:
                found[word] = (*found.get(word, ()), name)
    return found
