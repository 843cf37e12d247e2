"""What holds for every objective, policy and kind of evidence: gradients, finiteness, messages."""

from __future__ import annotations

import copy
import doctest
import importlib
import json
import pkgutil
from pathlib import Path

import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st

from medclip_debias import losses
from medclip_debias.errors import UserError
from medclip_debias.losses.batch import FIELDS
from medclip_debias.losses.objective import (
    OBJECTIVES,
    POLICIES,
    ContrastiveLoss,
    build_objective,
    loss_settings,
    objectives,
)

CASES = yaml.safe_load(Path(__file__).with_name("cases.yaml").read_text())


def named(listed, registry):
    """Listed settings by a name, and the defaults of kinds that are not listed."""
    known = {kind for kind, cls in registry.all().items() if "medclip_debias" in cls.__module__}
    unlisted = [{"kind": kind} for kind in sorted(known - {each["kind"] for each in listed})]
    return {json.dumps(each): each for each in listed + unlisted}


LOSSES = named(CASES["objectives"] + CASES["around"], OBJECTIVES)
EACH_POLICY = named(CASES["policies"], POLICIES)
CORES = [kind for kind, cls in objectives().items() if issubclass(cls, ContrastiveLoss)]
WITH_POLICIES = {
    f"{kind} + {name}": {"kind": kind, "negatives": [policy]}
    for kind in CORES
    for name, policy in EACH_POLICY.items()
}
ALL = LOSSES | WITH_POLICIES
ALL["infonce + all"] = {"kind": "infonce", "negatives": list(EACH_POLICY.values())}
OF_INFONCE = [name for name in ALL if name.startswith("infonce")]
OPTIONAL = set(FIELDS) - {"image_of_sentence", "study_of_image", "label_names"}


def objective(content):
    loss = build_objective(loss_settings(content, "test"))
    loss.begin(samples=12, steps_per_epoch=2)
    return loss


def check_gradients(name, batch):
    """Gradients to similarity and scale of the batch and to all parameters, by differences.

    Each value is that of a fresh state, since a call may move it. Where there is state, a
    sample's anchors share it, so that only their sum has the gradient of the objective.
    """
    loss = objective(ALL[name]).double()
    state, learned = dict(loss.named_buffers()), dict(loss.named_parameters())

    def value(similarity, scale, *parameters):
        batch.similarity, batch.scale = similarity, scale
        values = dict(zip(learned, parameters, strict=True))
        fresh = {buffer: value.clone() for buffer, value in state.items()}
        out = torch.func.functional_call(loss, values | fresh, (batch,))
        return out.loss if state else out.per_anchor

    inputs = (batch.similarity, batch.scale, *learned.values())
    inputs = [x.detach().clone().requires_grad_() for x in inputs]
    assert torch.autograd.gradcheck(value, inputs, fast_mode=True)


@pytest.mark.parametrize("name", [*LOSSES, *OF_INFONCE])
def test_autograd_agrees_with_finite_differences(name, make_batch, make_views):
    few = {"owners": [0, 0, 1, 2, 3, 4], "sample_ids": torch.tensor([7, 8, 9, 10, 9])}
    check_gradients(name, make_batch(**few))
    if name in LOSSES:
        check_gradients(name, make_views(images=3))


@given(
    seed=st.integers(0, 2**20),
    scale=st.floats(1, 100),
    eta=st.floats(0, 0.99),
    name=st.sampled_from(sorted(ALL)),
    extreme=st.sampled_from(["random", "all one", "all minus one", "duplicates", "one label"]),
)
def test_loss_and_gradients_are_finite(make_batch, seed, scale, eta, name, extreme):
    loss = objective(ALL[name])
    changes = {"eta": torch.full((8,), eta)}
    if extreme == "duplicates":
        changes |= {"sample_ids": torch.full((6,), 3), "text_ids": torch.zeros(8, dtype=torch.long)}
    if extreme == "one label":  # every negative is removed
        changes |= {"labels": torch.ones(6, 6), "text_similarity": torch.ones(8, 8)}
    similarity = make_batch(seed, dtype=torch.float32).similarity
    if extreme in ("all one", "all minus one"):
        similarity = torch.ones(6, 8) * (1 if extreme == "all one" else -1)
    similarity = similarity.requires_grad_()
    batch = make_batch(seed, scale, torch.float32, similarity, **changes)
    batch.scale.requires_grad_()
    out = loss(batch)
    out.loss.backward()
    learned = [similarity, batch.scale, *loss.parameters()]
    gradients = [p.grad for p in learned if p.grad is not None]
    for value in (out.per_anchor, *out.diagnostics.values(), *gradients):
        assert torch.isfinite(value).all()
    if ALL[name]["kind"] in ("infonce", "clip", "debiased"):
        assert (out.per_anchor >= -1e-6).all()


