"""What holds for every objective under every policy: gradients, finiteness, docs, precision."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
from pathlib import Path

import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from medclip_debias import losses
from medclip_debias.config import load_yaml
from medclip_debias.errors import UserError
from medclip_debias.losses import ContrastiveBatch, NegativePolicy, TwoViewBatch
from medclip_debias.losses.negatives import policies
from medclip_debias.losses.registry import (
    build_objective,
    describe,
    loss_settings,
    objectives,
)

LOSSES = {
    "infonce": {"kind": "infonce"},
    "clip": {"kind": "clip"},
    "biovil": {"kind": "biovil"},
    "debiased": {"kind": "debiased", "eta": {"kind": "table"}, "direction": "symmetric"},
    "debiased, language model": {"kind": "debiased"},
    "debiased, M > 1": {
        "kind": "debiased",
        "eta": {"kind": "table"},
        "positives": "study",
        "direction": "symmetric",
    },
    "supcon": {"kind": "supcon"},
    "supcon, shared": {"kind": "supcon", "match": "shared"},
    "supcon, text": {"kind": "supcon", "match": "text"},
    "xclr": {"kind": "xclr"},
    "xclr, labels": {"kind": "xclr", "graph": "labels"},
    "xclr, given": {"kind": "xclr", "graph": "given"},
    "siglip": {"kind": "siglip", "initial_bias": -1.0},
    "keyword": {"kind": "keyword"},
    "keyword, g2, L'": {
        "kind": "keyword",
        "core": {"kind": "debiased"},
        "g": "g2",
        "denominator": "same_class",
        "weight": 2.0,
    },
}
POLICIES = {
    "remove_by_label": {"kind": "remove_by_label"},
    "remove_by_label, equal": {"kind": "remove_by_label", "match": "equal", "uncertain": "ignore"},
    "remove_by_text": {"kind": "remove_by_text", "threshold": 0.3},
    "remove_by_text, mass kept": {"kind": "remove_by_text", "threshold": 0.3, "keep_mass": True},
    "reweight_by_text": {"kind": "reweight_by_text", "beta": 2.0},
    "resample_by_text": {"kind": "resample_by_text"},
    "fnc": {"kind": "fnc", "alpha": 0.3},
    "remove_known": {"kind": "remove_known"},
    "mask_same_study": {"kind": "mask_same_study"},
    "mask_identical_text": {"kind": "mask_identical_text"},
}


WITH_POLICIES = {
    f"{kind} + {name}": {"kind": kind, "negatives": [policy]}
    for kind in ("debiased", "xclr", "siglip", "supcon")
    for name, policy in POLICIES.items()
}
ALL = (
    LOSSES
    | WITH_POLICIES
    | {"infonce + all": {"kind": "infonce", "negatives": [*POLICIES.values()]}}
)


STATEFUL = {  # their formulas have tests of their own; what holds for all holds for them as well
    "sogclr": {"kind": "sogclr"},
    "clip + glofnd": {
        "kind": "clip",
        "negatives": [{"kind": "glofnd", "alpha": 0.3, "init": "quantile"}],
    },
}


def objective(content):
    return build_objective(loss_settings(content, "test"))


@pytest.mark.parametrize("name", ALL)
def test_autograd_agrees_with_finite_differences(name, make_batch):
    loss = objective(ALL[name]).double()
    similarity = make_batch().similarity.clone().requires_grad_()
    scale = torch.tensor(3.0, dtype=torch.float64, requires_grad=True)

    def value(s, g2):
        batch = make_batch(similarity=s)
        object.__setattr__(batch, "scale", g2)
        return loss(batch).per_anchor

    assert torch.autograd.gradcheck(value, (similarity, scale))


@pytest.mark.parametrize("name", ALL)
def test_autograd_agrees_with_finite_differences_on_two_views(name, make_views):
    loss = objective(ALL[name]).double()
    batch = make_views()
    similarity = batch.similarity.clone().requires_grad_()

    def value(s):
        object.__setattr__(batch, "similarity", s)
        return loss(batch).per_anchor

    assert torch.autograd.gradcheck(value, (similarity,))


@settings(deadline=None, max_examples=150)
@given(
    seed=st.integers(0, 2**20),
    scale=st.floats(1, 100),
    eta=st.floats(0, 0.99),
    name=st.sampled_from(sorted(ALL | STATEFUL)),
    extreme=st.sampled_from(["random", "all one", "all minus one", "duplicates", "one label"]),
)
def test_loss_and_gradients_are_finite(make_batch, seed, scale, eta, name, extreme):
    loss = objective((ALL | STATEFUL)[name])
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
        assert torch.isfinite(parameter.grad).all()


CONTRASTIVE = [name for name in ALL | STATEFUL if "siglip" not in name]


@pytest.mark.parametrize("name", CONTRASTIVE)
def test_a_batch_of_one_costs_nothing(name):
    similarity = torch.tensor([[0.3]], requires_grad=True)
    one = torch.zeros(1, dtype=torch.long)
    batch = ContrastiveBatch(
        similarity,
        torch.tensor(14.0),
        log_prob=torch.tensor([-3.0]),
        eta=torch.tensor([0.4]),
        text_ids=one,
        sample_ids=one,
        labels=torch.ones(1, 5),
        text_similarity=torch.ones(1, 1),
        graph=torch.ones(1, 1),
        keywords=one + 1,
        agreement=torch.ones(1, 1, dtype=torch.bool),
        seed=0,
    )
    out = objective((ALL | STATEFUL)[name])(batch)
    out.loss.backward()
    assert out.loss.item() == 0
    assert similarity.grad.item() == 0


@pytest.mark.parametrize("name", ["infonce", "clip", "biovil", "debiased", "xclr", "keyword"])
def test_anchors_that_lost_every_negative_cost_nothing(name, make_batch):
    removal = [{"kind": "remove_by_text", "threshold": -1, "keep_mass": True}]
    content = dict(LOSSES[name])
    if name == "keyword":
        content |= {"core": {"kind": "clip", "negatives": removal}, "weight": 0}
    else:
        content["negatives"] = removal
    similarity = make_batch().similarity.clone().requires_grad_()
    alike = torch.ones(8, 8, dtype=torch.float64)
    out = objective(content)(make_batch(similarity=similarity, text_similarity=alike))
    out.loss.backward()
    assert (out.per_anchor == 0).all()
    assert (similarity.grad == 0).all()


@pytest.mark.parametrize("name", LOSSES)
def test_autocast_does_not_lower_the_precision(name, make_batch):
    loss = objective(LOSSES[name])
    batch = make_batch(dtype=torch.float32, scale=50.0)
    plain = loss(batch).per_anchor
    with torch.autocast("cpu", torch.bfloat16):
        lowered = loss(batch).per_anchor
    assert lowered.dtype == torch.float32
    assert torch.equal(plain, lowered)


def test_half_precision_similarities_are_raised():
    batch = ContrastiveBatch(torch.eye(3).bfloat16(), torch.tensor(14.0).bfloat16())
    assert batch.similarity.dtype == batch.scale.dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        embedded = ContrastiveBatch.from_embeddings(torch.randn(3, 9), torch.randn(3, 9), 14.0)
    assert embedded.similarity.dtype == torch.float32


@pytest.mark.parametrize(
    "name", ["similarity", "scale", "log_prob", "eta", "text_similarity", "graph"]
)
def test_a_number_that_is_none_is_refused_by_name(name, make_batch):
    batch = make_batch()
    broken = getattr(batch, name).clone()
    broken.view(-1)[-1] = torch.nan
    kept = {f: getattr(batch, f) for f in ("similarity", "scale", "image_of_sentence")}
    with pytest.raises(FloatingPointError, match=f"'{name}'"):
        ContrastiveBatch(**kept | {name: broken})


def test_shapes_and_types_of_the_optional_fields_are_checked(make_batch):
    with pytest.raises(ValueError, match="keywords has shape"):
        make_batch(keywords=torch.zeros(3, dtype=torch.long))
    with pytest.raises(ValueError, match="text_similarity has shape"):
        make_batch(text_similarity=torch.zeros(6, 8))
    with pytest.raises(ValueError, match="sample_ids must hold integers"):
        make_batch(sample_ids=torch.zeros(6))
    with pytest.raises(ValueError, match=r"labels has shape \(6, 2\), expected \(6, 6\)"):
        make_batch(labels=torch.zeros(6, 2))
    with pytest.raises(FloatingPointError, match="labels"):
        make_batch(labels=torch.full((6, 6), torch.inf))
    assert make_batch(labels=torch.full((6, 6), torch.nan)).labels is not None
    with pytest.raises(ValueError, match="agreement must hold"):
        make_batch(agreement=torch.zeros(6, 8))
    with pytest.raises(ValueError, match="2n, 2n"):
        TwoViewBatch(torch.zeros(3, 3), torch.tensor(1.0))


@pytest.mark.parametrize("name", ALL)
def test_what_an_objective_requires_is_what_it_reads(name, make_batch):
    loss = objective(ALL[name]).double()
    optional = (
        "log_prob", "eta", "text_ids", "sample_ids", "labels", "text_similarity", "graph",
        "keywords", "agreement", "seed",
    )  # fmt: skip
    assert loss.requires <= set(optional)
    unread = dict.fromkeys(set(optional) - loss.requires)
    if "labels" in unread:
        unread["label_names"] = None
    everything, bare = loss(make_batch()), loss(make_batch(**unread))
    assert torch.equal(everything.per_anchor, bare.per_anchor)
    for field in loss.requires:
        with pytest.raises(ValueError, match=field):
            loss(make_batch(**{field: None} | ({"label_names": None} if field == "labels" else {})))


def test_the_list_names_formula_paper_and_settings_of_each():
    listing = describe()
    roles = {(entry["role"], entry["kind"]) for entry in listing}
    assert {("objective", kind) for kind in objectives()} <= roles
    assert {("policy", kind) for kind in policies()} <= roles
    assert {"xclr", "supcon", "siglip", "clip", "biovil", "keyword"} <= set(objectives())
    for entry in listing:
        assert entry["formula"]
        assert entry["paper"]
        yaml.safe_dump(entry["settings"])


def test_settings_survive_being_written_and_read(tmp_path):
    for content in ALL.values():
        made = loss_settings(content, "test")
        path = tmp_path / "settings.yaml"
        path.write_text(yaml.safe_dump(made.model_dump(mode="json")))
        assert loss_settings(load_yaml(path), str(path)) == made


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"negatives": [{"kind": "fncc"}]}, ["loss.negatives.0.kind", "did you mean 'fnc'"]),
        ({"negatives": [{"alpha": 1}]}, ["loss.negatives.0.kind", "known policies"]),
        (
            {"negatives": [{"kind": "fnc"}, {"kind": "fnc", "alpa": 0.1}]},
            ["unknown setting 'loss.negatives.1.alpa'", "did you mean 'alpha'"],
        ),
        ({"negatives": [{"kind": "fnc", "alpha": 1}]}, ["'loss.negatives.0.alpha' is wrong"]),
        ({"negatives": 3}, ["'loss.negatives'"]),
        ({"kind": "keyword", "core": {"kind": "clp"}}, ["loss.core.kind", "did you mean 'clip'"]),
        (
            {"kind": "keyword", "core": {"kind": "clip", "negatives": [{"kind": "x"}]}},
            ["loss.core.negatives.0.kind"],
        ),
    ],
)
def test_a_wrong_entry_is_named_by_its_place(content, words):
    with pytest.raises(UserError) as caught:
        loss_settings({"kind": "infonce"} | content, "run.yaml")
    for word in ["run.yaml", *words]:
        assert word in str(caught.value)


def test_a_new_policy_is_one_class():
    class KeepFirst(NegativePolicy):
        kind = "keep_first_for_a_test"
        settings_class = losses.PolicySettings
        formula, paper = "W = 1 for candidate 0", "none"

        def forward(self, anchors, batch):
            return torch.arange(anchors.logits.shape[1]) == 0

    try:
        content = {"kind": "infonce", "negatives": [{"kind": "keep_first_for_a_test"}]}
        out = objective(content)(ContrastiveBatch(torch.zeros(3, 3), torch.tensor(1.0)))
        assert out.per_anchor.tolist() == pytest.approx([0, 0.6931472, 0.6931472])
    finally:
        NegativePolicy.register.pop("keep_first_for_a_test")


def modules():
    return sorted(
        f"{losses.__name__}.{module.name}" for module in pkgutil.iter_modules(losses.__path__)
    )


@pytest.mark.parametrize("name", modules())
def test_the_examples_in_the_docstrings_run(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_every_objective_and_policy_has_an_example():
    for cls in [*objectives().values(), *policies().values()]:
        assert ">>>" in (cls.__doc__ or ""), cls.__name__


CONFIGS = sorted((Path(__file__).parents[2] / "configs" / "losses").glob("*.yaml"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_each_packaged_configuration_is_valid(path):
    content = load_yaml(path)
    assert set(content) <= {"loss", "model", "train"}
    build_objective(loss_settings(content["loss"], str(path)))


@pytest.mark.parametrize("kind", sorted(objectives()))
def test_every_learned_parameter_is_in_one_group(kind):
    loss = build_objective(loss_settings({"kind": kind}, "test"))
    grouped = [p for group in loss.parameter_groups() for p in group.parameters]
    assert len({id(p) for p in grouped}) == len(grouped)
    assert {id(p) for p in grouped} == {id(p) for p in loss.parameters()}


def test_learned_temperatures_have_their_own_learning_rate_also_under_keywords():
    core = {"kind": "sogclr", "temperature": "modality", "tau_lr_factor": 0.5}
    for content in (core, {"kind": "keyword", "core": core}):
        (group,) = build_objective(loss_settings(content, "test")).parameter_groups()
        assert group.lr_factor == 0.5
        assert len(group.parameters) == 3
