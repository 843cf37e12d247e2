"""Loss and gradients of every preset, objective, policy and kind of evidence, as recorded.

``recorded.json`` holds, for each step of each case, three projections of the per-anchor losses and
of the gradients at the similarities, the scale and the learned parameters, in float64. To record
anew, after a change that is meant to change them: ``python tests/losses/test_recorded.py``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from medclip_debias.losses.objective import build_objective, loss_settings
from medclip_debias.losses.presets import presets

RECORDED = Path(__file__).with_name("recorded.json")
STATEFUL = ("glofnd", "fnc", "sogclr")

OBJECTIVES: list[dict[str, Any]] = [
    {"kind": "infonce"},
    {"kind": "clip"},
    {"kind": "biovil"},
    {"kind": "debiased"},
    {"kind": "debiased", "eta": {"kind": "constant", "value": 0.3}, "weigh_anchors": True},
    {"kind": "debiased", "eta": {"kind": "table"}, "positives": "study"},
    {"kind": "debiased", "eta": {"kind": "table", "factor": 0.5, "control": "shuffled"}},
    {"kind": "debiased", "schedule": {"end": 0.8, "shape": "linear"}},
    {"kind": "supcon"},
    {"kind": "supcon", "match": "shared", "uncertain": "ignore"},
    {"kind": "supcon", "match": "text"},
    {"kind": "xclr"},
    {"kind": "xclr", "graph": "labels", "uncertain": "as_positive"},
    {"kind": "xclr", "graph": "given", "target_temperature": 0.3},
    {"kind": "sogclr", "gamma": 0.6},
    {"kind": "sogclr", "gamma": 0.3, "gamma_schedule": "cosine", "decay_steps": 3},
    {"kind": "sogclr", "temperature": "model"},
    {"kind": "sogclr", "temperature": "robust"},
    {"kind": "sogclr", "temperature": "modality"},
    {"kind": "sogclr", "temperature": "individual"},
]
DIRECTIONS = ("text_to_image", "image_to_text", "symmetric")
POLICIES: list[dict[str, Any]] = [
    {"kind": "remove_by_label"},
    {"kind": "remove_by_label", "match": "equal", "uncertain": "ignore", "keep_mass": True},
    {"kind": "remove_by_text", "threshold": 0.3},
    {"kind": "remove_by_text", "threshold": 0.3, "keep_mass": True},
    {"kind": "reweight_by_text", "beta": 2.0},
    {"kind": "resample_by_text", "share": 0.4},
    {"kind": "fnc", "alpha": 0.3},
    {"kind": "fnc", "alpha": 0.3, "start_epoch": 1, "keep_mass": False},
    {"kind": "glofnd", "alpha": 0.3, "init": "quantile"},
    {"kind": "glofnd", "alpha": 0.3, "lr": 0.4, "start_step": 1, "filter_step": 2},
    {"kind": "glofnd", "alpha": 0.2, "optimizer": "sgd", "lr": 0.7},
    {"kind": "remove_known"},
    {"kind": "mask_same_study"},
    {"kind": "mask_identical_text"},
    {"kind": "weigh_by_evidence"},
    {"kind": "weigh_by_evidence", "contradict": 2.0, "unknown": 0.5, "margin": 0.1},
    {
        "kind": "weigh_by_evidence",
        "evidence": {"kind": "known", "control": "random"},
        "schedule": {"end": 0.6, "shape": "cosine"},
        "margin": 0.2,
        "keep_mass": True,
    },
]
EVIDENCE: list[dict[str, Any]] = [
    {"kind": "claims"},
    {"kind": "known"},
    {"kind": "label"},
    {"kind": "label", "match": "shared"},
    {"kind": "text", "threshold": 0.3},
    {"kind": "study"},
    {"kind": "claims", "control": "random"},
    {"kind": "claims", "control": "permuted"},
]
AROUND: list[dict[str, Any]] = [
    {"kind": "siglip"},
    {"kind": "siglip", "initial_bias": -1.0, "negatives": [{"kind": "reweight_by_text"}]},
    {"kind": "keyword"},
    {"kind": "keyword", "core": {"kind": "debiased"}, "g": "g2", "weight": 2.0},
    {"kind": "keyword", "denominator": "same_class"},
    {"kind": "multi_positive", "weigh": "confidence", "prior": 0.1, "core": {"kind": "clip"}},
    {
        "kind": "multi_positive",
        "core": {"kind": "siglip", "initial_bias": -1.0, "negatives": [POLICIES[15]]},
        "weigh": "confidence",
        "threshold": 0.1,
    },
    {
        "kind": "multi_positive",
        "core": {"kind": "debiased", "direction": "symmetric", "negatives": [POLICIES[15]]},
        "weight": 0.7,
        "schedule": {"start": 0.1, "end": 0.9, "shape": "linear"},
        "evidence": {"kind": "text", "threshold": 0.3},
    },
]


def cases() -> dict[str, dict[str, Any]]:
    """Settings of each loss by a name: the preset's, or the settings as JSON."""
    several = [{**loss, "direction": d} for loss, d in product(OBJECTIVES, DIRECTIONS)]
    several += [{"kind": "clip", "negatives": [policy]} for policy in POLICIES]
    several += [{"kind": "supcon", "negatives": [policy]} for policy in POLICIES[::4]]
    several += [{"kind": "clip", "negatives": POLICIES}]
    for evidence in EVIDENCE:
        several.append({"kind": "multi_positive", "evidence": evidence})
        weigh = {"kind": "weigh_by_evidence", "evidence": evidence, "contradict": 3.0}
        several.append({"kind": "clip", "negatives": [weigh]})
    named = {f"preset {name}": dict(found.loss) for name, found in presets().items()}
    return named | {json.dumps(content): content for content in several + AROUND}


