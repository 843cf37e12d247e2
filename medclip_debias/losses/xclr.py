"""X-CLR (Sobal et al. 2024, section 3.2): cross-entropy to how similar the samples are.

With the graph ``G`` of similarities of the samples and its temperature ``tau_s``::

    q_jk = softmax_k(G_jk / tau_s)
    loss = -sum_k q_jk log softmax_k(s_jk)
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field

from medclip_debias.losses.anchors import Anchors, Direction, LossBatch
from medclip_debias.losses.labels import CHEX5_NAMES, Uncertain, jaccard, label_sets
from medclip_debias.losses.objective import ContrastiveLoss, ContrastiveSettings, Losses, register
from medclip_debias.losses.pairs import between_images, between_texts, soft_cross_entropy


class XCLRSettings(ContrastiveSettings):
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


@register(
    "xclr",
    XCLRSettings,
    rowwise=True,
    formula="-sum_k q_jk log softmax_k(s_jk), q_j = softmax(G_j / tau_s)",
    paper="X-sample contrastive loss, Sobal et al. (2024), section 3.2",
)
class XCLR(ContrastiveLoss):
    """Soft-target contrastive loss.

    On a `TwoViewBatch` the views of one image share their row of G, and a view is left out of both
    its softmaxes: a reading, as the paper prints the targets over all ``2 N_b`` views and published
    no code. On images and sentences it is an extension: the mean of both directions, with the
    diagonal kept. ``tau_s -> 0`` gives SupCon where captions are identical and InfoNCE where all
    are unique (the paper's A.9 says "increase").

    Example:
        >>> from medclip_debias.losses import ContrastiveBatch
        >>> alike = torch.eye(3)
        >>> batch = ContrastiveBatch(torch.eye(3), torch.tensor(14.0), text_similarity=alike)
        >>> XCLR(XCLRSettings(target_temperature=0.01))(batch).loss.item() < 0.01
        True
    """

    settings: XCLRSettings

    def chosen_fields(self) -> set[str]:
        """The field that the graph comes from."""
        return {{"text": "text_similarity", "given": "graph"}.get(self.settings.graph, "labels")}

    def per_anchor(self, anchors: Anchors, batch: LossBatch) -> Losses:
        """See `soft_cross_entropy`."""
        s = self.settings
        if s.graph == "labels":
            similar = jaccard(*label_sets(batch, s.labels, s.uncertain))
            graph = between_images(similar, anchors)
        else:
            field = "text_similarity" if s.graph == "text" else "graph"
            graph = between_texts(batch[field], anchors, batch)
        graph = graph.to(anchors.logits.dtype) / s.target_temperature
        left_out = ~(anchors.negatives | anchors.is_positive)
        target = torch.softmax(graph.masked_fill(left_out, -torch.inf), dim=1)
        figures = {
            "target_on_positive": target.gather(1, anchors.positive_column[:, None]).detach()
        }
        return soft_cross_entropy(anchors, target), figures
