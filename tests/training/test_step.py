"""A step against plain formulas, also where its batch is cut up or shared by processes."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch

from medclip_debias.config import SimilaritySettings
from medclip_debias.errors import ReportedWarning, UserError
from medclip_debias.losses.batch import ContrastiveBatch
from medclip_debias.losses.clip import InfoNCE
from medclip_debias.losses.distributed import Ranks
from medclip_debias.losses.sogclr import SogCLR
from medclip_debias.losses.two_views import TwoViewBatch
from medclip_debias.training.distributed import average_gradients, processes
from medclip_debias.training.step import Trainer, shares_loss
from tests.training.conftest import in_processes, largest_difference

STEPS = 4
OBJECTIVES = {
    "infonce": {"kind": "infonce"},
    "masked language model": {"kind": "biovil"},
    "sogclr": {"kind": "sogclr"},
    "glofnd": {"kind": "clip", "negatives": [{"kind": "glofnd", "alpha": 0.2}]},
}
AGGREGATORS = ("attention", "cross_attention", "local_words")
TOGETHER = ("masked language model", "sogclr", "glofnd", "cross_attention", "features")
# Batch norms are frozen, as those of parts differ.
FROZEN = {"trainable": {"image": "frozen"}}
STILL = FROZEN | {"augment": {"crop": False, "brightness": 0, "contrast": 0}}
# In evaluation mode, since each process has its own dropout masks.
TEXT_FROZEN = {"trainable": {"text": "frozen"}}
IDENTICAL = {"kind": "clip", "negatives": [{"kind": "mask_identical_text"}]}
SHARED = {
    "both directions": {"loss": IDENTICAL, "batch_size": 16},
    "learned bias": {"loss": {"kind": "siglip"}, "batch_size": 16},
    "masked language model": {"loss": {"kind": "biovil"}, "batch_size": 16},
    "micro-batches": {"loss": IDENTICAL, "batch_size": 16, "accumulate": 2},
}


def settings_of(run, name, **changes):
    """A run with an objective, or with an aggregator, of that name."""
    settings = run(loss=OBJECTIVES.get(name, {"kind": "clip"}), **changes)
    if name not in AGGREGATORS:
        return settings
    similarity = SimilaritySettings(aggregator=name)
    model = settings.model.model_copy(update={"similarity": similarity})
    return settings.model_copy(update={"model": model})


def gradients_of(trainer):
    named = [*trainer.model.named_parameters(), *trainer.objective.named_parameters()]
    return {name: p.grad for name, p in named if p.grad is not None}


def gradients(settings):
    trainer = Trainer(settings)
    figures = trainer.backward(trainer.batches[0], 0)
    return gradients_of(trainer), figures


def assert_same_gradients(a, b):
    assert a.keys() == b.keys()
    norm = sum(float(value.norm()) ** 2 for value in a.values()) ** 0.5
    for key, value in a.items():
        assert (value - b[key]).norm() <= 1e-5 * value.norm() + 1e-7 * norm, key


def after(settings, **place):
    trainer = Trainer(settings, **place)
    for step in range(STEPS):
        figures = trainer.step(step)
    return {
        "model": trainer.model.state_dict(),
        "objective": trainer.objective.state_dict(),
        "loss": figures["loss"],
    }


@pytest.fixture(scope="module")
def two_processes(run_in, tmp_path_factory):
    """What two processes compute together, with and without sharing the loss."""
    folder = tmp_path_factory.mktemp("two")
    run = run_in(folder)

    def work():
        results = {}
        with processes("cpu") as group:
            ranks, device = group.ranks, group.device
            place = {"ranks": ranks, "device": device}
            for name in TOGETHER[:-1]:
                results[name] = after(settings_of(run, name, **FROZEN), **place)
            features = {"cache": True, "folder": folder / "features"}
            results["features"] = after(
                settings_of(run, "features", **STILL, features=features), **place
            )
            trainer = Trainer(run(**TEXT_FROZEN), **place)
            trainer.backward(trainer.batches[0], 0)
            average_gradients(trainer.parameters, ranks)
            for norm in trainer.norms:
                norm.finish_step(2)
            results["statistics"] = gradients_of(trainer), dict(trainer.model.named_buffers())
            for (name, settings), shard in product(SHARED.items(), ("on", "off")):
                trainer = Trainer(run(**settings, shard_loss=shard), **place)
                assert trainer.sharded == (shard == "on")
                figures = trainer.backward(trainer.batches[0], 0)
                average_gradients(trainer.parameters, ranks)
                results[name, shard] = gradients_of(trainer), figures
            if ranks.rank == 0:
                torch.save(results, folder / "results.pt")

    assert in_processes(2, work) == [0, 0]
    return torch.load(folder / "results.pt", weights_only=True)


def in_one_graph(settings):
    """Gradients and loss with all micro-batches in one graph, whose memory the two passes save."""
    trainer = Trainer(settings)
    model, batch, term = trainer.model, trainer.batches[0], trainer.masked_lm
    encoded, masked, tokens = [], [], 0
    for place, part in enumerate(batch.split(settings.train.accumulate)):
        seed = int(np.random.SeedSequence([0, 0, place]).generate_state(1)[0])
        torch.manual_seed(seed)
        features = model.encode_images(model.normalise(part.images))
        if batch.two_view:
            encoded.append(features.pooled.chunk(2))
            continue
        ids = [trainer.tokens[number] for number in part.texts.tolist()]
        encoded.append((features.stored, model.encode_ids(ids)))
        if term:
            hidden = term.mask(model, ids, np.random.default_rng([3, seed]))
            masked.append(term(model, hidden) * len(hidden.targets))
            tokens += len(hidden.targets)
    first, second = (torch.cat(side) for side in zip(*encoded, strict=True))
    fields, scale = trainer.fields.of(batch, 0), model.similarity.scale
    if batch.two_view:
        everyone = TwoViewBatch.from_views(first, second, scale, **fields)
    else:
        everyone = ContrastiveBatch(model.similarity(first, second), scale, batch.owners, **fields)
    loss = trainer.objective(everyone).loss
    if term:
        loss = loss + term.settings.weight * sum(masked) / tokens
    loss.backward()
    return gradients_of(trainer), loss.item()


@pytest.mark.parametrize(
    ("name", "parts"),
    [("infonce", 1), *((name, 4) for name in (*OBJECTIVES, *AGGREGATORS, "two views"))],
)
def test_any_number_of_micro_batches_has_the_gradient_of_one_graph(run, name, parts):
    task = {"task": "two_view"} if name == "two views" else {}
    settings = settings_of(run, name, batch_size=16, accumulate=parts, **task)
    (ours, figures), (expected, loss) = gradients(settings), in_one_graph(settings)
    assert_same_gradients(expected, ours)
    assert figures["loss"].item() == pytest.approx(loss, rel=1e-6)


@pytest.mark.parametrize("name", TOGETHER)
def test_two_processes_train_as_two_micro_batches_do(run, two_processes, name):
    """Dropout and masked tokens included; stored features as what they are of."""
    changes = STILL if name == "features" else FROZEN
    one, two = after(settings_of(run, name, **changes, accumulate=2)), two_processes[name]
    assert largest_difference(one["model"], two["model"]) <= 1e-5
    assert two["loss"].item() == pytest.approx(one["loss"].item(), rel=1e-5)
    if any(value.numel() for value in two["objective"].values()):
        assert largest_difference(one["objective"], two["objective"]) <= 1e-5


def test_statistics_taken_over_processes_are_those_of_the_whole_batch(run, two_processes):
    # Gradients, not weights: Adam divides by their size, so rounding grows where they are tiny.
    settings = run(**TEXT_FROZEN)
    two, buffers = two_processes["statistics"]
    assert_same_gradients(gradients(settings)[0], two)
    trainer = Trainer(settings)
    trainer.step(0)
    for name, value in trainer.model.named_buffers():
        if "running" in name:
            torch.testing.assert_close(buffers[name], value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", SHARED)
def test_processes_that_share_the_loss_have_the_gradient_of_those_that_do_not(two_processes, name):
    """Of every part of the model, also in micro-batches; and the same figures in the log."""
    (gradient, figures), (expected, whole) = (two_processes[name, way] for way in ("on", "off"))
    assert_same_gradients(expected, gradient)
    assert figures.keys() == whole.keys()
    for key, value in whole.items():
        assert float(figures[key]) == pytest.approx(float(value), rel=1e-5, abs=1e-6), key


def test_the_loss_is_shared_where_it_is_large_and_the_objective_allows_it(run):
    two, infonce, sogclr = Ranks(0, 2), InfoNCE(), SogCLR()
    plain = run().train
    large = plain.model_copy(update={"batch_size": 2048, "sentences_per_study": 1})
    assert not shares_loss(plain, infonce, two, "x")
    assert shares_loss(large, infonce, two, "x")
    assert not shares_loss(large, infonce, Ranks(), "x")
    assert not shares_loss(large, sogclr, two, "x")
    with pytest.warns(ReportedWarning, match="'sogclr' looks at more"):
        assert not shares_loss(plain.model_copy(update={"shard_loss": "on"}), sogclr, two, "x")


def test_a_batch_that_processes_cannot_share_evenly_is_refused(run):
    with pytest.raises(UserError, match=r"3 processes, each with 2 .* make it a multiple of 6"):
        Trainer(run(batch_size=8, accumulate=2), ranks=Ranks(0, 3))


def test_the_moving_average_is_the_closed_form(run):
    trainer = Trainer(run(ema=0.5, accumulate=2))
    seen = []
    for step in range(3):
        trainer.step(step)
        seen.append(trainer.model.image_projection.weight.detach().clone())
    expected = 0.25 * seen[0] + 0.25 * seen[1] + 0.5 * seen[2]
    torch.testing.assert_close(trainer.result.image_projection.weight, expected)
    # Running statistics are taken over as they are.
    model = trainer.model.state_dict()
    for name, value in trainer.result.state_dict().items():
        if "running" in name:
            assert torch.equal(value, model[name]), name


def test_what_only_saves_time_or_memory_changes_nothing(run):
    expected = gradients(run())[0]
    try:
        for option in ("checkpoint_text", "channels_last", "fused", "deterministic"):
            assert_same_gradients(expected, gradients(run(**{option: True}))[0])
    finally:
        torch.use_deterministic_algorithms(False)


def test_half_precision_stays_close_and_saves_its_scaler(run):
    full = gradients(run())[1]["loss"].item()
    for precision in ("bf16", "fp16"):
        trainer = Trainer(run(precision=precision))
        assert trainer.step(0)["loss"].item() == pytest.approx(full, rel=1e-2)
        assert bool(trainer.state()["scaler"]) == (precision == "fp16")
