"""Training from stored features is the training it stands for, and the file is whole or said so."""

from __future__ import annotations

import fcntl
import json
import pickle
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from medclip_debias.cli import run as command
from medclip_debias.config import ImageEncoderSettings, SimilaritySettings
from medclip_debias.data.frozen_features import FeatureFile
from medclip_debias.errors import UserError
from medclip_debias.training.step import Trainer
from tests.disk import files_of_at_most
from tests.training.conftest import (
    exit_codes,
    fork,
    largest_difference,
    same,
    wait_until,
)

STILL = {"crop": False, "brightness": 0, "contrast": 0}
FROZEN = {"trainable": {"image": "frozen"}, "augment": STILL}
LAST_BLOCK = {"trainable": {"image": {"last_blocks": 1}}}


def after(settings, steps=2, **place):
    trainer = Trainer(settings, **place)
    losses = [float(trainer.step(step)["loss"]) for step in range(steps)]
    return trainer.model.state_dict(), losses


@pytest.mark.parametrize(
    ("train", "augmentations"),
    [
        (FROZEN | {"channels_last": True, "accumulate": 2}, 0),
        (LAST_BLOCK | {"augment": STILL, "views_per_study": 2}, 0),
        ({"trainable": {"image": "frozen"}}, 3),
        (LAST_BLOCK | {"task": "two_view", "loss": {"kind": "clip"}}, 2),
    ],
    ids=["micro-batches", "part of the trunk", "augmented", "two views"],
)
def test_in_float32_the_weights_are_those_of_the_uncached_run_to_the_last_bit(
    run, tmp_path, train, augmentations
):
    plain = {"loss": {"kind": "biovil"}} | train
    uncached = after(run(**plain, features={"augmentations": augmentations}))
    features = {"cache": True, "augmentations": augmentations, "folder": tmp_path}
    for _ in range(2):  # written, then read
        cached = after(run(**plain, features=features))
        assert same(uncached[0], cached[0])
        assert uncached[1] == cached[1]
    read = Trainer(run(**plain, features=features))
    read.batches.pixels = np.zeros((0, 72, 72), np.uint8)  # reading an image would fail
    read.step(0)


def test_a_frozen_vision_transformer_with_a_block_of_its_own_is_kept_as_a_whole(run, tmp_path):
    image = ImageEncoderSettings(arch="vit_tiny_scratch", blocks=1)

    def settings(parts, **features):
        plain = run(trainable={"image": parts}, augment=STILL, features=features)
        return plain.model_copy(update={"model": plain.model.model_copy(update={"image": image})})

    cache = {"cache": True, "folder": tmp_path}
    plain, cached = after(settings("frozen")), after(settings("frozen", **cache))
    assert same(plain[0], cached[0])
    assert plain[1] == cached[1]
    with pytest.raises(UserError, match="only the whole encoder's features"):
        after(settings({"last_blocks": 1}, **cache))


@pytest.mark.parametrize(("dtype", "limit"), [("fp16", 2e-3), ("bf16", 2e-2)])
def test_half_precision_stays_near_the_uncached_run(run, tmp_path, dtype, limit):
    exact, losses = after(run(**FROZEN))
    settings = run(**FROZEN, features={"cache": True, "dtype": dtype, "folder": tmp_path})
    near, near_losses = after(settings)
    assert near_losses == pytest.approx(losses, rel=limit)
    assert 0 < largest_difference(exact, near) < limit


def test_frozen_sentences_are_encoded_once_too(run, tmp_path):
    frozen = FROZEN | {"trainable": {"image": "frozen", "text": "frozen"}}
    exact, losses = after(run(**frozen))
    settings = run(**frozen, features={"cache": True, "text": True, "folder": tmp_path})
    near, near_losses = after(settings)
    assert near_losses == pytest.approx(losses, rel=1e-5)
    assert largest_difference(exact, near) < 1e-5
    trainer = Trainer(settings)
    trainer.model.text_encoder.bert = None  # computing would fail
    trainer.step(0)
    similarity = SimilaritySettings(aggregator="local_words")
    model = settings.model.model_copy(update={"similarity": similarity})
    with pytest.raises(UserError, match="local_words reads its words"):
        Trainer(settings.model_copy(update={"model": model}))


def test_other_weights_set_rows_or_settings_have_another_folder(run, tmp_path):
    features = {"cache": True, "folder": tmp_path}
    changes = [
        {},
        {"seed": 1},  # random weights of the trunk
        LAST_BLOCK,
        {"features": features | {"dtype": "fp16"}},
        {"augment": {}, "features": features | {"augmentations": 1}},
    ]
    for change in changes:
        Trainer(run(**(FROZEN | {"features": features} | change)))
    Trainer(run(**FROZEN, features=features, lr=0.5))  # changes nothing that is stored
    assert len(list(tmp_path.iterdir())) == len(changes)


# --------------------------------------------------------------------------------- the file


@pytest.fixture
def file(tmp_path):
    return FeatureFile(tmp_path, {"weights": "a"}, 7, (3, 2), "fp32")


def rows(part):
    return torch.stack([torch.full((3, 2), float(number)) for number in part])


