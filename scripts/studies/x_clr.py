"""X-CLR: where the similarity of samples comes from, tau_s, and little data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from medclip_debias.config import Settings
from medclip_debias.experiments.differences import by_method
from medclip_debias.experiments.experiment import Row, Summary
from studies.phantom_methods import Candidate
from studies.phantom_study import (
    FAMILY,
    LABELS,
    PhantomStudy,
    PhantomStudySettings,
    difference_table,
    figure_table,
    quick_settings,
    verdict,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

IDENTITY, TEXT, LABEL_GRAPH = "identity", "text encoder", "label graph"
SHOWN = ("auc", "accuracy", "fine_auc", "cnr", "recall")


class XCLRSettings(PhantomStudySettings):
    """Temperatures of the targets, shares of the training studies."""

    taus: tuple[float, ...] = (0.02, 0.05, 0.1, 0.2, 0.5)
    shares: tuple[float, ...] = (0.1, 0.3, 1.0)


class XCLR(PhantomStudy):
    """Sources of similarity, target temperatures, amounts of data."""

    name: ClassVar[str] = "x-clr"
    title: ClassVar[str] = "X-CLR: sources of similarity, temperature, little data"
    source: ClassVar[str] = "X-sample contrastive (2024), sections 4.1 to 4.4"
    settings_class: ClassVar[type[Settings]] = XCLRSettings
    about: ClassVar[str] = f"""
The paper trains images against a graph of similarities between samples. Here, image and sentence
take part (an extension that the paper leaves open): the target of a sentence over the batch's
images is the softmax of its similarity with their sentences over tau_s, both ways. Three
sources: the frozen text encoder (mean of its token vectors), labels in common, and identity,
which is symmetric InfoNCE. Then tau_s of the text graph, and identity against text with a share
of the training studies. Hospital-like phantom; each seed is a phantom of its own. All arms here
are symmetric; InfoNCE of the other studies is not.
{FAMILY}
"""

    @classmethod
    def quick(cls) -> XCLRSettings:
        """One temperature beside the main one, all data."""
        found: XCLRSettings = quick_settings(XCLRSettings, taus=(0.1, 0.5), shares=(1.0,))
        return found

    def cells(self) -> list[dict[str, Any]]:
        """Seeds; sources, temperatures, shares."""
        s = self.settings
        main = min(s.taus, key=lambda tau: abs(tau - 0.1))
        sources = {
            IDENTITY: Candidate(IDENTITY, {"kind": "clip"}),
            TEXT: _graph("text", main),
            LABEL_GRAPH: _graph("labels", main),
        }
        found = []
        for seed in s.seeds:
            found += [
                self.cell(arm, seed, part="source", method=name, share=1.0)
                for name, arm in sources.items()
            ]
            found += [
                self.cell(_graph("text", tau), seed, part="tau", method=f"tau_s {tau:g}", share=1.0)
                for tau in s.taus
                if tau != main
            ]
            found += [
                self.cell(
                    sources[name],
                    seed,
                    data={"studies": self._studies(share)},
                    part="share",
                    method=name,
                    share=share,
                )
                for share in s.shares
                if share < 1
                for name in (IDENTITY, TEXT)
            ]
        return found

    def _studies(self, share: float) -> int:
        """All studies, when ``share`` of those for training and validation are generated."""
        data = self.settings.data
        return int(data.test_studies + max(20, round(share * (data.studies - data.test_studies))))

    def summary(self, rows: Sequence[Row]) -> Summary:
        """Sources, temperatures, shares."""
        sources = by_method([r for r in rows if r["part"] == "source"])
        findings = [
            verdict(sources, name, IDENTITY, SHOWN, [TEXT, LABEL_GRAPH]) + "."
            for name in (TEXT, LABEL_GRAPH)
        ]
        tables = [
            figure_table("Source of similarity: mean (sd)", sources),
            difference_table(f"Difference to {IDENTITY}", sources, IDENTITY),
        ]
        taus = by_method([r for r in rows if r["part"] == "tau"]) | {
            _temperature(sources): sources[TEXT]
        }
        taus = dict(sorted(taus.items(), key=lambda each: _tau(each[0])))
        against = {IDENTITY: sources[IDENTITY]} | taus
        tables += [
            figure_table("Temperature of the targets, text graph: mean (sd)", against),
            difference_table(f"Temperature: difference to {IDENTITY}", against, IDENTITY),
        ]
        findings += [
            verdict(against, tau, IDENTITY, SHOWN, list(taus)) + "."
            for tau in taus
            if tau != _temperature(sources)  # said above
        ]
        for share in sorted({r["share"] for r in rows if r["part"] == "share"}):
            groups = by_method([r for r in rows if r["part"] == "share" and r["share"] == share])
            findings.append(
                f"With {share:.0%} of the studies, {verdict(groups, TEXT, IDENTITY, SHOWN)}."
            )
            tables.append(figure_table(f"{share:.0%} of the training studies: mean (sd)", groups))
        return Summary(findings, tables)

    def figure(self, rows: Sequence[Row]) -> Figure:
        """AUC and Recall over tau_s and over the amount of data; bars are sd over seeds."""
        from studies.plots import labels, means_with_bars, panels

        figure, axes = panels(4, ["temperature of the targets"] * 2 + ["little data"] * 2, rows=2)
        sources = by_method([r for r in rows if r["part"] == "source"])
        taus = {
            _tau(next(iter(own.values()))["candidate"]): own
            for own in [
                *by_method([r for r in rows if r["part"] == "tau"]).values(),
                sources[TEXT],
            ]
        }
        x = sorted(taus)
        for place, metric in enumerate(("auc", "recall")):
            axes[place].set_xscale("log")
            plain = float(np.mean([r[metric] for r in sources[IDENTITY].values()]))
            axes[place].axhline(plain, color="#777777", linewidth=1, label=IDENTITY)
            own = [[r[metric] for r in taus[tau].values()] for tau in x]
            means_with_bars(axes[place], x, own, 1, TEXT)
            axes[place].set_xticks(x, [f"{tau:g}" for tau in x])
            axes[place].minorticks_off()
            labels(axes[place], "tau_s", LABELS[metric])
            axes[2 + place].set_xscale("log")
            for style, name in enumerate((IDENTITY, TEXT)):
                own_rows = [
                    r for r in rows if r["method"] == name and r["part"] in ("share", "source")
                ]
                shares = sorted({r["share"] for r in own_rows})
                own = [[r[metric] for r in own_rows if r["share"] == share] for share in shares]
                means_with_bars(axes[2 + place], shares, own, style, name, 0.01 * (2 * style - 1))
            axes[2 + place].set_xticks(shares, [f"{share:.0%}" for share in shares])
            axes[2 + place].minorticks_off()
            labels(axes[2 + place], "share of the training studies", LABELS[metric])
        return figure


def _graph(graph: str, tau: float) -> Candidate:
    loss = {"kind": "xclr", "graph": graph, "target_temperature": tau}
    return Candidate(f"tau_s {tau:g}", loss)


def _tau(label: Any) -> float:
    """The number in ``tau_s 0.1``."""
    return float(str(label).split()[-1])


def _temperature(sources: dict[Any, dict[int, Row]]) -> str:
    """Name of the temperature that the sources were compared at."""
    return str(next(iter(sources[TEXT].values()))["candidate"])
