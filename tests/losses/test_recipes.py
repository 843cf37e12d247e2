"""The examples of docs/methods.md, "Adding one", run as they are written."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import torch

from medclip_debias.losses import ContrastiveBatch, anchors, batch, objective, pairs, policy
from medclip_debias.losses.batch import FIELDS
from medclip_debias.losses.objective import OBJECTIVES, POLICIES, build_objective, loss_settings
from medclip_debias.training import fields

DOCS = Path(__file__).parents[2] / "docs" / "methods.md"


def recipe(name):
    found = re.search(rf"<!-- recipe: {name} -->\n```python\n(.*?)```", DOCS.read_text(), re.S)
    return textwrap.dedent(found.group(1))


def run(name, *modules):
    """What the recipe defines, among the names that its file would import."""
    names = {"torch": torch, "Tensor": torch.Tensor}
    for module in modules:
        names |= vars(module)
    exec(compile(recipe(name), str(DOCS), "exec", dont_inherit=True), names)
    return names


@pytest.fixture(autouse=True)
def _registries(monkeypatch):
    """Both registries as they are, given back afterwards."""
    for each in (OBJECTIVES, POLICIES):
        monkeypatch.setattr(each, "entries", each.all())


def test_the_objective_is_chosen_by_its_kind_and_is_the_printed_formula(make_batch):
    run("objective", anchors, objective)
    given = make_batch()
    policies = [{"kind": "remove_by_text", "threshold": 0.3}]
    content = {"kind": "decoupled", "direction": "symmetric", "negatives": policies}
    loss = build_objective(loss_settings(content, "run.yaml"))
    plain = build_objective(loss_settings({"kind": "decoupled"}, "run.yaml"))(given).per_anchor
    for j, owner in enumerate(given.owners.tolist()):
        s = 3 * given.similarity[:, j]
        others = torch.tensor([i for i in range(6) if i != owner])
        assert plain[j] == pytest.approx((s[others].exp().sum().log() - s[owner]).item())
    similarity = given.similarity.clone().requires_grad_()
    assert torch.autograd.gradcheck(
        lambda s: loss(make_batch(similarity=s)).per_anchor, (similarity,)
    )


def test_the_policy_masks_by_a_field_that_is_declared_and_read_once(monkeypatch):
    run("policy", anchors, policy, pairs)
    for name, field in eval(f"{{{recipe('field')}}}", vars(batch)).items():
        monkeypatch.setitem(FIELDS, name, field)
    # What `training.fields.RunData` holds of the set: two images of patient b, one study without.
    images = pd.DataFrame({"patient_id": ["b", "a", "c", "b"]})
    studies = SimpleNamespace(rows=[[0], [1], [3]])
    data = SimpleNamespace(prepared=SimpleNamespace(images=images), studies=studies)
    ids = run("reader", fields)["_patient_ids"](data)
    of_patients = ContrastiveBatch(torch.zeros(3, 3), 1.0, patient_ids=ids)
    mask = POLICIES.find("mask_same_patient", "test")()
    assert mask.requires == {"patient_ids"}
    kept = mask.apply_to(of_patients.anchors("text_to_image")[0], of_patients).negatives
    assert kept.tolist() == [[False, True, False], [True, False, True], [False, True, False]]