def steps(content: dict[str, Any], make_batch: Any, make_views: Any) -> Iterator[list[float]]:
    """Figures of each step: on images and sentences, on studies of several images, on views."""
    several = torch.tensor([0, 1, 2, 3, 4, 2])
    text = json.dumps(content)
    draws = range(4 if any(kind in text for kind in STATEFUL) else 1)
    kinds = (
        make_batch,
        lambda draw: make_batch(draw + 10, study_of_image=several),
        make_views,
    )
    for make in kinds:
        objective = build_objective(loss_settings(content, "test")).double()
        objective.begin(samples=12, steps_per_epoch=2)
        for draw in draws:
            objective.train(draw < 3)
            batch = make(draw)
            for name in ("similarity", "scale"):
                leaf = getattr(batch, name).detach().requires_grad_()
                object.__setattr__(batch, name, leaf)
            out = objective(batch)
            inputs = [batch.similarity, batch.scale, *objective.parameters()]
            gradients = torch.autograd.grad(out.loss, inputs, allow_unused=True)
            known = [g for g in gradients if g is not None]
            yield [x for value in (out.per_anchor, *known) for x in projections(value.detach())]


def projections(value: torch.Tensor) -> list[float]:
    """Length and two fixed projections of ``value``; itself if it is one number."""
    if value.numel() == 1:
        return [value.item()]
    flat, places = value.flatten(), torch.arange(1, value.numel() + 1, dtype=torch.float64)
    return [flat.norm().item(), *((flat * (k * places).cos()).sum().item() for k in (1, 2))]


@pytest.mark.parametrize("name", cases())
def test_loss_and_gradients_are_as_recorded(name, make_batch, make_views):
    recorded = json.loads(RECORDED.read_text())[name]
    found = list(steps(cases()[name], make_batch, make_views))
    assert len(found) == len(recorded)
    for ours, theirs in zip(found, recorded, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-12, abs=1e-12)


if __name__ == "__main__":
    spec = spec_from_file_location("losses_conftest", Path(__file__).with_name("conftest.py"))
    assert spec is not None
    assert spec.loader is not None
    conftest = module_from_spec(spec)
    spec.loader.exec_module(conftest)
    makers = conftest.full_batch, conftest.view_batch
    lines = [
        f"{json.dumps(name)}: {json.dumps(list(steps(content, *makers)))}"
        for name, content in cases().items()
    ]
    RECORDED.write_text("{\n" + ",\n".join(lines) + "\n}\n")
