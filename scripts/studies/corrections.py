"""What corrections are worth on the phantom: chosen, over training, over noise, by their estimates.

Each study trains the methods of methods.yaml, or variants of them, on the phantoms of its seeds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, ClassVar

import numpy as np

from medclip_debias.evaluation.catalogue import PAPER_BASE, PAPER_BEST, PAPER_TABLE_1
from medclip_debias.experiments.differences import by_method
from medclip_debias.experiments.doses import training_counts
from medclip_debias.experiments.experiment import Cell, Row
from medclip_debias.reporting.tables import Table
from studies import phantom
from studies.debiased_pooled import PooledDebiased
from studies.phantom import BASELINE, LANGUAGE_MODEL, TABLES, Parts, PhantomStudy, compared
from studies.study import by_seed, gap, split, spread, where

PAPER_ROWS = {
    "BioViL-style": "BioViL",
    BASELINE: PAPER_BASE,
    "remove by label": "remove by CheX5 labels",
    **{name: name for name in ("resample by text", "remove by text", "reweight by text")},
    "constant .05": "debiased, eta 0.05",
    "constant .1": "debiased, eta 0.1",
    LANGUAGE_MODEL: PAPER_BEST,
}
"""Which row of the paper's Table 1 a method is."""
SELECTION_SEED = 1000
"""First seed of the phantoms on which settings are chosen; no reported cell has it."""


def parts_of(rows: Sequence[Row], name: str, title: str = "{}") -> Parts:
    """The rows for each value of ``name``, which ``title`` formats."""
    return {title.format(value): by_method(own) for value, own in split(rows, name).items()}


def minus(one: Mapping[int, Row], other: Mapping[int, Row], names: Sequence[str]) -> Any:
    """By seed, one row minus the other in these metrics."""
    return {seed: {m: row[m] - other[seed][m] for m in names} for seed, row in one.items()}


class Table1(PhantomStudy):
    """Every method in both regimes; settings are chosen in the first, and kept in the others."""

    name: ClassVar[str] = "table1"

    def cells(self) -> list[dict[str, Any]]:
        """The candidates of every method that has several, on the phantoms for choosing."""
        s, known = self.settings, phantom.methods()
        return [
            self._cell(method, candidate, SELECTION_SEED + number, s.regimes[0], "choose")
            for number, method in product(range(s.search_seeds), s.methods)
            if method not in phantom.CONTROLS and len(known[method]) > 1
            for candidate in known[method]
        ]

    def follow_up(self, rows: Sequence[Row]) -> list[dict[str, Any]]:
        """The chosen candidate of every method, on every seed; controls take their method's."""
        s, known = self.settings, phantom.methods()
        best = {name: phantom.best_candidate(own) for name, own in split(rows, "method").items()}
        if LANGUAGE_MODEL in best:
            best |= dict.fromkeys(phantom.CONTROLS, best[LANGUAGE_MODEL])
        return [
            self._cell(method, best.get(method, next(iter(known[method]))), seed, regime, "report")
            for regime, seed, method in product(s.regimes, s.seeds, s.methods)
        ]

    def _cell(self, method: str, candidate: str, seed: int, regime: str, role: str) -> Row:
        names: Row = {"role": role, "regime": regime, "method": method, "candidate": candidate}
        return self.cell(None, seed, data={"dials": {"regime": regime}}, **names)

    def groups(self, rows: Sequence[Row]) -> Parts:
        reported = where(rows, role="report")
        regimes = dict.fromkeys(row["regime"] for row in reported)
        return {regime: by_method(where(reported, regime=regime)) for regime in regimes}

    def tables(self, rows: Sequence[Row]) -> list[Table]:
        """Means and differences in each regime, what was chosen, and the paper's own figures."""
        found = []
        for regime, groups in self.groups(rows).items():
            found += compared(f"`{regime}`", groups, BASELINE)
            found += phantom.against_controls(f"`{regime}`", groups)
        body = []
        for method, own in by_method(where(rows, role="report")).items():
            paper = [""] * len(phantom.CHOOSING)
            if method in PAPER_ROWS:
                *shares, rank = PAPER_TABLE_1[PAPER_ROWS[method]]
                paper = [*(f"{share:.2f}" for share in shares), f"{rank:.0f}"]
            body.append([str(method), next(iter(own.values()))["candidate"], *paper])
        titles = [f"paper's {TABLES.metric(m).title}" for m in phantom.CHOOSING]
        head = ["method", "chosen", *titles]
        return [*found, Table("Chosen settings; the paper on MIMIC-CXR, MS-CXR", head, body)]


