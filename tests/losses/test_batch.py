"""The batch checks each field by its axis, gathers it and repeats it likewise."""

from __future__ import annotations

import pytest
import torch

from medclip_debias.losses import ContrastiveBatch, TwoViewBatch
from medclip_debias.losses.batch import FIELDS
from medclip_debias.losses.distributed import Ranks, gather_batch
from medclip_debias.losses.evidence import claim_evidence
from medclip_debias.losses.objective import POLICIES
from medclip_debias.losses.pairs import between_texts

OPTIONAL = {name: field for name, field in FIELDS.items() if field.holds != "value"}


@pytest.mark.parametrize("name", ["similarity", "scale", "log_prob", "eta", "graph"])
def test_a_number_that_is_none_is_refused_by_name(name):
    kept = {"similarity": torch.eye(3), "scale": torch.tensor(14.0)}
    shapes = {"similarity": (3, 3), "scale": (), "graph": (3, 3)}
    broken = torch.zeros(shapes.get(name, (3,)))
    broken.view(-1)[-1] = torch.nan
    with pytest.raises(FloatingPointError, match=f"'{name}'"):
        ContrastiveBatch(**kept | {name: broken})


def test_labels_may_be_blank_and_have_a_column_a_name(make_batch):
    with pytest.raises(ValueError, match=r"labels has shape \(6, 2\), expected \(6, 6\)"):
        make_batch(labels=torch.zeros(6, 2))
    with pytest.raises(FloatingPointError, match="labels"):
        make_batch(labels=torch.full((6, 6), torch.inf))
    assert make_batch(labels=torch.full((6, 6), torch.nan))["labels"].isnan().all()
    with pytest.raises(ValueError, match="2n, 2n"):
        TwoViewBatch(torch.zeros(3, 3), torch.tensor(1.0))
    with pytest.raises(TypeError, match="no field 'label'"):
        make_batch(label=torch.zeros(6, 6))


@pytest.mark.parametrize("name", sorted(OPTIONAL))
def test_a_field_of_one_row_less_or_of_the_wrong_type_is_refused_by_name(name, make_batch):
    batch = make_batch(study_of_image=torch.arange(6))
    given = batch.fields | {"similarity": batch.similarity, "scale": batch.scale}
    with pytest.raises(ValueError, match=f"{name} has shape"):
        ContrastiveBatch(**given | {name: given[name][:-1]})
    if FIELDS[name].holds != "numbers":
        with pytest.raises(ValueError, match=f"{name} must hold"):
            ContrastiveBatch(**given | {name: given[name].double()})


@pytest.mark.parametrize("shape", [(0, 0), (0, 2), (2, 0)])
def test_an_empty_batch_is_refused_instead_of_costing_nan(shape):
    with pytest.raises(ValueError, match="the batch is empty"):
        ContrastiveBatch(
            torch.empty(shape), torch.tensor(14.0), torch.zeros(shape[1], dtype=torch.int64)
        )


@pytest.mark.parametrize("place", [-1, 3])
def test_an_index_that_points_nowhere_is_refused_by_name(place):
    scale, wrong = torch.tensor(14.0), torch.tensor([0, place, 2])
    with pytest.raises(ValueError, match=f"image_of_sentence holds {place}.* 3 images"):
        ContrastiveBatch(torch.eye(3), scale, wrong)
    known = torch.zeros(3, 3, dtype=torch.bool)
    with pytest.raises(ValueError, match=f"text_ids holds {place}.* 3 columns of agreement"):
        ContrastiveBatch(torch.eye(3), scale, text_ids=wrong, agreement=known)
    with pytest.raises(ValueError, match="claims holds 3, but stated has 2"):
        claim_evidence(torch.tensor([[0, 100]]), torch.tensor([[-3]]))


def one_value(name, count):
    """Values of ``name`` that differ from entry to entry."""
    shape = (count, count) if FIELDS[name].axis == "pair" else (count,)
    shape += (3,) if FIELDS[name].columns else ()
    value = torch.arange(torch.Size(shape).numel()).view(shape)
    kinds = {"numbers": value.double(), "integers": value, "truth": value % 2 == 0}
    return kinds[FIELDS[name].holds]


@pytest.mark.parametrize("name", sorted(set(OPTIONAL) - {"image_of_sentence"}))
def test_each_field_is_gathered_and_two_views_have_that_of_their_image(name):
    value, x = one_value(name, 4), torch.eye(4).double()
    batch = gather_batch(x, x, torch.matmul, torch.tensor(1.0), Ranks(), **{name: value})
    assert torch.equal(batch[name], value)
    first, second = torch.randn(2, 4, 5).double()
    twice = TwoViewBatch.from_views(first, second, 2.0, **{name: value})[name]
    for view in range(8):
        expected = value[view % 4]
        if FIELDS[name].axis == "pair":
            expected = expected.repeat(2)
        assert torch.equal(twice[view], expected)


def test_an_image_is_known_by_every_sentence_of_its_study(several_images):
    batch = several_images
    (anchors,) = batch.anchors("text_to_image")
    matrix = torch.arange(1.0, 10.0, dtype=torch.float64).view(3, 3) / 10
    expected = [[0.2, 0.2, 0.2, 0.3], [0.5, 0.5, 0.5, 0.6], [0.8, 0.8, 0.8, 0.9]]
    assert between_texts(matrix, anchors, batch).tolist() == expected
    # Sentence 2 is literally what the report of images 0 to 2 says, whichever one owns it.
    kept = POLICIES.all()["mask_identical_text"]().apply_to(anchors, batch)
    assert kept.negatives[2].tolist() == [False] * 4