REMOVED = [{"kind": "remove_by_text", "threshold": -1, "keep_mass": True}]
WITHOUT_NEGATIVES = {
    kind: {"kind": kind, "negatives": REMOVED} for kind in CORES if kind != "siglip"
} | {"keyword": {"kind": "keyword", "core": {"kind": "clip", "negatives": REMOVED}, "weight": 0}}


@pytest.mark.parametrize("name", WITHOUT_NEGATIVES)
def test_anchors_without_negatives_cost_nothing(name, make_batch):
    """Those that lost every one, and those of a batch of one; SigLIP's pair has a term alone."""
    changes = {
        "text_similarity": torch.ones(8, 8, dtype=torch.float64),
        "labels": torch.full((6, 6), torch.nan),  # nobody is of a class, and so a positive
    }
    one = make_batch(owners=[0], labels=torch.full((1, 6), torch.nan))
    for batch in (make_batch(**changes), one):
        batch.similarity = batch.similarity.clone().requires_grad_()
        out = objective(WITHOUT_NEGATIVES[name])(batch)
        out.loss.backward()
        assert (out.per_anchor == 0).all()
        assert (batch.similarity.grad == 0).all()


@pytest.mark.parametrize("name", LOSSES)
def test_autocast_does_not_lower_the_precision(name, make_batch):
    loss = objective(LOSSES[name])
    batch = make_batch(dtype=torch.float32, scale=50.0)
    plain = copy.deepcopy(loss)(batch).per_anchor
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(loss(batch).per_anchor, plain)


@pytest.mark.parametrize("name", [*LOSSES, *OF_INFONCE])
def test_what_an_objective_requires_is_what_it_reads(name, make_batch):
    loss = objective(ALL[name]).double()
    assert loss.requires <= OPTIONAL

    def without(*names):
        names = (*names, "label_names") if "labels" in names else names
        return make_batch(**dict.fromkeys(names))

    everything, bare = copy.deepcopy(loss)(make_batch()), loss(without(*OPTIONAL - loss.requires))
    assert torch.equal(everything.per_anchor, bare.per_anchor)
    for field in loss.requires:
        with pytest.raises(ValueError, match=field):
            loss(without(field))


def infonce(*policies):
    return {"kind": "infonce", "negatives": list(policies)}


def multi_positive(**options):
    return {"kind": "multi_positive"} | options


UNKNOWN = {"kind": "weigh_by_evidence", "evidence": {"kind": "x"}}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"kind": "debiasd"}, ["loss.kind", "did you mean 'debiased'"]),
        ({"kind": "debiased", "eta": {"kind": "constant", "value": 1.0}}, ["loss.eta", "1.0"]),
        (infonce({"kind": "fnc"}, {"kind": "fnc", "alpa": 0.1}), ["'loss.negatives.1.alpa'"]),
        ({"kind": "infonce", "negatives": 3}, ["'loss.negatives'"]),
        (multi_positive(core={"kind": "keyword"}), ["not a contrastive core"]),
        (multi_positive(core=infonce(UNKNOWN)), ["loss.core.negatives.0.evidence.kind"]),
        (multi_positive(schedule={"start": 0.5, "end": 0.2}), ["end 0.2 must be larger"]),
        ({"kind": "sogclr", "gamma_schedule": "cosine"}, ["decay_steps"]),
        ({"kind": "sogclr", "tau": 0.001}, ["tau_min"]),
    ],
)
def test_a_wrong_setting_is_one_sentence_that_names_its_place(content, words):
    with pytest.raises(UserError) as caught:
        loss_settings(content, "run.yaml")
    for word in ["run.yaml", *words]:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    "name", [m.name for m in pkgutil.walk_packages(losses.__path__, f"{losses.__name__}.")]
)
def test_the_examples_in_the_docstrings_run(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_what_the_training_loop_asks_of_an_objective_passes_through_a_core():
    temperatures = {"kind": "sogclr", "temperature": "modality", "tau_lr_factor": 0.5}
    masked_lm = {"kind": "biovil", "masked_lm": {"weight": 0.3, "mask_share": 0.2}}
    for wrap in (lambda core: core, lambda core: {"kind": "keyword", "core": core}):
        assert objective(wrap(temperatures)).lr_factor == 0.5
        assert objective(wrap(masked_lm)).masked_lm.mask_share == 0.2
        plain = objective(wrap({"kind": "siglip"}))
        assert (plain.lr_factor, plain.masked_lm) == (1, None)