class FalseNegatives(PhantomStudy):
    """Removal by truth and by label, the paper's method and its controls against InfoNCE."""

    name: ClassVar[str] = "false-negatives"

    def cells(self) -> list[dict[str, Any]]:
        s = self.settings
        rates = [
            {"part": "rate", "seed": seed, "data": self.cell({}, seed)["data"]} for seed in s.seeds
        ]
        return rates + [
            self.cell(None, seed, part="train", method=arm)
            for seed, arm in product(s.seeds, s.arms)
        ]

    def measure(self, cell: Cell) -> Row:
        return super().measure(cell) if cell["part"] == "train" else false_rate(self.place(cell))

    def tables(self, rows: Sequence[Row]) -> list[Table]:
        rates, groups = where(rows, part="rate"), by_method(where(rows, part="train"))
        body = [[spread(rates, name, 2) for name in ("mean", "q05", "q50", "q95")]]
        head = ["mean", "5th percentile", "median", "95th percentile"]
        return [
            Table("Share of a sentence's negatives that are false, over sentences", head, body),
            *compared(f"{len(groups[BASELINE])} seeds", groups, BASELINE),
            *phantom.against_controls("Controls of equal dose", groups),
        ]


def false_rate(place: phantom.Phantom) -> Row:
    """True class probability over the occurrences of sentences in the training studies."""
    counts = training_counts(place.data)
    values = np.repeat(list(place.eta_true().values()), list(counts.values()))
    low, middle, high = np.quantile(values, [0.05, 0.5, 0.95]).tolist()
    return {"mean": float(values.mean()), "q05": low, "q50": middle, "q95": high}


class TrainingLength(PhantomStudy):
    """What removal by truth, by label and the paper's method gain with the length of training."""

    name: ClassVar[str] = "training-length"

    def cells(self) -> list[dict[str, Any]]:
        s = self.settings
        return [
            self.cell(None, seed, method=arm, steps=round(length * s.train["steps"]))
            for seed, length, arm in product(s.seeds, s.lengths, s.arms)
        ]

    def groups(self, rows: Sequence[Row]) -> Parts:
        return parts_of(rows, "steps", "{:,} steps")

    def tables(self, rows: Sequence[Row]) -> list[Table]:
        """What each arm gains at each length, and whether the longest training changes it."""
        parts, losses = self.groups(rows), []
        for title, groups in parts.items():
            own = list(groups[BASELINE].values())
            loss = np.mean([row.get("measured loss", row.get("loss")) for row in own])
            chance = np.log(own[0]["train"]["batch_size"])
            losses.append([title, f"{loss:.3f}", f"{chance:.3f}"])
        (first, *_, last), arms = parts.values(), list(next(iter(parts.values())))[1:]
        pairs: Any = {
            a: tuple(minus(part[a], part[BASELINE], phantom.SHOWN) for part in (last, first))
            for a in arms
        }
        title = f"Difference to {BASELINE} in the longest training minus that in the shortest"
        return [
            *super().tables(rows),
            Table(f"{BASELINE}'s loss at the end", ["", "loss", "chance"], losses),
            TABLES.contrast_table(title, pairs),
        ]


class Noise(PhantomStudy):
    """Mismatched reports, every method at every share: which objective degrades least."""

    name: ClassVar[str] = "noise"
    judged: ClassVar[tuple[str, ...]] = ("auc", "accuracy", "fine_auc", "cnr", "recall")

    def cells(self) -> list[dict[str, Any]]:
        """Seeds, shares, methods; without noise the data are those of the other studies."""
        s = self.settings
        data = {share: {"dials": {"report_noise": share}} if share else None for share in s.noise}
        return [
            self.cell(None, seed, data=data[noise], method=arm[0], candidate=arm[1], noise=noise)
            for seed, noise, arm in product(s.seeds, s.noise, s.arms.items())
        ]

    def groups(self, rows: Sequence[Row]) -> Parts:
        return parts_of(rows, "noise", "{:.0%} mismatched")

    def tables(self, rows: Sequence[Row]) -> list[Table]:
        """Tables at each share, and what noise takes of each method, also against InfoNCE."""
        parts = self.groups(rows)
        clean, *_, noisy = parts.values()
        worst = list(parts)[-1]
        taken = {name: minus(own, clean[name], self.judged) for name, own in noisy.items()}
        body = []
        for name in noisy:
            with_it, without = ([*part[name].values()] for part in (noisy, clean))
            sides = {m: (by_seed(with_it, m), by_seed(without, m)) for m in self.judged}
            body.append([name, *(gap(*two, TABLES.metric(m).digits) for m, two in sides.items())])
        head = ["", *(TABLES.metric(m).title for m in self.judged)]
        return [
            *(TABLES.means(f"{title}: mean (sd)", own) for title, own in parts.items()),
            Table(f"What {worst} change, with 95% intervals", head, body),
            TABLES.difference_table(f"What {worst} take", taken, BASELINE, self.judged),
        ]


