"""Compare the language of a phantom with that of the Open-i reports, number by number.

    python scripts/phantom_language.py NLMCXR_reports.tgz PHANTOM_FOLDER

Both sides go through the same sentence splitter (pysbd), the same word splitter, and the same two
language models, each fitted on half of the reports and scoring the sentences of the other half: an
add-one trigram, and (with --masked-lm STEPS) a small masked language model by its
pseudo-log-likelihood, as the training itself uses it.
The larger side is cut to the smaller one's number of reports, since every share of distinct
sentences depends on how many there are.
"""

from __future__ import annotations

import math
import random
import re
import tarfile
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import typer
from defusedxml.ElementTree import fromstring

WORD = re.compile(r"[a-z]+|\d+|_+|[^\sa-z\d]")


def openi_reports(path: Path) -> list[str]:
    """Findings and impression of every Open-i report, with XXXX written as ``___``."""
    texts = []
    with tarfile.open(path) as tar:
        for member in tar:
            if not member.name.endswith(".xml"):
                continue
            handle = tar.extractfile(member)
            root = fromstring(handle.read()) if handle else None
            parts = [
                node.text or ""
                for node in (root.iter("AbstractText") if root is not None else [])
                if node.get("Label") in ("FINDINGS", "IMPRESSION")
            ]
            text = re.sub(r"\bX{3,}\b", "___", " ".join(p for p in parts if p))
            if text.strip():
                texts.append(text)
    return texts


def phantom_reports(folder: Path) -> list[str]:
    """Findings and impression of every training report of a phantom."""
    import pandas as pd

    sentences = pd.read_parquet(folder / "truth" / "sentences.parquet")
    images = pd.read_parquet(folder / "truth" / "images.parquet", columns=["study_id", "split"])
    keep = set(images.study_id[images.split == "train"])
    grouped = sentences[sentences.study_id.isin(keep)].groupby("study_id", sort=False).text
    return [" ".join(texts) for _, texts in grouped]


def split(reports: list[str]) -> list[list[str]]:
    """Sentences of each report, list numbers dropped."""
    import pysbd

    segmenter = pysbd.Segmenter(language="en", clean=False)
    result = []
    for report in reports:
        found = (re.sub(r"^\d+\.\s*", "", s.strip()) for s in segmenter.segment(report))
        result.append([s for s in found if re.search(r"[A-Za-z]", s)])
    return result


class Trigram:
    """Add-one trigram over words, with the vocabulary of its training half plus one unknown."""

    def __init__(self, sentences: list[str]) -> None:
        self.three: Counter[tuple[str, str, str]] = Counter()
        self.two: Counter[tuple[str, str]] = Counter()
        words = [WORD.findall(s.lower()) for s in sentences]
        self.known = {w for s in words for w in s} | {"</s>"}
        for sentence in words:
            for a, b, c in self._triples(sentence):
                self.three[a, b, c] += 1
                self.two[a, b] += 1

    @staticmethod
    def _triples(words: list[str]) -> list[tuple[str, str, str]]:
        row = ["<s>", "<s>", *words, "</s>"]
        return list(zip(row, row[1:], row[2:], strict=False))

    def log_prob(self, sentence: str) -> float:
        """Natural log of the probability of a sentence, its end included."""
        words = [w if w in self.known else "<unk>" for w in WORD.findall(sentence.lower())]
        size = len(self.known) + 1
        return sum(
            math.log((self.three[a, b, c] + 1) / (self.two[a, b] + size))
            for a, b, c in self._triples(words)
        )


def masked_lm_scores(fit: list[str], score: list[str], steps: int, seed: int) -> list[float]:
    """Pseudo-log-likelihood of ``score`` under a small BERT trained on ``fit``."""
    from medclip_debias.language.masked_lm import LanguageModelSettings, train_masked_lm
    from medclip_debias.language.scoring import pseudo_log_likelihood
    from medclip_debias.models.text_encoder import SentenceTokenizer, load_masked_lm

    settings = LanguageModelSettings(
        vocabulary=1500, hidden=64, heads=2, batch_size=64, steps=steps, lr=3e-3, seed=seed
    )
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "model"
        train_masked_lm(fit, out, settings)
        model, tokenizer = load_masked_lm(out), SentenceTokenizer.load(out)
        return pseudo_log_likelihood(model, tokenizer, score)[0].tolist()


def spread(name: str, scores: list[float]) -> dict[str, float]:
    """Mean, standard deviation and percentiles of log probabilities."""
    mean = sum(scores) / len(scores)
    sd = math.sqrt(sum((s - mean) ** 2 for s in scores) / len(scores))
    return {f"{name}, mean": mean, f"{name}, sd": sd, **quantiles(name, scores)}


def quantiles(name: str, values: Sequence[float]) -> dict[str, float]:
    """Quantiles by nearest rank."""
    ordered = sorted(values)
    return {
        f"{name}, {percent}%": ordered[min(percent * len(ordered) // 100, len(ordered) - 1)]
        for percent in (5, 50, 95)
    }


def numbers(reports: list[str], limit: int, seed: int, masked_lm: int) -> dict[str, float]:
    """All numbers of one side, from ``limit`` reports chosen at random."""
    chosen = split(random.Random(seed).sample(reports, limit))
    sentences = [s for report in chosen for s in report]
    counts = Counter(s.lower() for s in sentences)
    lengths = [len(WORD.findall(s.lower())) for s in sentences]
    half = len(chosen) // 2
    fit = [s for report in chosen[:half] for s in report]
    score = [s for report in chosen[half:] for s in report]
    trigram = Trigram(fit)
    result = {
        "reports": len(chosen),
        "sentences": len(sentences),
        "sentences per report": len(sentences) / len(chosen),
        "distinct share": len(counts) / len(sentences),
        "top-100 coverage": sum(n for _, n in counts.most_common(100)) / len(sentences),
        "words": len({w for s in sentences for w in WORD.findall(s.lower())}),
        "tokens per sentence, mean": sum(lengths) / len(lengths),
        **quantiles("tokens per sentence", lengths),
        **spread("trigram log p", [trigram.log_prob(s) for s in score]),
    }
    if masked_lm:
        result |= spread("masked LM log p", masked_lm_scores(fit, score, masked_lm, seed))
    return result


def main(
    openi: Path, phantom: Path, reports: int | None = None, seed: int = 0, masked_lm: int = 0
) -> None:
    """Print the numbers of Open-i's language beside a phantom's."""
    sides = {"Open-i": openi_reports(openi), "phantom": phantom_reports(phantom)}
    limit = min(reports or 10**9, *map(len, sides.values()))
    table = {name: numbers(texts, limit, seed, masked_lm) for name, texts in sides.items()}
    print(f"{'':28s}" + "".join(f"{name:>12s}" for name in table))
    for row in next(iter(table.values())):
        cells = (f"{side[row]:12.3f}".rstrip("0").rstrip(".") for side in table.values())
        print(f"{row:28s}" + "".join(f"{cell:>12s}" for cell in cells))


if __name__ == "__main__":
    typer.run(main)
