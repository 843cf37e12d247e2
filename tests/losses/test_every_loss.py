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
from hypothesis import given, settings
from hypothesis import strategies as st

from medclip_debias import losses
from medclip_debias.errors import UserError
from medclip_debias.losses import ContrastiveBatch, describe
from medclip_debias.losses.batch import FIELDS
from medclip_debias.losses.evidence import EVIDENCE
from medclip_debias.losses.objective import (
    OBJECTIVES,
    POLICIES,
    ContrastiveLoss,
    build_objective,
    loss_settings,
    objectives,
)
from medclip_debias.settings_files import load_yaml

CASES = yaml.safe_load(Path(__file__).with_name("cases.yaml").read_text())


def named(listed, registry):
    """Listed settings by a name, and the defaults of kinds that are not listed."""
    known = {kind for kind, cls in registry.all().items() if "medclip_debias" in cls.__module__}
    unlisted = [{"kind": kind} for kind in sorted(known - {each["kind"] for each in listed})]
    return {json.dumps(each): each for each in listed + unlisted}


LOSSES = named(CASES["objectives"] + CASES["around"], OBJECTIVES)
EACH_POLICY = named(CASES["policies"], POLICIES)
EACH_EVIDENCE = named(CASES["evidence"], EVIDENCE)
CORES = [kind for kind, cls in objectives().items() if issubclass(cls, ContrastiveLoss)]
WITH_POLICIES = {
    f"{kind} + {name}": {"kind": kind, "negatives": [policy]}
    for kind in CORES
    for name, policy in EACH_POLICY.items()
}
ALL = LOSSES | WITH_POLICIES
ALL["infonce + all"] = {"kind": "infonce", "negatives": list(EACH_POLICY.values())}
OPTIONAL = set(FIELDS) - {"image_of_sentence", "study_of_image", "label_names"}


def objective(content):
    made = build_objective(loss_settings(content, "test"))
    made.begin(samples=12, steps_per_epoch=2)
    return made


def check_gradients(name, batch):
    """Gradients to similarity and scale of the batch and to all parameters, by differences.

    Each value is that of a fresh state, since a call may move it. Where there is state, a
    sample's anchors share it, so that only their sum has the gradient of the objective.
    """
    loss = objective(ALL[name]).double()
    state = dict(loss.named_buffers())
    names = [parameter for parameter, _ in loss.named_parameters()]
    values = [x.detach().clone().requires_grad_() for x in (batch.similarity, batch.scale)]

    def value(similarity, scale, *parameters):
        batch.similarity, batch.scale = similarity, scale
        learned = dict(zip(names, parameters, strict=True))
        fresh = {buffer: value.clone() for buffer, value in state.items()}
        out = torch.func.functional_call(loss, learned | fresh, (batch,))
        return out.loss if state else out.per_anchor

    parameters = [parameter.detach().clone().requires_grad_() for parameter in loss.parameters()]
    # With policies only projections: the weights enter in one place.
    assert torch.autograd.gradcheck(value, (*values, *parameters), fast_mode=name not in LOSSES)


@pytest.mark.parametrize("name", ALL)
def test_autograd_agrees_with_finite_differences(name, make_batch, make_views):
    few = {"owners": [0, 0, 1, 2, 3, 4], "sample_ids": torch.tensor([7, 8, 9, 10, 9])}
    check_gradients(name, make_batch(**few))
    if name in LOSSES:
        check_gradients(name, make_views(images=3))


@settings(deadline=None, max_examples=150)
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
    out = loss(make_batch(seed, scale, torch.float32, similarity, **changes))
    out.loss.backward()
    assert torch.isfinite(out.per_anchor).all()
    assert torch.isfinite(similarity.grad).all()
    for figure in out.diagnostics.values():
        assert torch.isfinite(figure).all()
    for parameter in loss.parameters():
        assert parameter.grad is None or torch.isfinite(parameter.grad).all()


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
        lowered = loss(batch).per_anchor
    assert lowered.dtype == torch.float32
    assert torch.equal(plain, lowered)


@pytest.mark.parametrize("name", ALL)
def test_what_an_objective_requires_is_what_it_reads(name, make_batch):
    loss = objective(ALL[name]).double()
    assert loss.requires <= OPTIONAL
    unread = dict.fromkeys(OPTIONAL - loss.requires)
    if "labels" in unread:
        unread["label_names"] = None
    everything, bare = copy.deepcopy(loss)(make_batch()), loss(make_batch(**unread))
    assert torch.equal(everything.per_anchor, bare.per_anchor)
    for field in loss.requires:
        with pytest.raises(ValueError, match=field):
            loss(make_batch(**{field: None} | ({"label_names": None} if field == "labels" else {})))


