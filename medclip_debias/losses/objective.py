"""What every objective is and returns; find, validate, build and list those of ``objectives``.

An objective is one file of that folder: a settings class with its ``kind``, and an `Objective`
subclass. Being there is all the registration there is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, TypeVar

import torch
from pydantic import BeforeValidator, Field, SerializeAsAny
from torch import Tensor, nn

from medclip_debias.config import Settings, validate
from medclip_debias.losses.batch import ContrastiveBatch
from medclip_debias.losses.pair_evidence import evidence_kinds, evidence_settings
from medclip_debias.losses.policy import policies, policy_settings
from medclip_debias.registry import Chosen, Registry


@dataclass(frozen=True)
class LossOutput:
    """Per-anchor losses ``[A]`` and named scalar diagnostics; ``loss`` is their mean.

    An anchor without any negative is an explicit zero and counts in the mean.
    """

    per_anchor: Tensor
    diagnostics: dict[str, Tensor] = field(default_factory=dict)

    @property
    def loss(self) -> Tensor:
        """Mean over the anchors: a scalar."""
        return self.per_anchor.mean()


class KnowsRun:
    """Base of the modules that `Objective.begin` tells about the run."""

    def begin(self, *, samples: int, steps_per_epoch: int) -> None:
        """Take note of the size of the run: see `Objective.begin`."""
        raise NotImplementedError


@dataclass(frozen=True)
class ParameterGroup:
    """Parameters of an objective and what to multiply the run's learning rate by for them."""

    parameters: list[nn.Parameter]
    lr_factor: float = 1.0


class LossSettings(Settings):
    """Base of every objective's settings; each subclass names its ``kind``."""

    kind: str = ""


class MaskedLMSettings(Settings):
    """A masked-language-model loss of the text encoder, added with ``weight``.

    ``mask_share`` of the tokens is to be predicted (BERT's 15%).
    """

    weight: float = Field(1.0, ge=0)
    mask_share: float = Field(0.15, gt=0, lt=1)


L = TypeVar("L", bound=LossSettings)

OBJECTIVES: Registry[type[Objective[Any]]] = Registry(
    "objective", "medclip_debias.losses.objectives"
)


class Objective(Chosen[L], nn.Module):
    """Base of every objective.

    Called under autocast it switches it off: everything in here is float32 or better.

    A subclass names its settings class in brackets, whose ``kind`` is its name in ``loss.kind``.

    Class attributes, beside those of `Chosen`:
        positive_alone: an anchor that has no negatives costs something (a batch of one, say).
        whole_batch: why several processes cannot share the loss (`medclip_debias.losses.sharded`);
            None if the loss of an anchor depends on its own row alone and it is indexed by
            `Anchors.rows`, with diagnostics by `ContrastiveBatch.mean`.
    """

    registry: ClassVar[Registry[Any]] = OBJECTIVES
    positive_alone: bool = False
    whole_batch: str | None = "does not say that an anchor's loss is its own row's alone"

    def __call__(self, batch: ContrastiveBatch) -> LossOutput:
        """Per-anchor losses of one batch."""
        with torch.autocast(batch.similarity.device.type, enabled=False):
            result: LossOutput = super().__call__(batch)
        return result

    @property
    def requires(self) -> frozenset[str]:
        """Optional fields of the batch that this objective, so set, reads."""
        return frozenset()

    @property
    def masked_lm(self) -> MaskedLMSettings | None:
        """The masked-language-model term that the training loop is to add, if any."""
        return None

    def begin(self, *, samples: int, steps_per_epoch: int) -> None:
        """Tell policies and tables of this objective how large the run is.

        Call it once, before the first batch; a checkpoint may be loaded before or after. Without
        it tables grow as samples are seen, and only what counts in epochs cannot be used.

        Args:
            samples: studies of the training set; ``sample_ids`` are below it.
            steps_per_epoch: batches in one pass over them.
        """
        for module in self.modules():
            if isinstance(module, KnowsRun):
                module.begin(samples=samples, steps_per_epoch=steps_per_epoch)

    def parameter_groups(self) -> list[ParameterGroup]:
        """Every learned parameter of this objective, once, by learning rate; none is decayed."""
        own = list(self.parameters())
        return [ParameterGroup(own)] if own else []

    def forward(self, batch: ContrastiveBatch) -> LossOutput:
        """Per-anchor losses of one batch."""
        raise NotImplementedError


def objectives() -> dict[str, type[Objective[Any]]]:
    """All objectives by kind, in alphabetical order."""
    return OBJECTIVES.all()


def loss_settings(content: Mapping[str, Any], where: str, prefix: str = "loss.") -> LossSettings:
    """Validate the ``loss`` part of a run's settings by the objective it names.

    Args:
        content: mapping with a ``kind``.
        where: file it came from, for the message.
        prefix: place of ``content`` in that file.

    Raises:
        UserError: the kind is missing or unknown, or a setting of it is wrong.
    """
    objective = OBJECTIVES.find(content.get("kind"), where, f"{prefix}kind")
    settings: LossSettings = validate(
        objective.settings_class, _parts(content, where, prefix), where, prefix
    )
    return settings


def _nested(value: Any) -> Any:
    return loss_settings(value, "core", "") if isinstance(value, dict) else value


NestedLoss = Annotated[SerializeAsAny[LossSettings], BeforeValidator(_nested)]
"""Field type of an objective inside another one, validated by the kind it names."""


class AroundCore(Objective[L]):
    """Base of the objectives that change another one, their ``core``."""

    core: Objective[Any]

    @property
    def masked_lm(self) -> MaskedLMSettings | None:
        """The core's."""
        return self.core.masked_lm

    def parameter_groups(self) -> list[ParameterGroup]:
        """The core's."""
        return self.core.parameter_groups()


def _parts(content: Mapping[str, Any], where: str, prefix: str) -> Mapping[str, Any]:
    """Validate parts that have a kind first, so that a message can name their own keys."""
    result = dict(content)
    entries, core = content.get("negatives"), content.get("core")
    if isinstance(entries, list | tuple):
        result["negatives"] = tuple(
            policy_settings(entry, where, f"{prefix}negatives.{place}.")
            for place, entry in enumerate(entries)
        )
    if isinstance(core, Mapping):
        result["core"] = loss_settings(core, where, f"{prefix}core.")
    if "evidence" in content:
        result["evidence"] = evidence_settings(content["evidence"], where, f"{prefix}evidence.")
    return result


def build_objective(settings: LossSettings) -> Objective[Any]:
    """Build the objective of validated ``settings``."""
    return objectives()[settings.kind](settings)


def describe() -> list[dict[str, Any]]:
    """Every objective, policy on negatives and kind of evidence: formula, paper, settings.

    ``role`` is ``objective`` (a ``loss.kind``), ``policy`` (a kind in ``loss.negatives``) or
    ``evidence`` (a kind in the ``evidence`` of an objective or a policy).
    """
    entries: list[dict[str, Any]] = []
    known: dict[str, Mapping[str, type[Chosen[Any]]]] = {
        "objective": objectives(),
        "policy": policies(),
        "evidence": evidence_kinds(),
    }
    for role, classes in known.items():
        entries.extend(
            {
                "kind": kind,
                "role": role,
                "formula": cls.formula,
                "paper": cls.paper,
                "settings": cls.settings_class().model_dump(mode="json", exclude={"kind"}),
            }
            for kind, cls in classes.items()
        )
    return entries
