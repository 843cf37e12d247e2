"""Fuzz the section parser and the sentence splitter: mutated reports must never break them.

    python scripts/fuzz/reports.py PATH --runs 100000

PATH is any source that `medclip-debias prepare` takes; its reports are the seeds. Run ``i`` depends
on ``--seed`` and ``i`` alone, so ``--start i --runs 1`` repeats it. Nothing of a report is printed.
Exits with 1 when an input raised, broke a promise, or took longer than ``--limit`` seconds.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import time
from collections import Counter
from pathlib import Path

from medclip_debias.data.sources.detect import detect
from medclip_debias.data.text.languages import language
from medclip_debias.data.text.reports import (
    ReportSettings,
    report_sentences_counted,
    sections_counted,
    words_in,
)
from medclip_debias.data.text.sentences import DROPPED

TOKENS = (
    *("\n", "\r\n", "\r", "\n \n", "\t", " ", ":", ": ", ".", "\u2028", "\x0b", "\x00", "\ufeff"),
    *("Hallazgos: ", "\n IMPRESIÓN:", "Conclusión : ", " izq. ", "Größe", " œdème", " . "),
    *("FINDINGS:", "\n FINDINGS:\n", "Impression: ", "IMPRESSION", "\n WET READ: 9:11 PM\n"),
    *("\n FINAL ADDENDUM\n", "COMPARISON", "findings:", "CHEST, TWO VIEWS (PA/LAT):", "LUNGS:"),
    *("\n PORTABLE CHEST, 10:30 A.M.: ", ". Comparison: ", " TECHNIQUE: ", "\n ETT: ", "\n XYZ: "),
    *("\n\n PORTABLE CHEST\n\n", ". PA VIEW: ", "\nDictated by: J. Roe, M.D.\n", "Signed by Dr. "),
    *(
        "FINAL REPORT",
        "_" * 78,
        "___",
        "XXXX",
        "1. ",
        "\n2) ",
        "(3) ",
        "- ",
        "\u2022 ",
        "Dr. ",
        "1.5",
    ),
    *(
        " cm. ",
        " approx. ",
        " pt. ",
        "Bilat. ",
        "No. of ",
        " ? ",
        "normal.The",
        " R.U.L. ",
        "3 p.m. ",
    ),
    *("\u222f", "\u2668", "\u0130", "\u00df", "\ud83d\ude00", "\u0301", "\u202e", "\\", "(?:", "["),
)
SETTINGS = (
    ReportSettings(language="en"),
    ReportSettings(sections=("impression", "wet_read", "addendum"), order="settings"),
    ReportSettings(sections=("findings",), fallback=(), min_words=3, max_words=20),
    ReportSettings(drop_repeated=True),
    ReportSettings(language="es"),
)
DEIDENTIFIED = re.compile(r"_+|\bX{3,}\b")


def main() -> int:
    """Run the target and print what happened."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("source", type=Path, help="source whose reports are the seeds")
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=float, default=2.0, help="seconds an input may take")
    chosen = parser.parse_args()
    seeds = sorted({s.report for s in detect(chosen.source).studies() if s.report})
    if not seeds:
        print(f"{chosen.source}: has no reports to start from.", file=sys.stderr)
        return 2
    failures: Counter[str] = Counter()
    slowest, slowest_run, characters = 0.0, chosen.start, 0
    begin = time.perf_counter()
    for run in range(chosen.start, chosen.start + chosen.runs):
        source = random.Random(f"{chosen.seed}:{run}")
        text = mutate(source, seeds)
        characters += len(text)
        start = time.process_time()
        try:
            problem = check(text, SETTINGS[run % len(SETTINGS)])
        except Exception as error:  # the point of the script is to see any
            problem = type(error).__name__
        took = time.process_time() - start
        if took > slowest:
            slowest, slowest_run = took, run
        if took > chosen.limit:
            problem = problem or "too slow"
        if problem:
            failures[problem] += 1
            print(f"run {run}: {problem} ({len(text)} characters)", file=sys.stderr)
    seconds = time.perf_counter() - begin
    print(
        f"{chosen.runs} inputs from {len(seeds)} reports, {characters / 1e6:.1f} M characters,"
        f" {seconds:.0f} s, slowest {slowest * 1e3:.0f} ms (run {slowest_run}),"
        f" failures: {dict(failures) or 'none'}"
    )
    return 1 if failures else 0


def mutate(source: random.Random, seeds: list[str]) -> str:
    """Return a report changed in up to eight places, or two of them spliced."""
    text = source.choice(seeds)
    if source.random() < 0.2:
        other = source.choice(seeds)
        text = text[: source.randint(0, len(text))] + other[source.randint(0, len(other)) :]
    for _ in range(source.randint(1, 8)):
        start = source.randint(0, len(text))
        end = min(len(text), start + int(source.expovariate(1 / 12)))
        text = text[:start] + _replacement(source, text[start:end]) + text[end:]
    return text


def _replacement(source: random.Random, piece: str) -> str:
    choices = (
        lambda: source.choice(TOKENS),
        lambda: source.choice(TOKENS) * source.randint(2, 40),
        lambda: "",
        lambda: piece * source.randint(2, 4),
        lambda: piece.swapcase(),
        lambda: piece[::-1],
        lambda: chr(source.randint(0, source.choice((0x2FF, 0xFFFF)))),
        lambda: piece.replace(" ", source.choice(("\n", "", "\n ", "\u00a0", "  "))),
    )
    return source.choice(choices)()


def check(text: str, settings: ReportSettings) -> str:
    """Return the promise that this input breaks, or ``""``."""
    spoken = "en" if settings.language == "auto" else settings.language
    cut = report_sentences_counted(text, settings)
    if cut.language != spoken:
        return "another language than the one given"
    named = (*settings.sections, *settings.fallback)
    found = sections_counted(text, named, language(spoken)).found
    if not all(name and piece and piece == piece.strip() for name, piece in found.items()):
        return "an empty section"
    if any(name != name.lower() or " " in name for name in found):
        return "a name that is not normal"
    kept, dropped, used, aside, _ = cut
    if used + aside.total() > words_in(text):
        return "words counted twice"
    if any(name == name.upper() or len(name) > 30 for name in aside):
        return "a heading of the report among the counts"
    if set(dropped) - set(DROPPED) or min(dropped.values(), default=1) < 1:
        return "an unknown count"
    for name, sentence in kept:
        if name not in found or sentence != " ".join(sentence.split()):
            return "a sentence that is not clean"
        if not any(c.isalpha() for c in DEIDENTIFIED.sub("", sentence)):
            return "a sentence without a word"
    if settings in (SETTINGS[0], *SETTINGS[-4:]) and not dropped["signature"]:
        wanted = [n for n in found if n in settings.sections]
        wanted = wanted or [n for n in settings.fallback if n in found][:1]
        whole = " ".join(found[name] for name in wanted)
        if _letters(whole) != _letters(" ".join(sentence for _, sentence in kept)):
            return "lost letters"
    return ""


def _letters(text: str) -> list[str]:
    return [c for c in DEIDENTIFIED.sub(" ", text) if c.isalpha()]


if __name__ == "__main__":
    sys.exit(main())
