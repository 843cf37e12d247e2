"""The batch checks each field by its axis, gathers it and repeats it likewise."""

from __future__ import annotations

import pytest
import torch

from medclip_debias.losses import ContrastiveBatch, TwoViewBatch
from medclip_debias.losses.batch import FIELDS
from medclip_debias.losses.distributed import Ranks, gather_batch
from medclip_debias.losses.evidence import claim_evidence

OPTIONAL = {name: field for name, field in FIELDS.items() if field.holds != "value"}


@pytest.mark.parametrize("name", ["similarity", "scale", *OPTIONAL])
def test_a_field_of_one_row_less_of_the_wrong_type_or_with_nan_is_refused_by_name(name, make_batch):
    batch = make_batch(study_of_image=torch.arange(6))
    known = batch.fields | {"similarity": batch.similarity, "scale": batch.scale}
    field, value = FIELDS.get(name, FIELDS["eta"]), known[name]
    if name in FIELDS:
        with pytest.raises(ValueError, match=f"{name} has shape"):
            ContrastiveBatch(**known | {name: value[:-1]})
    if field.holds != "numbers":
        with pytest.raises(ValueError, match=f"{name} must hold"):
            ContrastiveBatch(**known | {name: value.double()})
    else:
        broken = value.clone()
        broken.view(-1)[-1] = torch.inf if field.blanks else torch.nan
        with pytest.raises(FloatingPointError, match=f"'{name}'"):
            ContrastiveBatch(**known | {name: broken})


def test_an_empty_batch_and_an_unknown_field_are_refused():
    for shape in ((0, 2), (2, 0)):
        with pytest.raises(ValueError, match="the batch is empty"):
            ContrastiveBatch(torch.empty(shape), 14.0, torch.zeros(shape[1], dtype=torch.int64))
    with pytest.raises(TypeError, match="no field 'label'"):
        ContrastiveBatch(torch.eye(3), 14.0, label=torch.zeros(3, 6))


@pytest.mark.parametrize("place", [-1, 3])
def test_an_index_that_points_nowhere_is_refused_by_name(place):
    wrong, table = torch.tensor([0, place, 2]), torch.zeros(3, 3, dtype=torch.bool)
    with pytest.raises(ValueError, match=f"image_of_sentence holds {place}.* 3 images"):
        ContrastiveBatch(torch.eye(3), 14.0, wrong)
    with pytest.raises(ValueError, match=f"text_ids holds {place}.* 3 columns of agreement"):
        ContrastiveBatch(torch.eye(3), 14.0, text_ids=wrong, agreement=table)
    with pytest.raises(ValueError, match="claims holds 3, but stated has 2"):
        claim_evidence(torch.tensor([[0, 100]]), torch.tensor([[-3]]))


def test_half_precision_similarities_are_raised():
    batch = ContrastiveBatch(torch.eye(3).bfloat16(), torch.tensor(14.0).bfloat16())
    assert batch.similarity.dtype == batch.scale.dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        embedded = ContrastiveBatch.from_embeddings(torch.randn(3, 9), torch.randn(3, 9), 14.0)
    assert embedded.similarity.dtype == torch.float32


def distinct_values(name, count):
    """Values of ``name`` that differ from entry to entry."""
    shape = (count, count) if FIELDS[name].axis == "pair" else (count,)
    shape += (3,) if FIELDS[name].columns else ()
    value = torch.arange(torch.Size(shape).numel()).view(shape)
    kinds = {"numbers": value.double(), "integers": value, "truth": value % 2 == 0}
    return kinds[FIELDS[name].holds]


@pytest.mark.parametrize("name", sorted(set(OPTIONAL) - {"image_of_sentence"}))
def test_each_field_is_gathered_and_two_views_have_that_of_their_image(name):
    value, x = distinct_values(name, 4), torch.eye(4).double()
    batch = gather_batch(x, x, torch.matmul, torch.tensor(1.0), Ranks(), **{name: value})
    assert torch.equal(batch[name], value)
    assert batch.owners.tolist() == [0, 1, 2, 3]
    first, second = torch.randn(2, 4, 5).double()
    twice = TwoViewBatch.from_views(first, second, 2.0, **{name: value})[name]
    for view in range(8):
        expected = value[view % 4]
        expected = expected.repeat(2) if FIELDS[name].axis == "pair" else expected
        assert torch.equal(twice[view], expected)