@pytest.mark.parametrize("name", EACH_EVIDENCE)
def test_evidence_lies_between_minus_one_and_one_and_only_at_negatives(name, make_batch):
    batch = make_batch()
    evidence = EVIDENCE.build(EVIDENCE.settings(EACH_EVIDENCE[name], "test"))
    for anchors in batch.anchors("symmetric"):
        value = evidence(anchors, batch)
        assert value.shape == anchors.logits.shape
        assert value.dtype == anchors.logits.dtype
        assert (value.abs() <= 1).all()
        assert (value[~anchors.negatives] == 0).all()


def test_the_list_names_formula_paper_and_settings_of_each():
    listing = describe()
    assert {(entry["role"], entry["kind"]) for entry in listing} == {
        (registry.what, kind)
        for registry in (OBJECTIVES, POLICIES, EVIDENCE)
        for kind in registry.all()
    }
    for entry in listing:
        assert entry["formula"]
        assert entry["paper"]
        yaml.safe_dump(entry["settings"])
    for registry in (OBJECTIVES, POLICIES, EVIDENCE):
        for kind, cls in registry.all().items():
            assert cls().settings.kind == cls.kind == kind


def test_settings_survive_being_written_and_read(tmp_path):
    for content in ALL.values():
        made = loss_settings(content, "test")
        path = tmp_path / "settings.yaml"
        path.write_text(yaml.safe_dump(made.model_dump(mode="json")))
        assert loss_settings(load_yaml(path), str(path)) == made


CORE = "loss.core.negatives.0.evidence.kind"
UNKNOWN = [{"kind": "weigh_by_evidence", "evidence": {"kind": "x"}}]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"kind": "debiasd"}, ["loss.kind", "did you mean 'debiased'"]),
        ({}, ["loss.kind"]),
        ({"kind": "debiased", "etta": {}}, ["loss.etta", "did you mean 'eta'"]),
        ({"kind": "debiased", "eta": {"kind": "constant", "value": 1.0}}, ["loss.eta", "1.0"]),
        ({"kind": "infonce", "negatives": [{"kind": "fncc"}]}, ["loss.negatives.0.kind", "'fnc'"]),
        ({"kind": "infonce", "negatives": [{"alpha": 1}]}, ["known policies"]),
        (
            {"kind": "infonce", "negatives": [{"kind": "fnc"}, {"kind": "fnc", "alpa": 0.1}]},
            ["unknown setting 'loss.negatives.1.alpa'", "did you mean 'alpha'"],
        ),
        (
            {"kind": "infonce", "negatives": [{"kind": "fnc", "alpha": 1}]},
            ["'loss.negatives.0.alpha' is wrong"],
        ),
        ({"kind": "infonce", "negatives": 3}, ["'loss.negatives'"]),
        ({"kind": "keyword", "core": {"kind": "clp"}}, ["loss.core.kind", "did you mean 'clip'"]),
        ({"kind": "multi_positive", "core": {"kind": "keyword"}}, ["no contrastive core"]),
        ({"kind": "multi_positive", "core": {"kind": "clip", "negatives": UNKNOWN}}, [CORE]),
        ({"kind": "multi_positive", "evidence": {"kind": "claim"}}, ["did you mean 'claims'"]),
        ({"kind": "multi_positive", "evidence": 3}, ["loss.evidence.kind", "kinds of evidence"]),
        (
            {"kind": "multi_positive", "schedule": {"start": 0.5, "end": 0.2}},
            ["end 0.2 must be larger than start 0.5"],
        ),
    ],
)
def test_a_wrong_setting_is_one_sentence_that_names_its_place(content, words):
    with pytest.raises(UserError) as caught:
        loss_settings(content, "run.yaml")
    for word in ["run.yaml", *words]:
        assert word in str(caught.value)


def modules():
    walked = pkgutil.walk_packages(losses.__path__, f"{losses.__name__}.")
    return sorted(module.name for module in walked)


@pytest.mark.parametrize("name", modules())
def test_the_examples_in_the_docstrings_run(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_learned_temperatures_have_their_own_learning_rate_also_under_keywords():
    core = {"kind": "sogclr", "temperature": "modality", "tau_lr_factor": 0.5}
    for content in (core, {"kind": "keyword", "core": core}):
        assert objective(content).lr_factor == 0.5
    assert objective({"kind": "siglip"}).lr_factor == 1


def test_half_precision_similarities_are_raised():
    batch = ContrastiveBatch(torch.eye(3).bfloat16(), torch.tensor(14.0).bfloat16())
    assert batch.similarity.dtype == batch.scale.dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        embedded = ContrastiveBatch.from_embeddings(torch.randn(3, 9), torch.randn(3, 9), 14.0)
    assert embedded.similarity.dtype == torch.float32
