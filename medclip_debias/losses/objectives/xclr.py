"""X-CLR: cross-entropy to how similar the samples are, instead of to one positive."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from medclip_debias.losses.anchors import Anchors, Direction
from medclip_debias.losses.batch import ContrastiveBatch
from medclip_debias.losses.core import ContrastiveCore, CoreSettings
from medclip_debias.losses.labels import CHEX5_NAMES, Uncertain, jaccard, label_sets
from medclip_debias.losses.objective import LossOutput
from medclip_debias.losses.targets import soft_cross_entropy, soft_targets


class XCLRSettings(CoreSettings):
    """Settings of `XCLR`.

    ``graph`` is where the similarities come from: ``text`` (cosine of frozen text embeddings),
    ``labels`` (Jaccard index of the present labels) or ``given`` (the batch's ``graph``).
    """

    kind: Literal["xclr"] = "xclr"
    direction: Direction = "symmetric"
    graph: Literal["text", "labels", "given"] = "text"
    target_temperature: float = Field(0.1, gt=0)
    labels: tuple[str, ...] = CHEX5_NAMES
    uncertain: Uncertain = "as_negative"


class XCLR(ContrastiveCore[XCLRSettings]):
    """Soft-target contrastive loss (Sobal et al. 2024, section 3.2).

    With the graph ``G`` of similarities of the samples and its temperature ``tau_s``::

        q_jk = softmax_k(G_jk / tau_s)
        loss = -sum_k q_jk log softmax_k(s_jk)

    On a `TwoViewBatch` the views of one image share their row of G, and a view is left out of
    both softmaxes of its own. That is a reading: the paper leaves it out of the predictions, but
    prints the sum of the targets over all ``2 N_b`` views, so that the share of the view itself
    would have no prediction to meet. No code was published. On images and sentences it is an
    extension that the paper leaves open: the mean of both directions, with the diagonal kept. An
    image that stands for several sentences has the largest of their similarities.

    ``tau_s -> 0`` gives SupCon where captions are identical and InfoNCE where all are unique;
    the paper's appendix A.9 says "increase", it must be decrease.

    Example:
        >>> batch = ContrastiveBatch(
        ...     torch.eye(3), torch.tensor(14.0), text_similarity=torch.eye(3)
        ... )
        >>> loss = XCLR(XCLRSettings(target_temperature=0.01))
        >>> loss(batch).loss.item() < 0.01
        True
    """

    whole_batch = None
    formula: ClassVar[str] = "-sum_k q_jk log softmax_k(s_jk), q_j = softmax(G_j / tau_s)"
    paper: ClassVar[str] = "X-sample contrastive loss, Sobal et al. (2024), section 3.2"
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = (
        {},
        {"graph": "labels"},
        {"graph": "given"},
    )

    @property
    def requires(self) -> frozenset[str]:
        """What the policies read, and the field that the graph comes from."""
        field = {"text": "text_similarity", "labels": "labels", "given": "graph"}
        return super().requires | {field[self.settings.graph]}

    def over(
        self, sets: list[Anchors], diagnostics: dict[str, Tensor], batch: ContrastiveBatch
    ) -> LossOutput:
        """Losses of the batch's anchors ``[T]`` (``symmetric``: the mean of the two)."""
        losses, own = [], []
        for anchors in sets:
            mask = anchors.negatives | anchors.is_own
            graph = self._graph(anchors, batch).to(anchors.logits.dtype)
            target = soft_targets(graph, mask, self.settings.target_temperature)
            losses.append(soft_cross_entropy(anchors, target))
            own.append(target.gather(1, anchors.own[:, None]).detach())
        diagnostics["target_on_positive"] = batch.mean(torch.stack(own))
        return LossOutput(torch.stack(losses).mean(dim=0), diagnostics)

    def _graph(self, anchors: Anchors, batch: ContrastiveBatch) -> Tensor:
        s = self.settings
        if s.graph == "labels":
            similar = jaccard(*label_sets(batch, s.labels, s.uncertain, self.kind))
            rows, columns = anchors.images(batch)
            return similar[rows][:, columns]
        matrix = batch.needed("text_similarity" if s.graph == "text" else "graph", self.kind)
        return anchors.between_texts(matrix, batch)
