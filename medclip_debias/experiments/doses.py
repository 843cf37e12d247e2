"""Controls of equal dose: the same class probability on average, but not for the same sentences.

A method whose eta follows the sentence does two things at once: it corrects by some amount, and by
more for some sentences than for others. Its controls correct by the same amount: ``mean_of`` gives
every sentence the mean, ``shuffled`` permutes the values of each batch over its sentences (permuted
over the distinct sentences, as earlier versions did, the mean over all occurrences changes).
Only what the method gains over both comes from the sentence.

In the settings of an objective these stand where an eta stands, as
``eta: {kind: shuffled, a: 0.2, k: 0.35}``; `dose` turns them into an eta that training knows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from medclip_debias.files import atomic_file

if TYPE_CHECKING:
    from medclip_debias.data.store import PreparedSet

KINDS = ("mean_of", "shuffled")


def is_dose(eta: Mapping[str, Any]) -> bool:
    """Whether these settings of an eta name a control."""
    return eta.get("kind") in KINDS


def dose(
    eta: Mapping[str, Any], prepared: PreparedSet, *, language_model: Path | None = None
) -> dict[str, Any]:
    """The settings of an eta that has the dose of a language model's.

    Args:
        eta: ``kind`` (of `KINDS`), ``a`` and ``k``; the defaults of the language model's eta.
        prepared: a scored set.
        language_model: folder of the model that the scores must come from, where ``eta`` names
            none; None accepts any.
    """
    from medclip_debias.config import validate
    from medclip_debias.losses.debiased import LanguageModelEta

    given = {name: value for name, value in eta.items() if name != "kind"}
    chosen = validate(LanguageModelEta, given, "the grid", "loss.eta.")
    if eta["kind"] == "shuffled":
        return chosen.model_dump(mode="json") | {"control": "shuffled"}
    scorer = chosen.language_model or language_model
    values, counts = language_eta(prepared, chosen.a, chosen.k, scorer)
    mean = np.average(list(values.values()), weights=[counts[text] for text in values])
    return {"kind": "constant", "value": float(mean)}


def write_eta(values: Mapping[str, float], path: Path) -> dict[str, Any]:
    """Write eta of each sentence as a table, and return the settings that read it."""
    import pandas as pd

    from medclip_debias.losses.debiased import ETA_MAX

    table = pd.DataFrame({"text": list(values), "eta": np.minimum(list(values.values()), ETA_MAX)})
    with atomic_file(path) as temporary:
        table.to_parquet(temporary)
    return {"kind": "table", "path": str(path)}


def language_eta(
    prepared: PreparedSet, a: float, k: float, language_model: Path | None = None
) -> tuple[dict[str, float], dict[str, int]]:
    """The language model's eta of every distinct training sentence, and how often it occurs."""
    from medclip_debias.language.class_probability import log_probabilities
    from medclip_debias.losses.debiased import ETA_MAX

    counts = training_counts(prepared)
    texts = list(counts)
    log_prob = log_probabilities(prepared, texts, language_model)
    eta = np.minimum(np.exp(np.log(a) + k * log_prob), ETA_MAX)
    return dict(zip(texts, eta.tolist(), strict=True)), counts


def training_counts(prepared: PreparedSet) -> dict[str, int]:
    """How often each distinct sentence is said in the training studies."""
    studies, said = prepared.studies, prepared.sentences
    train = set(studies.loc[studies["split"] == "train", "study_id"])
    counts = said.loc[said["study_id"].isin(train), "text"].value_counts(sort=False)
    return {str(text): int(count) for text, count in counts.items()}


# ------------------------------------------------------------------- settings of objectives


Change = Callable[[Mapping[str, Any]], Mapping[str, Any]]


def changed(
    loss: Mapping[str, Any], *, eta: Change = dict, policy: Change = dict
) -> dict[str, Any]:
    """The settings of an objective, and of its ``core``, with every eta and policy changed."""
    result = dict(loss)
    if isinstance(result.get("core"), Mapping):
        result["core"] = changed(result["core"], eta=eta, policy=policy)
    if isinstance(result.get("eta"), Mapping):
        result["eta"] = dict(eta(result["eta"]))
    if isinstance(result.get("negatives"), list | tuple):
        result["negatives"] = [
            dict(policy(one)) if isinstance(one, Mapping) else one for one in result["negatives"]
        ]
    return result


def with_start(policy: Mapping[str, Any], steps: int) -> dict[str, Any]:
    """A policy whose ``start_step`` may be ``@0.4``, a share of the run's steps."""
    result = dict(policy)
    start = result.get("start_step")
    if isinstance(start, str) and start.startswith("@"):
        result["start_step"] = round(float(start.removeprefix("@")) * steps)
    return result
