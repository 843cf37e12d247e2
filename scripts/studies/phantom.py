"""Studies on the phantom: data of a seed, one training, all that it is measured by, tables.

Everything is a function of the cell, so that studies that ask for the same data find them made.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property
from itertools import product
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure

from medclip_debias.config import PrepareSettings, validate
from medclip_debias.data.prepare import prepare
from medclip_debias.data.prompts import PromptSet, load_prompts
from medclip_debias.data.store import PreparedSet
from medclip_debias.evaluation.catalogue import find
from medclip_debias.evaluation.encoding import Network, encode
from medclip_debias.evaluation.label_table import Labels, labels_of
from medclip_debias.evaluation.options import EvaluationOptions
from medclip_debias.evaluation.protocol import Draw, Request, rows_of_split
from medclip_debias.evaluation.protocols.phrase_grounding import PhraseGrounding
from medclip_debias.evaluation.protocols.retrieval import BoxRetrieval
from medclip_debias.evaluation.protocols.zero_shot import ZeroShot
from medclip_debias.experiments import doses
from medclip_debias.experiments.differences import Groups, SeedTables, by_method, marks
from medclip_debias.experiments.experiment import Cell, Row, Shared
from medclip_debias.language.masked_lm import LanguageModelSettings, train_masked_lm
from medclip_debias.language.scoring import score_prepared
from medclip_debias.models.dual_encoder import DualEncoder
from medclip_debias.phantom import PhantomSettings, generate
from medclip_debias.phantom.catalogue import CLASSES
from medclip_debias.phantom.language import NOUNS
from medclip_debias.phantom.truth import Truth, write_truth
from medclip_debias.reporting.plots import intervals, panels
from medclip_debias.reporting.tables import Table
from medclip_debias.settings_files import load_yaml, merge
from medclip_debias.training.settings import RunSettings
from medclip_debias.training.step import Trainer
from studies.study import Study, split

BASELINE, LANGUAGE_MODEL = "InfoNCE", "language model"
CONTROLS = ("constant = its mean", "its eta shuffled")
RARE = 9
"""How many of the 28 classes, the least frequent, are called the tail."""
Parts = dict[str, dict[Any, dict[int, Row]]]
"""Rows by method and seed of each part of a study, by its title."""

_AUC = find("zero_shot", "mean_auc")
METRICS = {
    "auc": replace(_AUC, title="AUC"),
    "accuracy": replace(find("zero_shot", "balanced_accuracy"), title="bal. acc."),
    "ece": replace(find("zero_shot", "ece"), title="ECE"),
    "fine_auc": replace(_AUC, title="fine AUC"),
    "tail_auc": replace(_AUC, title="tail AUC"),
    "cnr": find("grounding", "cnr"),
    "miou": find("grounding", "miou"),
    "recall": replace(find("retrieval", "recall"), title="Recall"),
    "median_rank": replace(find("retrieval", "median_rank"), title="MedR", digits=0),
}
TABLES = SeedTables(METRICS)


# ---------------------------------------------------------------------------------- data


class Phantom:
    """What `make_phantom` leaves in ``root``: prepared set, language model, truth, agreement."""

    def __init__(self, root: Path) -> None:
        self.prepared, self.language_model = root / "prepared", root / "language_model"
        self.truth, self.agreement = root / "truth", root / "agreement.npz"

    @cached_property
    def data(self) -> PreparedSet:
        return PreparedSet.open(self.prepared)

    def eta_true(self) -> dict[str, float]:
        """True class probability of every distinct training sentence."""
        texts = list(doses.training_counts(self.data))
        return dict(zip(texts, Truth(self.truth).eta(texts).tolist(), strict=True))

    def shown(self, rows: Sequence[int]) -> pd.DataFrame:
        """The phantom's truth of these images of the prepared set, in their order."""
        table = pd.read_parquet(self.truth / "images.parquet").set_index("dicom_id")
        return table.loc[[str(name) for name in self.data.images["image_id"].iloc[list(rows)]]]


