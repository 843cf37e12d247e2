"""Sample sentences for judging by eye, and say how many cuts the judged ones have wrong.

    python scripts/bench/sentences.py SOURCE                       # figures of the judged sample
    python scripts/bench/sentences.py SOURCE --show                # print those without a verdict
    python scripts/bench/sentences.py SOURCE --splitter OLD.py     # the same of another splitter
    python scripts/bench/sentences.py SOURCE --against OLD.py      # the sentences that differ

SOURCE is any source that `medclip-debias prepare` takes. Every sentence of findings and impression
has a key: a hash of its report's id, section and place (characters that are no blank before its
start and its end). A sample is the ``--count`` sentences whose key, hashed with a ``--seed``, comes
first: each sentence is as likely as any other, and a sentence that two splitters share is in the
samples of both, so that its verdict holds for both. Verdicts are in ``--judged``, a table without
any text:

- ``ok``: begins and ends where a reader would begin and end it;
- ``cut``: the cut behind it should not be there;
- ``missed N``: N cuts are missing in it; ``cut missed N`` for both.

What each of these means is in docs/data.md. Text is printed with ``--show`` and ``--against``
alone.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import importlib.util
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from scipy.stats import binomtest

from medclip_debias.data.sources.detect import detect
from medclip_debias.data.text.reports import sections
from medclip_debias.data.text.sentences import deidentified_share, split_sentences

_NUMBERED = re.compile(r".*\(?\d{1,2}[.)]")
_GLUED = re.compile(r"[a-z]{2}\.[A-Z][a-z]")
JUDGED = Path(__file__).with_name("judged_openi.csv")
Splitter = Callable[[str], list[str]]


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


def main() -> int:
    """Print the sample, what differs, or the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("source", type=Path)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, nargs="+", default=[17, 18])
    parser.add_argument("--judged", type=Path, default=JUDGED)
    parser.add_argument("--splitter", type=Path, help="file with another split_sentences")
    parser.add_argument("--against", type=Path, help="file with the split_sentences to compare to")
    parser.add_argument("--show", action="store_true", help="print sentences without a verdict")
    chosen = parser.parse_args()
    texts = [
        (f"{study.study_id}|{name}", text)
        for study in detect(chosen.source).studies()
        for name, text in sections(study.report or "").items()
        if name in ("findings", "impression")
    ]
    split = splitter(chosen.splitter) if chosen.splitter else _kept
    if chosen.against:
        for line in differences(texts, split, splitter(chosen.against)):
            print(line)
        return 0
    found = [sentence for place, text in texts for sentence in located(place, text, split(text))]
    samples = [sample(found, chosen.count, seed) for seed in chosen.seed]
    sampled = list({sentence.key: sentence for drawn in samples for sentence in drawn}.values())
    verdicts = read_verdicts(chosen.judged)
    missing = [sentence for sentence in sampled if sentence.key not in verdicts]
    if chosen.show:
        for sentence in missing:
            print(f"{sentence.key}  {sentence.before} [[{sentence.text}]] {sentence.after}")
        return 0
    if missing:
        print(f"{len(missing)} of {len(sampled)} have no verdict: --show.", file=sys.stderr)
        return 1
    print(counts(found, [text for _, text in texts]))
    for seed, drawn in zip(chosen.seed, samples, strict=True):
        print(f"\nsample of seed {seed}\n{figures([verdicts[s.key] for s in drawn])}")
    if len(samples) > 1:
        print(f"\nall samples\n{figures([verdicts[s.key] for s in sampled])}")
    return 0


def _kept(text: str) -> list[str]:
    return split_sentences(text)[0]


def splitter(path: Path) -> Splitter:
    """Return `split_sentences` of another file, such as one that git holds of earlier times."""
    spec = importlib.util.spec_from_file_location("other_splitter", path)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{path}: is no Python file.")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def split(text: str) -> list[str]:
        found = module.split_sentences(text)
        return list(found[0] if isinstance(found, tuple) else found)  # with counts since

    return split


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


def differences(texts: list[tuple[str, str]], split: Splitter, other: Splitter) -> Iterator[str]:
    """Yield each cut that one of two splitters makes alone: ``+`` the first, ``-`` the other."""
    for place, text in texts:
        both = [{s.key: s for s in located(place, text, cut(text))} for cut in (split, other)]
        for mark, mine, theirs in (("+", both[0], both[1]), ("-", both[1], both[0])):
            for key in mine:
                if key not in theirs:
                    s = mine[key]
                    yield f"{mark} {key}  {s.before} [[{s.text}]] {s.after}"


if __name__ == "__main__":
    sys.exit(main())
