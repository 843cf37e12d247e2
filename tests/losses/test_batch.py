"""The batch checks each declared field by its axis, gathers it and repeats it likewise."""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch

from medclip_debias.losses import ContrastiveBatch, TwoViewBatch
from medclip_debias.losses.batch import FIELDS
from medclip_debias.losses.distributed import Ranks, gather_batch

TENSORS = {name: f for name, f in FIELDS.items() if f.holds != "value"}
OPTIONAL = {name: f for name, f in TENSORS.items() if name not in ("similarity", "scale")}


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


def test_every_field_of_the_batch_is_declared():
    assert {field.name for field in fields(ContrastiveBatch)} == set(FIELDS)
    assert fields(TwoViewBatch) == fields(ContrastiveBatch)


@pytest.mark.parametrize("name", sorted(OPTIONAL))
def test_a_field_of_one_row_less_is_refused_by_name(name, make_batch):
    with pytest.raises(ValueError, match=f"{name} has shape"):
        short(make_batch, name)


def short(make_batch, name):
    whole = make_batch(study_of_image=torch.arange(6))
    given = {field.name: getattr(whole, field.name) for field in fields(ContrastiveBatch)}
    return ContrastiveBatch(**given | {name: given[name][:-1]})


@pytest.mark.parametrize("name", [n for n, f in OPTIONAL.items() if f.holds != "numbers"])
def test_a_field_of_the_wrong_type_is_refused_by_name(name, make_batch):
    whole = make_batch(study_of_image=torch.arange(6))
    given = {field.name: getattr(whole, field.name) for field in fields(ContrastiveBatch)}
    with pytest.raises(ValueError, match=f"{name} must hold"):
        ContrastiveBatch(**given | {name: given[name].double()})


def one_value(name, images, sentences):
    """Values of ``name`` that differ from entry to entry."""
    declared = FIELDS[name]
    rows = {"image": (images,), "text": (sentences,), "pair": (sentences, sentences)}
    shape = rows[declared.axis] + ((3,) if declared.columns else ())
    value = torch.arange(torch.Size(shape).numel()).view(shape)
    kinds = {"numbers": value.double(), "integers": value, "truth": value % 2 == 0}
    return kinds[declared.holds]


@pytest.mark.parametrize("name", sorted(set(OPTIONAL) - {"image_of_sentence"}))
def test_two_views_have_the_field_of_their_image(name):
    first, second = torch.randn(2, 4, 5).double()
    value = one_value(name, 4, 4)
    batch = TwoViewBatch.from_views(first, second, 2.0, **{name: value})
    found = getattr(batch, name)
    for view in range(8):
        if FIELDS[name].axis == "pair":
            for other in range(8):
                assert found[view, other] == value[view % 4, other % 4]
        else:
            assert torch.equal(found[view], value[view % 4])


@pytest.mark.parametrize("name", sorted(set(OPTIONAL) - {"image_of_sentence"}))
def test_one_process_gathers_each_field_as_it_is(name):
    x = torch.eye(4).double()
    value = one_value(name, 4, 4)
    batch = gather_batch(x, x, torch.matmul, torch.tensor(1.0), Ranks(), **{name: value})
    assert torch.equal(getattr(batch, name), value)
