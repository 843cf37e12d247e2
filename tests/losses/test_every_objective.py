"""What holds for every objective under every policy: gradients, finiteness, docs, precision.

The lists are the registries and the ``examples`` that stand in each class: a new objective or
policy is in every test here by being there.
"""

from __future__ import annotations

import copy
import doctest
import importlib
import pkgutil
from typing import Literal

import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from medclip_debias import losses
from medclip_debias.errors import UserError
from medclip_debias.losses import ContrastiveBatch, NegativePolicy, PolicySettings
from medclip_debias.losses.batch import FIELDS
from medclip_debias.losses.core import ContrastiveCore
from medclip_debias.losses.objective import (
    OBJECTIVES,
    build_objective,
    describe,
    loss_settings,
    objectives,
)
from medclip_debias.losses.policy import POLICIES, policies
from medclip_debias.settings_files import load_yaml


def examples(registry):
    """Loss or policy settings of each example, by kind and what differs from the defaults."""
    found = {}
    for kind, cls in registry.items():
        for example in cls.examples:
            words = [f"{name}={value}" for name, value in example.items()]
            found[", ".join([kind, *words])] = {"kind": kind, **example}
    return found


LOSSES, EACH_POLICY = examples(objectives()), examples(policies())
CORES = {kind: cls for kind, cls in objectives().items() if issubclass(cls, ContrastiveCore)}
WITH_POLICIES = {
    f"{kind} + {name}": {"kind": kind, **cls.examples[0], "negatives": [policy]}
    for kind, cls in CORES.items()
    for name, policy in EACH_POLICY.items()
}
ALL = (
    LOSSES
    | WITH_POLICIES
    | {"infonce + all": {"kind": "infonce", "negatives": [*EACH_POLICY.values()]}}
)
OPTIONAL = {
    name
    for name in FIELDS
    if name not in ("similarity", "scale", "image_of_sentence", "study_of_image", "label_names")
}


def objective(content):
    return build_objective(loss_settings(content, "test"))


def check_gradients(name, batch, inputs):
    """Gradients to ``inputs`` of the batch and to all parameters, by finite differences.

    Each value is that of a fresh state, since a call may move it. Where there is state, a
    sample's anchors share it, so that only their sum has the gradient of the objective.
    """
    loss = objective(ALL[name]).double()
    state = dict(loss.named_buffers())
    names = [parameter for parameter, _ in loss.named_parameters()]
    values = [getattr(batch, field).detach().clone().requires_grad_() for field in inputs]

    def value(*given):
        for field, tensor in zip(inputs, given, strict=False):
            object.__setattr__(batch, field, tensor)
        learned = dict(zip(names, given[len(inputs) :], strict=True))
        fresh = {buffer: value.clone() for buffer, value in state.items()}
        out = torch.func.functional_call(loss, learned | fresh, (batch,))
        return out.loss if state else out.per_anchor

    parameters = [parameter.detach().clone().requires_grad_() for parameter in loss.parameters()]
    # With policies only projections: the weights enter in one place.
    assert torch.autograd.gradcheck(value, (*values, *parameters), fast_mode=name not in LOSSES)


@pytest.mark.parametrize("name", ALL)
def test_autograd_agrees_with_finite_differences(name, make_batch):
    few = {"owners": [0, 0, 1, 2, 3, 4], "sample_ids": torch.tensor([7, 8, 9, 10, 9])}
    check_gradients(name, make_batch(**few), ("similarity", "scale"))


@pytest.mark.parametrize("name", ALL)
def test_autograd_agrees_with_finite_differences_on_two_views(name, make_views):
    check_gradients(name, make_views(images=3), ("similarity", "scale"))


@settings(deadline=None, max_examples=200)
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


NEEDS_NEGATIVES = [name for name, content in ALL.items() if not objective(content).positive_alone]


@pytest.mark.parametrize("name", NEEDS_NEGATIVES)
def test_a_batch_of_one_costs_nothing(name):
    similarity = torch.tensor([[0.3]], requires_grad=True)
    g = torch.Generator().manual_seed(0)
    some = {field: FIELDS[field].random(1, 1, g) for field in OPTIONAL - {"seed", "done"}}
    batch = ContrastiveBatch(similarity, torch.tensor(14.0), **some, seed=0, done=0.4)
    out = objective(ALL[name])(batch)
    out.loss.backward()
    assert out.loss.item() == 0
    assert similarity.grad.item() == 0


REMOVED = [{"kind": "remove_by_text", "threshold": -1, "keep_mass": True}]
WITHOUT_NEGATIVES = {
    kind: {"kind": kind, "negatives": REMOVED}
    for kind, cls in CORES.items()
    if not cls.positive_alone
} | {"keyword": {"kind": "keyword", "core": {"kind": "clip", "negatives": REMOVED}, "weight": 0}}


@pytest.mark.parametrize("name", WITHOUT_NEGATIVES)
def test_anchors_that_lost_every_negative_cost_nothing(name, make_batch):
    similarity = make_batch().similarity.clone().requires_grad_()
    changes = {
        "text_similarity": torch.ones(8, 8, dtype=torch.float64),
        "labels": torch.full((6, 6), torch.nan),  # nobody is of a class, and so a positive
    }
    out = objective(WITHOUT_NEGATIVES[name])(make_batch(similarity=similarity, **changes))
    out.loss.backward()
    assert (out.per_anchor == 0).all()
    assert (similarity.grad == 0).all()


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


def test_the_list_names_formula_paper_and_settings_of_each():
    listing = describe()
    roles = {(entry["role"], entry["kind"]) for entry in listing}
    assert {("objective", kind) for kind in objectives()} <= roles
    assert {("policy", kind) for kind in policies()} <= roles
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
    class KeepFirstSettings(PolicySettings):
        kind: Literal["keep_first_for_a_test"] = "keep_first_for_a_test"

    try:

        class KeepFirst(NegativePolicy[KeepFirstSettings]):
            formula, paper = "W = 1 for candidate 0", "none"

            def forward(self, anchors, batch):
                return torch.arange(anchors.logits.shape[1]) == 0

        content = {"kind": "infonce", "negatives": [{"kind": "keep_first_for_a_test"}]}
        out = objective(content)(ContrastiveBatch(torch.zeros(3, 3), torch.tensor(1.0)))
        assert out.per_anchor.tolist() == pytest.approx([0, 0.6931472, 0.6931472])
    finally:
        POLICIES.entries.pop("keep_first_for_a_test", None)


@pytest.mark.parametrize("registry", [OBJECTIVES, POLICIES], ids=lambda each: each.what)
def test_an_object_knows_its_kind_by_its_own_settings(registry):
    for kind, cls in registry.all().items():
        assert cls().settings.kind == cls.kind == kind
        assert type(cls().settings) is cls.settings_class


def modules():
    walked = pkgutil.walk_packages(losses.__path__, f"{losses.__name__}.")
    return sorted(module.name for module in walked)


@pytest.mark.parametrize("name", modules())
def test_the_examples_in_the_docstrings_run(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_every_objective_and_policy_has_an_example():
    for cls in [*objectives().values(), *policies().values()]:
        assert ">>>" in (cls.__doc__ or ""), cls.__name__


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
