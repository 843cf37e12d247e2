"""Policy: drop negatives whose labels say that they are of the anchor's class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from torch import Tensor

from medclip_debias.losses.anchors import Anchors
from medclip_debias.losses.batch import ContrastiveBatch
from medclip_debias.losses.labels import (
    CHEX5_NAMES,
    Uncertain,
    equal_vectors,
    label_sets,
    shared_present,
)
from medclip_debias.losses.policy import NegativePolicy, PolicySettings


class RemoveByLabelSettings(PolicySettings):
    """Settings of `RemoveByLabel`.

    ``match: shared`` drops a negative with a present label in common, ``equal`` one whose
    labels are all the same. ``uncertain`` says what -1 is; blank is absent.
    """

    kind: Literal["remove_by_label"] = "remove_by_label"
    match: Literal["shared", "equal"] = "shared"
    uncertain: Uncertain = "as_negative"
    labels: tuple[str, ...] = CHEX5_NAMES


class RemoveByLabel(NegativePolicy[RemoveByLabelSettings]):
    """``W = 0`` where the label sets of anchor and candidate intersect (or are equal).

    Example:
        >>> import torch
        >>> batch = ContrastiveBatch(
        ...     torch.zeros(3, 3), torch.tensor(1.0), labels=torch.tensor([[1.0], [1.0], [0.0]])
        ... )
        >>> anchors = RemoveByLabel().apply_to(batch.anchors("text_to_image")[0], batch)
        >>> anchors.negatives
        tensor([[False, False,  True],
                [False, False,  True],
                [ True,  True, False]])
    """

    whole_batch = None
    formula: ClassVar[str] = "W = 0 where the present labels of anchor and candidate intersect"
    paper: ClassVar[str] = "Sample-specific debiasing (2023), table 1; Khosla et al. (2020)"
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = (
        {},
        {"match": "equal", "uncertain": "ignore"},
    )

    @property
    def requires(self) -> frozenset[str]:
        """``labels``."""
        return frozenset({"labels"})

    def forward(self, anchors: Anchors, batch: ContrastiveBatch) -> Tensor:
        """Weights ``[A, C]``, 0 or 1."""
        s = self.settings
        sets = label_sets(batch, s.labels, s.uncertain, self.kind)
        alike = (shared_present if s.match == "shared" else equal_vectors)(*sets)
        rows, columns = anchors.images(batch)
        return ~alike[rows][:, columns]
