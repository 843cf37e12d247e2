"""What pair evidence costs at the size of MIMIC-CXR, and how often it is right.

    python scripts/bench/evidence.py scale PREPARED        377,000 studies x 400,000 sentences
    python scripts/bench/evidence.py truth PREPARED TRUTH  against a phantom's images
    python scripts/bench/evidence.py world FOLDER          which findings Open-i's reports mention
    python scripts/bench/evidence.py denials PREPARED      what the sentences of agreeing pairs say

PREPARED has claims (`medclip-debias claims`). The set of ``scale`` is made up: its sentences have
the claims of PREPARED's, with sides, zones and severities drawn anew; the n-th commonest is said
1 / n times as often as the first.
"""

from __future__ import annotations

import resource
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import typer
from claims import openi_reports

from medclip_debias.data.store import PreparedSet
from medclip_debias.data.text.claims import Claim, RuleParser, load_lexicon
from medclip_debias.data.text.claims.claim import SEVERITIES, SIDES, ZONES
from medclip_debias.data.text.claims.table import read_claims
from medclip_debias.data.text.evidence import Evidence
from medclip_debias.data.text.evidence.entail import implied
from medclip_debias.phantom.truth import Truth

STUDIES, SENTENCES, EACH = 377_000, 400_000, 7
BATCH, COLUMNS, ROUNDS = 64, 192, 200
app = typer.Typer(help=__doc__, add_completion=False)


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@app.command()
def scale(folder: Path) -> None:
    """Time and memory of building evidence, and of one batch."""
    table = read_claims(PreparedSet.open(folder))
    rng = np.random.default_rng(0)
    pool = table.claims
    claims: list[tuple[Claim, ...]] = []
    drawn = rng.integers(0, len(pool), SENTENCES)
    for number in drawn:
        found = pool[number]
        if rng.random() < 0.5:
            found = tuple(_moved(claim, rng) if claim.present else claim for claim in found)
        claims.append(found)
    share = 1 / np.arange(1, SENTENCES + 1)
    study = np.repeat(np.arange(STUDIES), EACH)
    sentence = rng.choice(SENTENCES, STUDIES * EACH, p=share / share.sum())
    sentence[:SENTENCES] = rng.permutation(SENTENCES)  # each is said at least once
    before, began = peak(), time.perf_counter()
    evidence = Evidence(claims, study, sentence, STUDIES, table.lexicon)
    built, after = time.perf_counter() - began, peak()
    meta = evidence.meta()
    batches = [
        (rng.integers(0, STUDIES, BATCH), rng.choice(sentence, COLUMNS)) for _ in range(ROUNDS)
    ]
    evidence.pairs(*batches[0])
    times = []
    for batch in batches:
        start = time.perf_counter()
        evidence.pairs(*batch)
        times.append(1000 * (time.perf_counter() - start))
    print(f"{STUDIES:,} studies, {SENTENCES:,} sentences, {len(sentence):,} occurrences")
    print(f"distinct claim sets of sentences: {len(set(claims)):,}")
    print(f"distinct claims: {meta['distinct_claims']:,}; states of findings: {meta['states']:,}")
    rows = np.unique(np.ascontiguousarray(evidence._states.of), axis=0)
    print(f"distinct studies, by what they say of all findings: {len(rows):,}")
    dense = STUDIES * SENTENCES / 2**30
    print(f"held: {meta['bytes'] / 2**20:.0f} MiB; a dense table: {dense:.0f} GiB")
    print(f"built in {built:.1f} s, peak {before:.0f} -> {after:.0f} MiB")
    q = np.percentile(times, [50, 95])
    print(f"a batch of {BATCH} x {COLUMNS}: median {q[0]:.3f} ms, 95% {q[1]:.3f} ms")


def _moved(claim: Claim, rng: np.random.Generator) -> Claim:
    def pick(values: tuple[str, ...]) -> str:
        return values[int(rng.integers(len(values)))]

    return replace(claim, side=pick(SIDES), zone=pick(ZONES), severity=pick(SEVERITIES))


