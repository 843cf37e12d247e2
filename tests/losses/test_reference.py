"""Every loss with every policy and kind of evidence against its formula, pair by pair."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import yaml

from medclip_debias.losses.objective import build_objective, loss_settings
from tests.losses.reference import per_anchor

CASES = yaml.safe_load(Path(__file__).with_name("cases.yaml").read_text())
RANDOM = ("glofnd", "sogclr", "resample", "shuffled", "control", "start_epoch")
STUDIES = torch.tensor([0, 1, 2, 3, 4, 2])


def cases():
    """Settings by a name: every loss alone, around others, and with policies and evidence."""
    several = [*CASES["objectives"], *CASES["around"]]
    debiased = {"kind": "debiased", "eta": {"kind": "table", "factor": 0.3}, "positives": "study"}
    for core in ({"kind": "infonce"}, {"kind": "xclr"}, debiased | {"direction": "symmetric"}):
        several += [core | {"negatives": [policy]} for policy in CASES["policies"]]
    several.append({"kind": "supcon", "negatives": [{"kind": "remove_by_label"}]})
    kept = [p for p in CASES["policies"] if not any(word in json.dumps(p) for word in RANDOM)]
    several.append({"kind": "clip", "negatives": [p for p in kept if not p.get("keep_mass")][:6]})
    for match in ("shared", "equal"):
        for uncertain in ("as_negative", "as_positive", "ignore"):
            label = {"kind": "remove_by_label", "match": match, "uncertain": uncertain}
            several.append({"kind": "clip", "negatives": [label]})
    for evidence in CASES["evidence"]:
        weigh = {"kind": "weigh_by_evidence", "evidence": evidence}
        several.append({"kind": "clip", "negatives": [weigh]})
        several.append({"kind": "multi_positive", "core": {"kind": "clip"}, "evidence": evidence})
    named = {json.dumps(each): each for each in several}
    return {k: v for k, v in named.items() if not any(word in k for word in RANDOM)}


NAMED = cases()


@pytest.mark.parametrize("name", NAMED)
def test_each_loss_is_its_formula_pair_by_pair(name, make_batch):
    """From scale 1 to 100, also where two images are of one study."""
    settings = loss_settings(NAMED[name], "test")
    for draw, (scale, studies) in enumerate(((1.0, STUDIES), (14.0, None), (100.0, STUDIES))):
        batch = make_batch(draw, scale, study_of_image=studies)
        losses = build_objective(settings).double()(batch).per_anchor.tolist()
        expected = per_anchor(settings.model_dump(mode="json"), batch)
        # evidence is in hundredths of float32
        limit = 1e-6 if "evidence" in name or "confidence" in name else 1e-9
        assert losses == pytest.approx(expected, rel=limit, abs=1e-11)
