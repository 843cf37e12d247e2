"""Loss and gradients of every preset, objective, policy and kind of evidence, as recorded.

``recorded.json`` holds, for each step of each case, three projections of the per-anchor losses and
of the gradients at the similarities, the scale and the learned parameters, in float64. To record
anew, after a change that is meant to change them: ``python -m tests.losses.test_recorded``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from medclip_debias.losses.objective import build_objective, loss_settings
from medclip_debias.losses.presets import presets
from tests.losses.conftest import full_batch, view_batch

RECORDED = Path(__file__).with_name("recorded.json")
STATEFUL = ("glofnd", "fnc", "sogclr")

CASES = yaml.safe_load(Path(__file__).with_name("cases.yaml").read_text())
DIRECTIONS = ("text_to_image", "image_to_text", "symmetric")


def cases() -> dict[str, dict[str, Any]]:
    """Settings of each loss by a name: the preset's, or the settings as JSON."""
    policies = CASES["policies"]
    several = [{**loss, "direction": d} for loss, d in product(CASES["objectives"], DIRECTIONS)]
    several += [{"kind": "clip", "negatives": [policy]} for policy in policies]
    several += [{"kind": "supcon", "negatives": [policy]} for policy in policies[::4]]
    several += [{"kind": "clip", "negatives": policies}]
    for evidence in CASES["evidence"]:
        several.append({"kind": "multi_positive", "evidence": evidence})
        weigh = {"kind": "weigh_by_evidence", "evidence": evidence, "contradict": 3.0}
        several.append({"kind": "clip", "negatives": [weigh]})
    named = {f"preset {name}": dict(found.loss) for name, found in presets().items()}
    return named | {json.dumps(content): content for content in several + CASES["around"]}


def steps(content: dict[str, Any]) -> Iterator[list[float]]:
    """Figures of each step: on images and sentences, on studies of several images, on views."""
    several = torch.tensor([0, 1, 2, 3, 4, 2])
    text = json.dumps(content)
    draws = range(4 if any(kind in text for kind in STATEFUL) else 1)
    kinds: tuple[Any, ...] = (
        full_batch,
        lambda draw: full_batch(draw + 10, study_of_image=several),
        view_batch,
    )
    for make in kinds:
        objective = build_objective(loss_settings(content, "test")).double()
        objective.begin(samples=12, steps_per_epoch=2)
        for draw in draws:
            objective.train(draw < 3)
            batch = make(draw)
            for name in ("similarity", "scale"):
                leaf = getattr(batch, name).detach().requires_grad_()
                setattr(batch, name, leaf)
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


NAMED = cases()
KNOWN = json.loads(RECORDED.read_text()) if RECORDED.is_file() else {}


@pytest.mark.parametrize("name", NAMED)
def test_loss_and_gradients_are_as_recorded(name):
    recorded, found = KNOWN[name], list(steps(NAMED[name]))
    assert len(found) == len(recorded)
    for ours, theirs in zip(found, recorded, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-12, abs=1e-12)


if __name__ == "__main__":
    rows = [
        f"{json.dumps(name)}: {json.dumps(list(steps(content)))}" for name, content in NAMED.items()
    ]
    RECORDED.write_text("{\n" + ",\n".join(rows) + "\n}\n")
