"""Boxes that teach: which phrases, what they say, where they lie, and what their loss is."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from medclip_debias.config import SetSettings
from medclip_debias.data.store import PreparedSet
from medclip_debias.errors import UserError
from medclip_debias.losses.distributed import Ranks
from medclip_debias.models.region_grid import RegionGrid
from medclip_debias.training.boxes import box_loss, inside
from medclip_debias.training.distributed import average_gradients, processes
from medclip_debias.training.settings import RunSettings
from medclip_debias.training.step import Trainer
from tests.training.conftest import in_processes
from tests.training.test_step import STILL, assert_same_gradients, gradients_of

PHRASES = 8


@pytest.fixture
def taught(run: Callable[..., RunSettings], box_file: Path) -> Callable[..., RunSettings]:
    """A function: a run that these boxes teach."""

    def make(boxes: dict[str, object] | None = None, **train: object) -> RunSettings:
        settings = run(boxes={"phrases": PHRASES} | (boxes or {}), **train)
        sets = (SetSettings(path=settings.prepared, boxes=(box_file,)),)
        return settings.model_copy(update={"prepared": sets})

    return make


squares = st.tuples(*4 * [st.integers(0, 12)]).map(lambda b: (*b[:2], b[2] % 6 + 1, b[3] % 6 + 1))


@given(st.lists(squares, min_size=1, max_size=3))
def test_the_share_of_a_region_is_the_area_of_a_box_in_it(boxes):
    """Held against counting whole pixels, of which boxes and regions are made here."""
    grid = RegionGrid.patches(3, 4, 16)  # regions of 4 x 4 pixels
    shares = np.zeros((3, 4))
    for x, y, w, h in boxes:
        pixels = np.zeros((32, 32))
        pixels[y : y + h, x : x + w] = 1
        counted = pixels[:12, :16].reshape(3, 4, 4, 4).sum(axis=(1, 3)) / 16
        shares = np.maximum(shares, counted)
    expected = shares / shares.max() if shares.max() else shares
    np.testing.assert_allclose(inside(grid, np.array(boxes, dtype=float)), expected.reshape(-1))


def test_a_network_whose_first_region_is_centred_on_the_first_pixel_is_met_there():
    grid = RegionGrid(2, 2, stride=8, first=0.5)  # as of a ResNet: regions around 0.5 and 8.5
    assert inside(grid, np.array([[4.5, 0, 8, 4.5]])).tolist() == [0.0, 1.0, 0.0, 0.0]


@given(st.integers(0, 2**32 - 1))
def test_the_loss_is_the_logarithm_of_what_lies_outside(seed):
    rng = np.random.default_rng(seed)
    maps, mirror, masks = (rng.uniform(low, 1, (5, 6)) for low in (-1, -1, 0))
    masks *= rng.random((5, 6)) < 0.5
    mirror[rng.random(5) < 0.5] = -np.inf
    losses = []
    for own, other, mask in zip(maps, mirror, masks, strict=True):
        there, everything = 0.0, 0.0
        for r in range(6):
            there += mask[r] * np.exp(9 * own[r])
            everything += np.exp(9 * own[r]) + np.exp(9 * other[r])
        losses.append(-np.log(there / everything) if there else 0.0)
    ours = box_loss(*map(torch.from_numpy, (maps, masks)), 9.0, torch.from_numpy(mirror))
    assert float(ours) == pytest.approx(np.mean(losses), rel=1e-5)


def test_a_phrase_without_a_box_in_the_crop_moves_nothing():
    maps = torch.randn(2, 4, requires_grad=True)
    box_loss(maps, torch.tensor([[0.0, 0, 0, 0], [1, 0, 0, 0]]), 5.0).backward()
    assert not maps.grad[0].any()
    assert maps.grad[1].isfinite().all()


def test_training_phrases_alone_teach_and_the_others_are_counted(taught, prepared_phantom):
    data = PreparedSet.open(prepared_phantom)
    frontal = data.images[data.frontal]
    trains = frontal["split"] == "train"
    boxes = Trainer(taught()).boxes
    assert {phrase.row for phrase in boxes.phrases} == set(frontal.index[trains])
    assert len(boxes.phrases) == 2 * trains.sum()
    aside = boxes.left_aside["other_splits"] + boxes.left_aside["not_training"]
    assert aside == 2 * (~trains).sum() + len(data.phrases)  # its own, on films that are judged
    assert f"boxes of {2 * trains.sum()} phrases on {trains.sum()} images" in boxes.describe()


def test_a_finding_in_one_half_of_the_image_is_said_with_the_patients_side(taught):
    texts, plain = Counter(), Counter()
    boxes, no_sides = Trainer(taught()).boxes, Trainer(taught({"sides": False})).boxes
    for step in range(20):
        texts.update(map(str.lower, boxes.batch(step).texts))
        plain.update(map(str.lower, no_sides.batch(step).texts))
    sided = sum(count for text, count in texts.items() if "right" in text)
    assert all("left" not in text for text in texts)  # the image's left is the patient's right
    assert all("effusion" in text or "fluid" in text for text in texts if "right" in text)
    assert 0.15 < sided / (20 * PHRASES) < 0.35  # every other one of half of the phrases
    assert not any("right" in text for text in plain)


def test_boxes_follow_the_crop(taught):
    """Wherever the crop lies, what is bright in the film is bright where the mask is."""
    settings = taught(augment={"crop": True, "brightness": 0, "contrast": 0})
    trainer = Trainer(settings)
    boxes, pixels = trainer.boxes, np.zeros_like(trainer.prepared.pixels)
    boxes.phrases = [p for p in boxes.phrases if "effusion" in p.plain[0]]
    boxes._chances = np.full(len(boxes.phrases), 1 / len(boxes.phrases))
    for phrase in boxes.phrases:  # the film of a phrase shows its box
        x, y, w, h = phrase.boxes[0].round().astype(int)
        pixels[phrase.row, y : y + h, x : x + w] = 255
    boxes.prepared = type("Films", (), {"pixels": pixels})
    batch, grid = boxes.batch(3), trainer.model.grid
    assert len({image.numpy().tobytes() for image in batch.images}) > 1
    for image, mask in zip(batch.images, batch.masks, strict=True):
        centres = grid.centres().reshape(-1, 2).astype(int)
        bright = image.numpy()[centres[:, 1], centres[:, 0]] > 0
        assert (mask.numpy()[bright] > 0.2).all()
        assert (mask.numpy()[~bright] < 0.8).all()


def test_a_step_adds_the_gradient_of_the_boxes_to_that_of_the_objective(taught, run):
    weight = 0.7
    trainer, alone = (Trainer(make) for make in (taught({"weight": weight}, **STILL), run(**STILL)))
    model, boxes = trainer.model, trainer.boxes
    for each in (trainer, alone):  # dropout is drawn anew in a pass of its own
        each.model.text_encoder.eval()
    objective = alone.backward(alone.batches[0], 0)["loss"]
    expected = gradients_of(alone)
    batch = boxes.batch(0)
    regions = model.encode_images(batch.images).regions
    maps = torch.einsum("nrd,nd->nr", regions, model.encode_sentences(batch.texts))
    other = [text.replace("right", "left").replace("Right", "Left") for text in batch.texts]
    mirror = torch.einsum("nrd,nd->nr", regions, model.encode_sentences(other)).clone()
    for row, text in enumerate(batch.texts):
        if "right" not in text.lower():
            mirror[row] = -torch.inf
    term = weight * box_loss(maps, batch.masks, 14.0, mirror)
    term.backward()
    for name, value in gradients_of(trainer).items():
        expected[name] = expected.get(name, 0) + value
    model.zero_grad()
    metrics = trainer.backward(trainer.batches[0], 0)
    metrics |= trainer._learn_boxes(boxes, 0, metrics["loss"])
    assert_same_gradients(expected, gradients_of(trainer))
    assert metrics["loss"].item() == pytest.approx((objective + term).item(), rel=1e-5)
    assert metrics["box_loss"].item() == pytest.approx(term.item() / weight, rel=1e-5)


def test_running_statistics_are_those_of_the_batch_of_studies(taught, run):
    with_boxes, without = Trainer(taught({"weight": 1e-9})), Trainer(run())
    for trainer in (with_boxes, without):
        trainer.step(0)
    plain = dict(without.model.named_buffers())
    for name, value in with_boxes.model.named_buffers():
        if "running" in name:
            torch.testing.assert_close(value, plain[name], rtol=1e-5, atol=1e-6)


def test_processes_share_the_phrases_of_a_step(taught, tmp_path):
    whole = Trainer(taught()).boxes.batch(5)
    parts = [Trainer(taught(), ranks=Ranks(rank, 2)).boxes.batch(5) for rank in range(2)]
    assert [text for part in parts for text in part.texts] == whole.texts
    for name in ("images", "masks"):
        joined = torch.cat([getattr(part, name) for part in parts])
        assert torch.equal(joined, getattr(whole, name))
    with pytest.raises(UserError, match="which 3 processes cannot share evenly"):
        Trainer(taught(batch_size=12), ranks=Ranks(0, 3))


def test_two_processes_learn_what_one_does_alone(taught, tmp_path):
    settings = taught(trainable={"text": "frozen"})  # each process has its own dropout masks

    def gradients(**place):
        trainer = Trainer(settings, **place)
        figures = trainer._learn_boxes(trainer.boxes, 0, torch.zeros(()))
        average_gradients(trainer.parameters, trainer.ranks)
        return gradients_of(trainer), figures["box_loss"].item()

    def work():
        with processes("cpu") as group:
            found = gradients(ranks=group.ranks, device=group.device)
            if group.ranks.rank == 0:
                torch.save(found, tmp_path / "found.pt")

    assert in_processes(2, work) == [0, 0]
    two, loss = torch.load(tmp_path / "found.pt", weights_only=True)
    one, expected = gradients()
    assert_same_gradients(one, two)
    assert loss == pytest.approx(expected, rel=1e-5)


def test_a_set_without_boxes_of_training_images_is_refused(taught, run, box_file, tmp_path):
    with pytest.raises(UserError, match="left aside: 49 on"):  # all are tested
        Trainer(run(boxes={}))
    content = json.loads(box_file.read_text())
    content["images"] = [image | {"file_name": "elsewhere.png"} for image in content["images"][:1]]
    content["annotations"] = content["annotations"][:2]
    file = tmp_path / "elsewhere.json"
    file.write_text(json.dumps(content))
    settings = taught()
    sets = (SetSettings(path=settings.prepared[0].path, boxes=(file,)),)
    with pytest.raises(UserError, match="no phrase has a box on an image that trains"):
        Trainer(settings.model_copy(update={"prepared": sets}))


@pytest.mark.parametrize(
    ("train", "sentence"),
    [
        ({"task": "two_view"}, "leave out 'boxes'"),
        ({"features": {"cache": True}, **STILL}, "leave out 'boxes'"),
        ({"boxes": None}, "train.boxes is not set"),
    ],
)
def test_settings_that_contradict_boxes_are_refused(taught, train, sentence):
    content = taught().model_dump()
    content["train"] |= train
    with pytest.raises(ValueError, match=sentence):
        RunSettings(**content)


def test_maps_that_are_shares_of_attention_are_refused(taught):
    settings = taught()
    similarity = settings.model.similarity.model_copy(update={"aggregator": "cross_attention"})
    model = settings.model.model_copy(update={"similarity": similarity})
    with pytest.raises(UserError, match="choose another aggregator"):
        Trainer(settings.model_copy(update={"model": model}))
