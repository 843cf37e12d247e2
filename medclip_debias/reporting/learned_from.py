"""The set that a run learned from, for what a report says of its sentences.

A run's folder may come from somebody else, and its settings name a folder of one's own. So a set
of real reports is read only if the user names it; a synthetic one has no patient to protect.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from medclip_debias.data.loader import TrainingStudies
from medclip_debias.data.store import PreparedSet
from medclip_debias.errors import UserError, explained
from medclip_debias.losses.objective import Objective, build_objective, loss_settings
from medclip_debias.reporting.content import at
from medclip_debias.training.fields import RunData

PRIVATE = (
    "Which sentences are corrected is not shown: the run learned from real reports, whose words "
    "this page holds only if you ask for them. To have them, and to share the page only as you may "
    "share the reports, run <command>."
)


@dataclass(frozen=True)
class Learned:
    """What a run learned from, and by which objective.

    Attributes:
        run: as the run's own readers of fields take it.
        synthetic: no patient stands behind the sentences.
    """

    run: RunData
    synthetic: bool

    @property
    def objective(self) -> Objective:
        """The run's."""
        return self.run.objective


def learned(
    folder: Path, settings: Mapping[str, Any], given: Path | None
) -> tuple[Learned | None, str]:
    """The set and objective of a run, or a sentence that says why there are none.

    Args:
        folder: of the run.
        settings: content of its ``settings.yaml``; empty for an evaluation alone.
        given: the set, as the user names it.

    Raises:
        UserError: ``given`` is not the set that the run learned from.
    """
    command = f"'medclip-debias report {folder} --prepared DIR'"
    if not settings:
        return None, (
            "This folder holds an evaluation, not a training run (no settings.yaml), so it is not "
            "known what was corrected."
        )
    if isinstance(settings.get("prepared"), list):
        return None, "Which sentences are corrected is not shown of a run on several prepared sets."
    wanted = at(settings, "provenance", "data_hash")
    path = given or Path(str(settings.get("prepared")))
    if given is None and (not wanted or not (path / "meta.json").is_file()):
        return None, (
            "Which sentences are corrected is not shown: the prepared set that the run names is "
            f"not there any more, or not named; run {command}."
        )
    try:
        prepared = PreparedSet.open(path)
        if prepared.content_hash != wanted:
            raise UserError(
                f"{path}: is not the set that {folder} learned from; give that one in --prepared."
            )
    except UserError:
        if given is not None:
            raise
        return None, (
            "Which sentences are corrected is not shown: the prepared set in the folder that the "
            f"run names is damaged or another one by now; run {command}."
        )
    synthetic = bool(prepared.meta.get("synthetic", False))
    if given is None and not synthetic:
        return None, PRIVATE.replace("<command>", command)
    try:
        sentence = f"{folder / 'settings.yaml'}: holds other values than 'train' writes"
        with explained(sentence, AttributeError, KeyError, TypeError, ValueError):
            return Learned(_run_data(folder, settings, prepared), synthetic), ""
    except UserError as error:
        return None, f"Which sentences are corrected is not shown. {str(error).rstrip('.')}."


def _run_data(folder: Path, settings: Mapping[str, Any], prepared: PreparedSet) -> RunData:
    where = str(folder / "settings.yaml")
    loss = loss_settings(settings.get("loss") or {}, where)
    text = at(settings, "model", "text", "folder")
    two_view = at(settings, "train", "task") == "two_view"
    return RunData(
        objective=build_objective(loss),
        settings=loss,
        prepared=prepared,
        studies=TrainingStudies.of(prepared, text=not two_view),
        text_folder=Path(text) if text else None,
        max_tokens=int(at(settings, "model", "text", "max_tokens") or 64),
        device=torch.device("cpu"),
        where=where,
    )
