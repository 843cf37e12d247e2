"""X-CLR: where the similarity of samples comes from, tau_s, and little data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from medclip_debias.experiments.differences import by_method
from medclip_debias.experiments.experiment import Row, Table
from studies.phantom import PhantomStudy, compared
from studies.study import where

IDENTITY, TEXT = "identity", "text encoder"


def _graph(kind: str, tau: float) -> dict[str, Any]:
    return {"kind": "xclr", "graph": kind, "target_temperature": tau}


class XCLR(PhantomStudy):
    """Sources of similarity, target temperatures, amounts of data; all arms are symmetric."""

    name: ClassVar[str] = "x-clr"

    def cells(self) -> list[dict[str, Any]]:
        """Seeds; sources, temperatures, shares."""
        s = self.settings
        main = f"tau_s {s.tau:g}"
        arms = {
            IDENTITY: ({"kind": "clip"}, IDENTITY),
            TEXT: (_graph("text", s.tau), main),
            "label graph": (_graph("labels", s.tau), main),
        }
        parts: list[tuple[str, str, float]] = [("source", name, 1.0) for name in arms]
        for tau in s.taus:
            arms[f"tau_s {tau:g}"] = (_graph("text", tau), f"tau_s {tau:g}")
            parts.append(("tau", f"tau_s {tau:g}", 1.0))
        parts += [("share", name, share) for share in s.shares for name in (IDENTITY, TEXT)]
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
            for seed in s.seeds
            for part, name, share in parts
        ]

    def _studies(self, share: float) -> int:
        """All studies, when ``share`` of those for training and validation are generated."""
        studies, tests = (self.settings.data[name] for name in ("studies", "test_studies"))
        return int(tests + max(20, round(share * (studies - tests))))

    def groups(self, rows: Sequence[Row]) -> dict[str, dict[Any, dict[int, Row]]]:
        """Sources, temperatures, shares."""
        sources = by_method(where(rows, part="source"))
        main = next(iter(sources[TEXT].values()))["candidate"]
        taus = by_method(where(rows, part="tau")) | {main: sources[TEXT]}
        ordered = {IDENTITY: sources[IDENTITY]}
        ordered |= dict(sorted(taus.items(), key=lambda each: float(each[0].split()[-1])))
        shares = sorted({row["share"] for row in where(rows, part="share")})
        return {"Source": sources, "Temperature": ordered} | {
            f"{share:.0%} of the training studies": by_method(
                where(rows, part="share", share=share)
            )
            for share in shares
        }

    def tables(self, rows: Sequence[Row]) -> list[Table]:
        """Means and differences to symmetric InfoNCE in each part."""
        parts = self.groups(rows)
        return [table for title, own in parts.items() for table in compared(title, own, IDENTITY)]