@app.command()
def truth(folder: Path, tree: Path) -> None:
    """How often a verdict is what the images show, over all training pairs, by closed world."""
    prepared = PreparedSet.open(folder)
    shown = Truth(tree)
    images = prepared.images.drop_duplicates("study_id")
    train = images[images["split"] == "train"]
    row = {name: n for n, name in enumerate(prepared.studies["study_id"])}
    studies = np.array([row[name] for name in train["study_id"]])
    said = prepared.sentences["text"][prepared.sentences["study_id"].isin(train["study_id"])]
    place = {text: n for n, text in enumerate(prepared.texts)}
    counts = said.value_counts()
    texts = list(counts.index)
    sentences = np.array([place[text] for text in texts])
    weight = counts.to_numpy(dtype=float)
    agrees = shown.agreement(texts, [str(name) for name in train["image_id"]]).T
    print("| absent if not mentioned | agree | right | contradict | right | unknown |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    every = load_lexicon("phantom").names
    for name, always in (("no finding", ()), ("mentioned by half", 0.5), ("every finding", every)):
        evidence = Evidence.open(prepared, always)
        found = evidence.pairs(studies, sentences)
        cells = [name]
        for verdict, right in ((1, agrees), (-1, ~agrees)):
            mass = ((found == verdict) * weight).sum()
            good = ((found == verdict) * right * weight).sum()
            cells += [f"{mass / (len(found) * weight.sum()):.3f}", f"{good / max(mass, 1):.3f}"]
        cells.append(f"{((found == 0) * weight).sum() / (len(found) * weight.sum()):.3f}")
        print("| " + " | ".join(cells) + " |")
    print(f"true share: {(agrees * weight).sum() / (len(agrees) * weight.sum()):.3f}")


@app.command()
def world(folder: Path) -> None:
    """Share of Open-i's reports that mention each finding, present or absent."""
    parser = RuleParser()
    reports = [r for half in ("tuned", "held out") for r in openi_reports(folder, half)[0]]
    said = [
        {f for t in report for c in parser.parse(t).claims for f, _ in implied(c, parser.lexicon)}
        for report in reports
    ]
    shares = {name: np.mean([name in s for s in said]) for name in parser.lexicon.names}
    print(f"{len(reports)} reports\n\n| finding | mentioned by |\n| --- | ---: |")
    for name in sorted(shares, key=lambda n: -shares[n])[:20]:
        print(f"| {name} | {shares[name]:.2f} |")


@app.command()
def denials(folder: Path) -> None:
    """Of all pairs of a training study and another one's sentence, which agree, and what they say.

    A sentence counts as often as other studies say it.
    """
    prepared = PreparedSet.open(folder)
    evidence, claims = Evidence.open(prepared), read_claims(prepared).claims
    is_train = (prepared.studies["split"] == "train").to_numpy()
    rows = {name: n for n, name in enumerate(prepared.studies["study_id"])}
    places = {text: n for n, text in enumerate(prepared.texts)}
    occurrences = np.array(
        [
            (rows[study], places[text])
            for study, text in prepared.sentences[["study_id", "text"]].itertuples(index=False)
            if is_train[rows[study]]
        ]
    )
    studies, row_of = np.unique(occurrences[:, 0], return_inverse=True)
    sentences, column_of = np.unique(occurrences[:, 1], return_inverse=True)
    times_said = np.tile(np.bincount(column_of), (len(studies), 1))
    np.subtract.at(times_said, (row_of, column_of), 1)  # a study's own occurrences
    verdicts = evidence.pairs(studies, sentences)
    polarities = [{claim.present for claim in claims[n]} for n in sentences]
    kinds = {
        "nothing absent (findings)": np.array([p == {True} for p in polarities]),
        "nothing present (denials)": np.array([p == {False} for p in polarities]),
        "both": np.array([len(p) == 2 for p in polarities]),
        "no claim": np.array([not p for p in polarities]),
    }
    pairs, agreeing = times_said.sum(), times_said[verdicts == 1].sum()
    print(f"{len(studies):,} training studies, {pairs:,} pairs, {agreeing / pairs:.3f} agree\n")
    print("| the sentence claims | of all pairs | of agreeing pairs |\n| --- | ---: | ---: |")
    for name, chosen in kinds.items():
        share = times_said[:, chosen].sum() / pairs
        found = (times_said * (verdicts == 1))[:, chosen].sum() / agreeing
        print(f"| {name} | {share:.4f} | {found:.4f} |")


if __name__ == "__main__":
    app()