def make_phantom(data: Mapping[str, Any], folder: Path) -> None:
    """Make the phantom of a study's ``data``, prepare it, learn a language model, score.

    ``dials`` are settings of `medclip_debias.phantom.settings.PhantomSettings`.
    """
    tree, sizes = folder / "tree", {n: data[n] for n in ("studies", "test_studies", "seed")}
    generate(tree, validate(PhantomSettings, sizes | data["dials"], "the study's data"), workers=1)
    prepared = prepare(tree, folder / "prepared", PrepareSettings(size=data["size"]), workers=1)
    shutil.move(tree / "truth", folder / "truth")
    shutil.rmtree(tree)
    write_truth(Truth(folder / "truth"), prepared, folder / "agreement.npz")
    train = set(prepared.studies.loc[prepared.studies["split"] == "train", "study_id"])
    said = prepared.sentences
    content = {**data["language"], "seed": data["seed"]}
    train_masked_lm(
        said.loc[said["study_id"].isin(train), "text"].tolist(),
        folder / "language_model",
        validate(LanguageModelSettings, content, "the study"),
    )
    score_prepared(prepared, folder / "language_model")


def class_prompts() -> PromptSet:
    """One prompt pair for each of the 28 finding classes, in words that the reports use."""
    classes = {}
    for finding in CLASSES:
        noun = NOUNS[finding.type][0].text
        words = [finding.severity, finding.side, finding.zone, noun]
        positive = " ".join(word for word in words if word).capitalize()
        classes[finding.name] = {"positive": [positive], "negative": [f"No {noun}"]}
    return load_prompts({"name": "phantom", "classes": classes})


# ------------------------------------------------------------------------------- training


def trainer_of(place: Phantom, cell: Cell, scratch: Path) -> Trainer:
    """The trainer of one cell, before its first step.

    In its ``loss``, which may name an ``aggregator``, a policy's or a table's ``path`` may be
    ``@agreement`` or ``@eta_true``, a policy's ``start_step`` ``@0.4``, a share of the steps, and
    an ``eta`` a control of `medclip_debias.experiments.doses`. ``scratch`` holds its tables as long
    as the trainer lives.
    """
    own, loss = dict(cell["train"]), dict(cell["loss"])
    size, arch, dim = (own.pop(name) for name in ("input_size", "arch", "dim"))
    content = {
        "prepared": str(place.prepared),
        "out": str(scratch / "run"),
        "preprocessing": {"prepare": {"size": place.data.settings.size}, "input_size": size},
        "model": {
            "image": {"arch": arch},
            "text": {"folder": str(place.language_model), "max_tokens": 48},
            "dim": dim,
            "similarity": {"aggregator": loss.pop("aggregator", "lse_nl")},
        },
        "loss": resolve(loss, place, scratch, own["steps"]),
        "train": own | {"seed": cell["seed"], "workers": 0},
    }
    return Trainer(validate(RunSettings, content, "the study"), "the study")


def resolve(loss: Mapping[str, Any], place: Phantom, scratch: Path, steps: int) -> dict[str, Any]:
    """Settings of an objective with every place holder filled in; see `trainer_of`."""

    def eta(given: Mapping[str, Any]) -> Mapping[str, Any]:
        if given.get("path") == "@eta_true":
            return {**given, **doses.write_eta(place.eta_true(), scratch / "eta.parquet")}
        return doses.dose(given, place.data) if doses.is_dose(given) else given

    def policy(given: Mapping[str, Any]) -> Mapping[str, Any]:
        known = {"path": str(place.agreement)} if given.get("path") == "@agreement" else {}
        return doses.with_start({**given, **known}, steps)

    return doses.changed(loss, eta=eta, policy=policy)


