"""Reads the judged sections, and counts the cuts that a splitter gets wrong in them."""

import re
from pathlib import Path

FILE = Path(__file__).with_name("judged_sentences.txt")


def judged():
    """Return ``(text, sentences)`` of each section."""
    pairs = []
    for line in FILE.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("# "):
            parts = [re.sub(r"\{[^}]*\}", "", part) for part in line.split("|")]
            sentences = [" ".join(part.replace("⏎", " ").split()) for part in parts]
            text = re.sub(r" ?\| ?(?=⏎)|(?<=⏎) ?\| ?", "", line)
            text = re.sub(r"(?<! )\|(?! )", "", text.replace(" | ", " "))
            text = text.replace("⏎", "\n").replace("{", "").replace("}", "")
            pairs.append((text, [sentence for sentence in sentences if sentence]))
    return pairs


def wrong_cuts(expected, found):
    """Return how many cuts are missing or too many; lost or added words count as one."""
    ends = [_ends(sentences) for sentences in (expected, found)]
    same = "".join("".join(expected).split()) == "".join("".join(found).split())
    return len(ends[0] ^ ends[1]) + (not same)


def _ends(sentences):
    ends, total = set(), 0
    for sentence in sentences:
        total += len("".join(sentence.split()))
        ends.add(total)
    return ends