def test_an_interrupted_writer_goes_on_where_it_stopped(file):
    asked = []

    def compute(part):
        asked.extend(part)
        return rows(part)

    writer = file.write(compute, 2)
    assert [next(writer) for _ in range(3)] == [0, 2, 4]
    writer.close()
    assert not file.is_whole()
    assert list(file.write(compute, 2)) == [4, 6, 7]
    assert asked == list(range(7))
    assert torch.equal(file.at(np.array([6, 0, 3])), rows([6, 0, 3]))
    # Of another key nothing is taken over.
    assert next(replace(file, key={"weights": "b"}).write(compute, 2)) == 0


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_rows_come_back_in_shape_layout_and_type(tmp_path, dtype):
    values = torch.randn(4, 5, 3, 2).contiguous(memory_format=torch.channels_last)
    images = np.array([10, 20])
    file = FeatureFile(tmp_path, {}, 4, (), dtype, images=images, copies=2).like(values)
    assert file.channels_last
    list(file.write(lambda part: values[list(part)], 3))
    some = pickle.loads(pickle.dumps(file)).of(np.array([20, 10]), np.array([0, 1]))
    half = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[dtype]
    assert torch.equal(some, values.to(half)[[2, 1]])
    if dtype == "fp16":
        with pytest.raises(UserError, match="that fp16 cannot represent"):
            list(replace(file, key={"other": 1}).write(lambda part: 1e6 * values[list(part)], 3))


def test_a_full_disk_is_one_sentence_and_what_was_written_is_not_taken_for_whole(
    file, tmp_path, monkeypatch
):
    usage = shutil.disk_usage(tmp_path)._replace(free=10)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: usage)
        with pytest.raises(UserError, match="are still to be written, but the disk has only"):
            next(file.write(rows, 2))
    assert not list(tmp_path.iterdir())
    sentence = r"is the disk full\?\); free some space"
    with files_of_at_most(64), pytest.raises(UserError, match=sentence):  # 168 are needed
        list(file.write(rows, 2))
    assert list(file.write(rows, 2))[-1] == 7
    assert torch.equal(file.at(np.arange(7)), rows(range(7)))


@pytest.mark.parametrize("damage", ["bytes", "short", "copied"])
def test_a_file_that_is_not_what_it_should_be_is_refused(run, tmp_path, damage):
    settings = run(**FROZEN, features={"cache": True, "folder": tmp_path})
    Trainer(settings)
    (folder,) = tmp_path.iterdir()
    data = folder / "features.bin"
    if damage != "copied":
        content = data.read_bytes()
        data.write_bytes(bytes(len(content)) if damage == "bytes" else content[:-4])
    else:
        Trainer(run(**FROZEN, seed=1, features={"cache": True, "folder": tmp_path}))
        (other,) = (each for each in tmp_path.iterdir() if each != folder)
        shutil.copytree(other, folder, dirs_exist_ok=True)
    with pytest.raises(UserError, match=r"it is computed again\.") as error:
        Trainer(settings)
    assert str(folder) in str(error.value)


def test_a_checkpoint_with_another_trunk_is_not_continued_on_these_features(run, tmp_path):
    trainer = Trainer(run(**FROZEN, features={"cache": True, "folder": tmp_path}))
    state, name = trainer.state(), "image_encoder.conv1.weight"
    state["model"] = dict(state["model"]) | {name: state["model"][name] + 1}
    with pytest.raises(UserError, match="other weights than the run's settings"):
        trainer.restore(state, "checkpoint")


def test_the_verb_writes_into_the_set_what_the_run_then_reads(
    run, config, prepared_phantom, tmp_path, capsys
):
    copy = shutil.copytree(prepared_phantom, tmp_path / "set")
    asked = FROZEN | {"features": {"cache": True}}
    words = ["train", "features", config(**asked), f"prepared={copy}"]
    assert command([*words, "--json"]) == 0
    output = capsys.readouterr()
    shown = json.loads(output.out)["image"]
    assert "MiB in fp32" in output.err
    (file,) = (copy / "features").glob("image-*/features.bin")
    shape = [int(number) for number in shown["shape"].split(" x ")]
    assert shown["bytes"] == file.stat().st_size == 4 * shown["rows"] * np.prod(shape)
    said = []
    Trainer(run(**asked).model_copy(update={"prepared": copy}), say=said.append)
    assert said == []
    assert command([*words, "train.features.cache=false"]) == 2
    assert "asks for no stored features" in capsys.readouterr().err


def test_a_second_writer_waits_for_the_first_as_long_as_that_goes_on(run, tmp_path):
    settings = run(**FROZEN, features={"cache": True, "folder": tmp_path / "features"})
    Trainer(settings)
    (folder,) = (tmp_path / "features").iterdir()
    (folder / "features.json").unlink()  # not whole any more

    def hold():
        with (folder / "lock").open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            (tmp_path / "held").touch()
            wait_until((tmp_path / "asked").exists)

    def say(sentence):
        sentences.append(sentence)
        (tmp_path / "asked").touch()

    child, sentences = fork(hold), []
    wait_until((tmp_path / "held").exists)
    hasty = settings.train.model_copy(update={"stall_minutes": 0.001})
    with pytest.raises(UserError, match=r"has written nothing for 0\.001 minutes"):
        Trainer(settings.model_copy(update={"train": hasty}))
    Trainer(settings, say=say)
    assert "another process is writing these features" in sentences[0]
    assert "computes features" in sentences[1]
    assert exit_codes([child]) == [0]
