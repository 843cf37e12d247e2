"""The methods of the comparison, each with the small grid that its setting is chosen from.

A method with a strength has three candidates, one without a single one; the learning rate is the
same for all: rates chosen for each method alone would differ by chance, and so would the metrics.
All corrections act on the same core, InfoNCE from sentences to images with LSE+NL scores, so that
what differs is the correction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

BASELINE = "InfoNCE"
LANGUAGE_MODEL = "language model"


@dataclass(frozen=True)
class Candidate:
    """One setting of a method.

    Attributes:
        label: what tells it from the others.
        loss: settings of the objective, with the place holders of
            `studies.phantom_run.train_and_measure`.
        aggregator: of the similarity.
    """

    label: str
    loss: dict[str, Any]
    aggregator: str = "lse_nl"


@dataclass(frozen=True)
class Method:
    """One row of the table.

    Attributes:
        name: of the row.
        group: ``no correction``, ``removal``, ``debiased``, ``rival``, ``oracle``, ``control``.
        candidates: to choose from; a control has one for each of the method it controls.
    """

    name: str
    group: str
    candidates: tuple[Candidate, ...]


def infonce(*negatives: dict[str, Any]) -> dict[str, Any]:
    """Plain InfoNCE with policies on its negatives."""
    return {"kind": "infonce", "negatives": list(negatives)} if negatives else {"kind": "infonce"}


def debiased(eta: dict[str, Any]) -> dict[str, Any]:
    """The debiased loss with this eta."""
    return {"kind": "debiased", "eta": eta}


def _only(loss: dict[str, Any], aggregator: str = "lse_nl") -> tuple[Candidate, ...]:
    """The one candidate of a method without a strength."""
    return (Candidate("as it is", loss, aggregator),)


def _policies(
    kind: str, always: Mapping[str, Any] = MappingProxyType({}), **grid: Any
) -> tuple[Candidate, ...]:
    """One candidate for each entry of the lists in ``grid``, side by side; all with ``always``."""
    entries = [dict(zip(grid, values, strict=True)) for values in zip(*grid.values(), strict=True)]
    return tuple(
        Candidate(_label(entry), infonce({"kind": kind, **entry, **always})) for entry in entries
    )


def _label(entry: dict[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in entry.items())


ETA_GRID = ((0.2, 0.35), (0.2, 0.7), (0.05, 0.35))
"""(a, k) of the language-model eta; the first is the paper's."""

LATE = {"start_step": "@0.4"}
"""FNC and GloFND begin at 40% of the steps, as published (epoch 70 of 200, 15 of 37): before that
the nearest negatives are not the false ones, and a network that never pushes them away learns
next to nothing (the study ``glofnd`` sweeps the start)."""


def _eta_of(kind: str) -> tuple[Candidate, ...]:
    return tuple(
        Candidate(f"a {a:g}, k {k:g}", debiased({"kind": kind, "a": a, "k": k}))
        for a, k in ETA_GRID
    )


def methods() -> list[Method]:
    """Every row, in the order of the table."""
    biovil = {"kind": "biovil", "direction": "symmetric"} | {"masked_lm": {"weight": 1.0}}
    glofnd = {"optimizer": "adam", "lr": 0.05, "init": "quantile"} | LATE
    alphas = (0.02, 0.05, 0.2)
    return [
        Method("BioViL-style", "no correction", _only(biovil, "global")),
        Method(BASELINE, "no correction", _only(infonce())),
        Method(
            "remove by label",
            "removal",
            _policies(
                "remove_by_label",
                match=("shared", "shared", "equal"),
                keep_mass=(False, True, False),
            ),
        ),
        Method(
            "resample by text",
            "removal",
            _policies("resample_by_text", share=(0.5, 0.5, 0.25), beta=(1.0, 3.0, 3.0)),
        ),
        Method(
            "remove by text", "removal", _policies("remove_by_text", threshold=(0.7, 0.85, 0.95))
        ),
        Method("reweight by text", "removal", _policies("reweight_by_text", beta=(0.5, 1.0, 3.0))),
        Method("constant .05", "debiased", _only(debiased({"kind": "constant", "value": 0.05}))),
        Method("constant .1", "debiased", _only(debiased({"kind": "constant", "value": 0.1}))),
        Method(LANGUAGE_MODEL, "debiased", _eta_of("language_model")),
        Method("FNC", "rival", _policies("fnc", LATE, alpha=alphas)),
        Method("GloFND", "rival", _policies("glofnd", glofnd, alpha=alphas)),
        Method(
            "X-CLR",
            "rival",
            tuple(
                Candidate(
                    f"tau_s {tau}", {"kind": "xclr", "graph": "text", "target_temperature": tau}
                )
                for tau in (0.05, 0.1, 0.2)
            ),
        ),
        Method(
            "keyword supervision",
            "rival",
            tuple(
                Candidate(
                    f"weight {weight}",
                    {"kind": "keyword", "core": infonce(), "weight": weight, "words": "laterality"},
                )
                for weight in (0.1, 0.3, 1.0)
            ),
        ),
        Method(
            "true probability",
            "oracle",
            _only(debiased({"kind": "table", "path": "@eta_true"})),
        ),
        Method(
            "true pairs removed",
            "oracle",
            _only(infonce({"kind": "remove_known", "path": "@agreement"})),
        ),
        # The controls take the a and k that were chosen for the language model.
        Method("constant = its mean", "control", _eta_of("mean_of")),
        Method("its eta shuffled", "control", _eta_of("shuffled")),
    ]