class XCLR(PhantomStudy):
    """X-CLR: sources of similarity, target temperatures, amounts of data; all arms symmetric."""

    name: ClassVar[str] = "x-clr"
    identity, text = "identity", "text encoder"

    def cells(self) -> list[dict[str, Any]]:
        s = self.settings
        graphs = {self.text: ("text", s.tau), "label graph": ("labels", s.tau)}
        graphs |= {f"tau_s {tau:g}": ("text", tau) for tau in s.taus}
        arms: dict[str, Any] = {self.identity: ({"kind": "clip"}, self.identity)}
        for name, (graph, tau) in graphs.items():
            loss = {"kind": "xclr", "graph": graph, "target_temperature": tau}
            arms[name] = loss, f"tau_s {tau:g}"
        parts = [("tau" if name.startswith("tau") else "source", name, 1.0) for name in arms]
        parts += [("share", n, share) for share in s.shares for n in (self.identity, self.text)]
        return [
            self.cell(
                arms[name][0],
                seed,
                data={"studies": self._studies(share)},
                part=part,
                method=name,
                share=share,
                candidate=arms[name][1],
            )
            for seed, (part, name, share) in product(s.seeds, parts)
        ]

    def _studies(self, share: float) -> int:
        """All studies, when ``share`` of those for training and validation are generated."""
        studies, tests = (self.settings.data[name] for name in ("studies", "test_studies"))
        return int(tests + max(20, round(share * (studies - tests))))

    def groups(self, rows: Sequence[Row]) -> Parts:
        sources = by_method(where(rows, part="source"))
        main = next(iter(sources[self.text].values()))["candidate"]
        taus = by_method(where(rows, part="tau")) | {main: sources[self.text]}
        ordered = dict(sorted(taus.items(), key=lambda each: float(each[0].split()[-1])))
        shares = parts_of(where(rows, part="share"), "share", "{:.0%} of the training studies")
        identity = {self.identity: sources[self.identity]}
        return {"Source": sources, "Temperature": identity | ordered, **shares}


class Estimator(PhantomStudy):
    """Why the true probability collapses with one positive; the best variant on fresh seeds."""

    name: ClassVar[str] = "estimator"
    collapsed = "true eta, pair"
    judged: ClassVar[tuple[str, ...]] = ("auc", "accuracy", "cnr", "recall")

    def _arms(self) -> dict[str, dict[str, Any]]:
        known = phantom.methods()
        arms = {name: next(iter(known[name].values())) for name in (BASELINE, LANGUAGE_MODEL)}
        for name, how in self.settings.variants.items():
            source = LANGUAGE_MODEL if name.startswith(LANGUAGE_MODEL) else "true probability"
            eta, own = next(iter(known[source].values()))["eta"], dict(how)
            if "shrink" in own:
                eta = {**eta, "factor": own.pop("shrink")}
            arms[name] = {"kind": PooledDebiased.kind, "eta": eta, **own}
        return arms

    def cells(self) -> list[dict[str, Any]]:
        return self.arms(self._arms(), self.settings.search_seeds, role="search")

    def follow_up(self, rows: Sequence[Row]) -> list[dict[str, Any]]:
        best = phantom.best_candidate([r for r in rows if r["method"] in self.settings.variants])
        names = dict.fromkeys((BASELINE, LANGUAGE_MODEL, self.collapsed, best))
        arms = self._arms()
        return self.arms({name: arms[name] for name in names}, self.settings.seeds, role="judge")

    def groups(self, rows: Sequence[Row]) -> Parts:
        return {"Fresh seeds:": by_method(where(rows, role="judge"))}

    def tables(self, rows: Sequence[Row]) -> list[Table]:
        metrics = ("clamped", "mean_eta", *self.judged)
        body = []
        for name, own in by_method(where(rows, role="search")).items():
            means = [np.mean([row.get(metric, 0.0) for row in own.values()]) for metric in metrics]
            body.append([name, *(f"{mean:.3f}" for mean in means)])
        heads = ["on the floor", "mean eta", *(TABLES.metric(m).title for m in self.judged)]
        title = "Search seeds: mean at the end of training"
        judged = compared("Fresh seeds", by_method(where(rows, role="judge")), BASELINE)
        return [Table(title, ["variant", *heads], body), *judged]
