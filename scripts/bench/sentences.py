"""Sample sentences for judging by eye, and say how many cuts the judged ones have wrong.

    python scripts/bench/sentences.py SOURCE                       # figures of the judged sample
    python scripts/bench/sentences.py SOURCE --show                # print those without a verdict

SOURCE is any source that `medclip-debias prepare` takes. Every sentence of findings and impression
has a key: a hash of its report's id, section and place (characters that are no blank before its
start and its end). A sample is the 300 sentences whose key, hashed with a seed (17, 18), comes
first: each sentence is as likely as any other, and a sentence that two splitters share is in the
samples of both, so that its verdict holds for both. Verdicts are in judged_openi.csv, a table
without any text:

- ``ok``: begins and ends where a reader would begin and end it;
- ``cut``: the cut behind it should not be there;
- ``missed N``: N cuts are missing in it; ``cut missed N`` for both.

What each of these means is in docs/data.md. Text is printed with ``--show`` alone.
"""

from __future__ import annotations

import csv
import hashlib
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import typer
from scipy.stats import binomtest

from medclip_debias.data.sources.detect import detect
from medclip_debias.data.text.reports import sections
from medclip_debias.data.text.sentences import deidentified_share, split_sentences

_NUMBERED = re.compile(r".*\(?\d{1,2}[.)]")
_GLUED = re.compile(r"[a-z]{2}\.[A-Z][a-z]")
JUDGED = Path(__file__).with_name("judged_openi.csv")
COUNT, SEEDS = 300, (17, 18)


class Sentence(NamedTuple):
    """A sentence and its place: what is before and behind it in the section, for judging.

    ``gap`` is what the splitter left out before it (the number of a list, mostly), ``report`` the
    place's report.
    """

    key: str
    before: str
    text: str
    after: str
    gap: str
    report: str


def located(place: str, text: str, sentences: list[str]) -> Iterator[Sentence]:
    """Yield the sentences of a section with their keys and surroundings."""
    whole = "".join(text.split())
    at = 0
    for number, sentence in enumerate(sentences):
        bare = "".join(sentence.split())
        start = whole.find(bare, at)
        if start < 0:
            raise SystemExit("A splitter changed the text; its sentences cannot be placed.")
        gap, at = whole[at:start], start + len(bare)
        key = hashlib.sha256(f"{place}|{start}|{at}".encode()).hexdigest()[:16]
        before = sentences[number - 1][-25:] if number else ""
        after = sentences[number + 1][:40] if number + 1 < len(sentences) else ""
        yield Sentence(key, before, sentence, after, gap, place.split("|")[0])


def sample(sentences: list[Sentence], count: int, seed: int) -> list[Sentence]:
    """Return the sentences whose keys, hashed with the seed, come first."""

    def order(sentence: Sentence) -> str:
        return hashlib.sha256(f"{seed}|{sentence.key}".encode()).hexdigest()

    return sorted(sentences, key=order)[:count]


def read_verdicts(path: Path) -> dict[str, tuple[int, int]]:
    """Return ``(wrong cuts behind it, cuts missing in it)`` by key."""
    if not path.is_file():
        return {}
    found = {}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            words = row["verdict"].split()
            missed = int(words[-1]) if "missed" in words else 0
            found[row["key"]] = int("cut" in words), missed
    return found


def counts(found: list[Sentence], texts: list[str]) -> str:
    """Say how much of the sentences is lists, de-identified words and boilerplate."""
    reports: dict[str, set[str]] = {}
    for sentence in found:
        reports.setdefault(sentence.text, set()).add(sentence.report)
    among = len({sentence.report for sentence in found})
    often = {text for text, having in reports.items() if len(having) > 0.01 * among}
    listed = sum(bool(_NUMBERED.fullmatch(sentence.gap)) for sentence in found)
    hidden = [deidentified_share(sentence.text) for sentence in found]
    glued = sum(len(_GLUED.findall(text)) for text in texts)
    dropped: Counter[str] = Counter()
    for text in texts:
        dropped += split_sentences(text)[1]
    boilerplate = sum(sentence.text in often for sentence in found)
    return "\n".join(
        (
            f"{len(found)} sentences of {among} reports, {len(reports)} distinct",
            f"behind the number of a list: {listed}",
            f"full stops without a blank in the text: {glued}",
            f"in more than 1% of the reports: {len(often)} distinct, {boilerplate} sentences"
            f" ({boilerplate / len(found):.1%})",
            f"with a de-identified word: {sum(share > 0 for share in hidden)}; at least half"
            f" de-identified: {sum(share >= 0.5 for share in hidden)}",
            f"dropped: {dict(dropped)}",
        )
    )


def figures(verdicts: list[tuple[int, int]]) -> str:
    """Say how many of 1,000 sentences end wrongly or miss a cut, with Wilson intervals."""
    lines = []
    for name, counts in (
        ("wrong cut behind it", [cut for cut, _ in verdicts]),
        ("cut missing in it", [min(missed, 1) for _, missed in verdicts]),
        ("either", [max(cut, min(missed, 1)) for cut, missed in verdicts]),
    ):
        bad, of = sum(counts), len(counts)
        low, high = binomtest(bad, of).proportion_ci(method="wilson")
        rate = f"{1e3 * bad / of:.1f} per 1,000 ({1e3 * low:.1f} to {1e3 * high:.1f})"
        lines.append(f"{name}: {bad} of {of} sentences, {rate}")
    lines.append(f"cuts missing in all: {sum(missed for _, missed in verdicts)}")
    return "\n".join(lines)


def main(source: Path, show: bool = False) -> None:
    """Print the figures of the judged samples, or the sentences that have no verdict."""
    texts = [
        (f"{study.study_id}|{name}", text)
        for study in detect(source).studies()
        for name, text in sections(study.report or "").items()
        if name in ("findings", "impression")
    ]
    found = [s for place, text in texts for s in located(place, text, split_sentences(text)[0])]
    samples = {f"sample of seed {seed}": sample(found, COUNT, seed) for seed in SEEDS}
    samples["all samples"] = list({s.key: s for drawn in samples.values() for s in drawn}.values())
    verdicts = read_verdicts(JUDGED)
    missing = [sentence for sentence in samples["all samples"] if sentence.key not in verdicts]
    if show:
        for one in missing:
            print(f"{one.key}  {one.before} [[{one.text}]] {one.after}")
    elif missing:
        sys.exit(f"{len(missing)} sentences have no verdict: --show.")
    else:
        print(counts(found, [text for _, text in texts]))
        for title, drawn in samples.items():
            print(f"\n{title}\n{figures([verdicts[s.key] for s in drawn])}")


if __name__ == "__main__":
    typer.run(main)