def train_model(trainer: Trainer) -> tuple[DualEncoder, dict[str, float]]:
    """The trained model, in evaluation mode.

    Also the means of what the objective reported over the last tenth of the steps.
    """
    steps = trainer.settings.train.steps
    kept: dict[str, list[float]] = {}
    for step in range(steps):
        metrics = trainer.step(step)
        if step >= steps - max(1, steps // 10):
            for name in ("loss", "clamped", "mean_eta"):
                if name in metrics:
                    kept.setdefault(name, []).append(float(metrics[name]))
    model = cast("DualEncoder", trainer.result)  # built anew by every run of a study
    model.eval()
    return model, {name: float(np.mean(values)) for name, values in kept.items()}


# ------------------------------------------------------------------------------ measuring


def measure(model: DualEncoder, place: Phantom) -> Row:
    """`METRICS` on the test split."""
    data, prompts, classes = place.data, load_prompts("chex5"), class_prompts()
    rows = rows_of_split(data, "test")
    shown = place.shown(rows)
    request = Request(data, "test", model, prompts, EvaluationOptions())
    five, fine, maps, ranks = measured(
        model,
        data,
        zero_shot(model, data, labels_of(data, "test", list(prompts.classes)), prompts),
        zero_shot(model, data, true_labels(rows, {n: shown[n] for n in classes.classes}), classes),
        PhraseGrounding(request),
        BoxRetrieval(request),
    )
    each = list(fine.by_class("auc").values())  # in the order of their frequency
    results = {"zero_shot": five, "grounding": maps, "retrieval": ranks}
    metrics = {key: results[one.protocol].value(one.name) for key, one in METRICS.items()}
    metrics |= {"fine_auc": np.mean(each), "tail_auc": np.mean(each[-RARE:])}
    return {name: float(value) for name, value in metrics.items()}


def measured(model: DualEncoder, data: PreparedSet, *protocols: Any) -> list[Any]:
    """What each protocol measured, without intervals."""
    encode(model, Network(model, data), list(protocols), batch_size=64)
    return [protocol.measure(Draw(0)) for protocol in protocols]


def true_labels(rows: Sequence[int], values: Mapping[str, Any]) -> Labels:
    """Labels of the images ``rows`` by the phantom's truth."""
    columns = {name: np.asarray(own, dtype=np.float64) for name, own in values.items()}
    return Labels(list(rows), columns, {"labels": "the phantom's truth"})


def zero_shot(
    model: DualEncoder, data: PreparedSet, labels: Labels, prompts: PromptSet
) -> ZeroShot:
    """Two-prompt classification, with no threshold chosen."""
    return ZeroShot(Request(data, "test", model, prompts, EvaluationOptions()), labels)


# -------------------------------------------------------------------------------- studies


@cache
def methods() -> dict[str, dict[str, dict[str, Any]]]:
    """Of each method the objectives to choose from, by what tells them apart (methods.yaml)."""
    return load_yaml(Path(__file__).with_name("methods.yaml"))


class PhantomStudy(Study):
    """Base of the studies whose cells train one model on one phantom: arms, on every seed.

    ``arms`` in the YAML file are names of methods, whose first candidate is taken, or names with
    a candidate or with the settings of an objective.
    """

    minor: ClassVar[tuple[str, ...]] = ("bal. acc.", "ECE", "tail AUC", "mIoU", "MedR")

    def cells(self) -> list[dict[str, Any]]:
        s, arms = self.settings, self.settings.arms
        each = arms if isinstance(arms, Mapping) else dict.fromkeys(arms)
        return [
            self.cell(seed, arm, how, **names)
            for seed, names, (arm, how) in product(s.seeds, self.axes(), each.items())
        ]

    def axes(self) -> list[dict[str, Any]]:
        """What cells differ in beside arm and seed; ``data`` is what of the data is changed."""
        return [{}]

    def cell(
        self,
        seed: int,
        method: str,
        how: str | Mapping[str, Any] | None = None,
        *,
        data: Mapping[str, Any] | None = None,
        **names: Any,
    ) -> dict[str, Any]:
        """A cell: one arm on the phantom of ``seed``, which is that of the training, too.

        ``names`` are plain values that say what the cell is for (``steps`` changes the training).
        """
        s, loss = self.settings, how
        if not isinstance(how, Mapping):
            how = how or next(iter(methods()[method]))
            loss = methods()[method][how]
        assert isinstance(loss, Mapping)
        return {
            **names,
            "method": method,
            "candidate": how if isinstance(how, str) else method,
            "loss": dict(loss),
            "seed": seed,
            "data": self.data(seed, data or {}),
            "train": {**s.train, "steps": names.get("steps", s.train["steps"])},
        }

    def data(self, seed: int, changed: Mapping[str, Any]) -> dict[str, Any]:
        """The data of a seed."""
        return merge(self.settings.data, {**changed, "seed": seed})

    def seconds(self, cell: Cell) -> float:
        """Steps, and a few seconds for measuring."""
        steps = cell["train"]["steps"] if "train" in cell else 0
        return float(6 + self.settings.seconds_per_step * steps)

    def shared(self, cell: Cell) -> Shared:
        data = cell["data"]
        return Shared(data, make_phantom, 0.027 * (data["studies"] + data["test_studies"]))

    def measure(self, cell: Cell) -> Row:
        torch.set_num_threads(1)
        place = self.place(cell)
        with tempfile.TemporaryDirectory() as scratch:
            model, metrics = train_model(trainer_of(place, cell, Path(scratch)))
        return metrics | self.metrics(model, place)

    def place(self, cell: Cell) -> Phantom:
        """The phantom of a cell."""
        return Phantom(self.shared_folder(cell))

    def metrics(self, model: DualEncoder, place: Phantom) -> Row:
        return measure(model, place)

    def groups(self, rows: Sequence[Row]) -> Parts:
        """What the plot shows, by the title of its line of panels: rows by method and seed."""
        return {"": by_method([row for row in rows if "auc" in row])}

    def tables(self, rows: Sequence[Row]) -> list[Table]:
        """Means of each group, and differences to its first method."""
        groups = self.groups(rows).items()
        return [t for title, own in groups for t in compared(title, own, next(iter(own)))]

    def figure(self, rows: Sequence[Row]) -> Figure:
        """Differences to the first method with their intervals: a line of panels for each group."""
        shown, parts = ("auc", "accuracy", "cnr", "recall"), self.groups(rows)
        titles = [f"{part} {METRICS[m].title}" for part in parts for m in shown]
        figure, axes = panels(len(titles), titles, rows=len(parts))
        longest = max(len(groups) for groups in parts.values())
        figure.set_size_inches(3.2 * len(shown), (0.9 + 0.22 * longest) * len(parts))
        for place, one in enumerate(axes):
            groups, metric = list(parts.values())[place // len(shown)], shown[place % len(shown)]
            first, *others = groups
            found = TABLES.differences(groups, first, metric)
            intervals(one, marks(found), others, named=place % len(shown) == 0)
            one.set_xlabel(f"minus {first}", fontsize=8)
        return figure


def compared(title: str, groups: Groups, baseline: Any) -> list[Table]:
    """Means over seeds, and paired differences to the baseline with Holm's stars."""
    return [
        TABLES.means(f"{title}: mean (sd) over seeds", groups),
        TABLES.difference_table(f"{title}: difference to {baseline}", groups, baseline),
    ]


def against_controls(title: str, groups: Groups) -> list[Table]:
    """The language model minus each control whose mean eta is within a fifth of its own."""

    def dose(method: str) -> float:
        return float(np.mean([row.get("mean_eta", 0.0) for row in groups[method].values()]))

    own = dose(LANGUAGE_MODEL) if LANGUAGE_MODEL in groups else 0.0
    known = [c for c in CONTROLS if c in groups and own and abs(dose(c) - own) <= 0.2 * own]
    pairs = {f"minus {control}": (groups[LANGUAGE_MODEL], groups[control]) for control in known}
    return [TABLES.contrast_table(f"{title}: language model", pairs)] if pairs else []


def parts_of(rows: Sequence[Row], name: str, title: str = "{}") -> Parts:
    """The rows for each value of ``name``, which ``title`` formats."""
    return {title.format(value): by_method(own) for value, own in split(rows, name).items()}


def minus(one: Mapping[int, Row], other: Mapping[int, Row], names: Sequence[str]) -> Any:
    """By seed, one row minus the other in these metrics."""
    return {seed: {m: row[m] - other[seed][m] for m in names} for seed, row in one.items()}
