"""A step is the same however its batch is cut up, among micro-batches or processes."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from medclip_debias.errors import ReportedWarning
from medclip_debias.losses.batch import ContrastiveBatch
from medclip_debias.losses.clip import InfoNCE
from medclip_debias.losses.distributed import Ranks
from medclip_debias.losses.sogclr import SogCLR
from medclip_debias.training.distributed import Place, average_gradients, process_group
from medclip_debias.training.gradients import shares_loss
from medclip_debias.training.stall import StallTimer
from medclip_debias.training.step import Trainer
from tests.training.conftest import in_processes, largest_difference

TOGETHER = 4  # steps
OBJECTIVES = {
    "infonce": {"kind": "infonce"},
    "masked language model": {"kind": "biovil"},
    "sogclr": {"kind": "sogclr"},
    "glofnd": {"kind": "clip", "negatives": [{"kind": "glofnd", "alpha": 0.2}]},
}


@pytest.fixture
def networks():
    """Of each kind of layer one or two: a step treats all alike."""
    return "tiny"


@pytest.fixture
def deeper(run_in, tmp_path):
    """As `run`, for what is told from layer to layer."""
    return run_in(tmp_path, "small")


def gradients(settings, step=0):
    trainer = Trainer(settings)
    figures = trainer.cached.backward(trainer.batches[step], [settings.train.seed, step])
    named = trainer.model.named_parameters()
    return {name: p.grad for name, p in named if p.grad is not None}, figures


def assert_same_gradients(a, b):
    assert a.keys() == b.keys()
    whole = sum(float(value.norm()) ** 2 for value in a.values()) ** 0.5
    for key, value in a.items():
        assert (value - b[key]).norm() <= 1e-5 * value.norm() + 1e-7 * whole, key


def after(settings, steps):
    trainer = Trainer(settings)
    for step in range(steps):
        figures = trainer.step(step)
    return {
        "model": trainer.model.state_dict(),
        "objective": trainer.objective.state_dict(),
        "loss": figures["loss"],
    }


def test_without_options_the_gradient_is_that_of_the_plain_formula(run):
    """One process, one pass: exactly what the model's own forward and the objective give."""
    settings = run()
    trainer = Trainer(settings)
    batch = trainer.batches[3]
    ours = trainer.cached.backward(batch, [0, 3])
    kept = [p.grad.clone() for p in trainer.model.parameters()]
    plain = Trainer(settings)
    torch.manual_seed(int(np.random.SeedSequence([0, 3]).generate_state(1)[0]))
    ids = [trainer.cached.tokens[n] for n in batch.texts.tolist()]
    similarity, scale = plain.model(plain.model.normalise(batch.images), ids)
    loss = plain.objective(ContrastiveBatch(similarity, scale, batch.owners)).loss
    loss.backward()
    assert torch.equal(loss.detach(), ours["loss"])
    assert all(torch.equal(p.grad, g) for p, g in zip(plain.model.parameters(), kept, strict=True))
    buffers = zip(plain.model.buffers(), trainer.model.buffers(), strict=True)
    assert all(torch.equal(x, y) for x, y in buffers)


@pytest.mark.parametrize("name", [*OBJECTIVES, "two views"])
def test_four_micro_batches_give_the_gradient_of_one_batch(run, name):
    loss = OBJECTIVES.get(name)
    task = {"task": "two_view"} if name == "two views" else {}
    whole = run(loss=loss, batch_size=16, norm_batch=4, **task)
    cut = run(loss=loss, batch_size=16, norm_batch=4, accumulate=4, **task)
    (a, one), (b, two) = gradients(whole), gradients(cut)
    assert_same_gradients(a, b)
    assert one["loss"] == pytest.approx(two["loss"].item(), rel=1e-6)


def test_four_micro_batches_train_as_one_batch_does_with_dropout_on(run):
    one = after(run(batch_size=16, norm_batch=4), 4)
    four = after(run(batch_size=16, norm_batch=4, accumulate=4), 4)
    assert largest_difference(one["model"], four["model"]) <= 1e-5
    # The blocks matter: they are not what makes everything equal.
    other = after(run(batch_size=16, norm_batch=8), 4)
    assert largest_difference(one["model"], other["model"]) > 1e-4


@pytest.mark.parametrize("name", OBJECTIVES)
def test_two_processes_train_as_one_does(run, tmp_path, name):
    """Over some steps, but for a choice (the sign of a ReLU, a maximum) that rounding decides.

    Such a near tie parts two runs for good, on one kind of processor and not on another. It comes
    with one seed in several; a mistake in what travels between processes would come with each.
    """
    found = [parted(run(loss=OBJECTIVES[name], steps=TOGETHER, norm_batch=4, seed=0), tmp_path)]
    for seed in (1, 2):
        if found[-1] > 1e-5:
            settings = run(loss=OBJECTIVES[name], steps=TOGETHER, norm_batch=4, seed=seed)
            found.append(parted(settings, tmp_path))
    assert found[-1] <= 1e-5, found
    assert max(found) < 1e-2  # a tie is a small thing, too


def parted(settings, tmp_path):
    """Largest difference of weights, state and loss between one process and two."""
    one = after(settings, TOGETHER)
    path = tmp_path / "two.pt"

    def work():
        with process_group(Place.from_environment(), "cpu", StallTimer(0)) as (ranks, device):
            trainer = Trainer(settings, "the settings", ranks, device)
            for step in range(TOGETHER):
                figures = trainer.step(step)
            if ranks.rank == 0:
                parts = (trainer.model.state_dict(), trainer.objective.state_dict())
                torch.save((*parts, figures["loss"]), path)

    assert in_processes(2, work) == [0, 0]
    model, objective, loss = torch.load(path, weights_only=True)
    found = [largest_difference(one["model"], model)]
    found.append(abs(loss.item() / one["loss"].item() - 1))
    if any(value.numel() for value in objective.values()):
        found.append(largest_difference(one["objective"], objective))
    return max(found)


def test_statistics_taken_over_processes_are_those_of_the_whole_batch(run, tmp_path):
    # Text frozen, so in evaluation mode: without blocks each process has its own dropout masks.
    # Gradients, not weights: Adam divides by their size, so rounding grows where they are tiny.
    settings = run(freeze={"text": "all"})
    one, _ = gradients(settings)
    running = Trainer(settings)
    running.step(0)
    path = tmp_path / "two.pt"

    def work():
        with process_group(Place.from_environment(), "cpu", StallTimer(0)) as (ranks, device):
            trainer = Trainer(settings, "the settings", ranks, device)
            trainer.cached.backward(trainer.batches[0], [0, 0])
            average_gradients(trainer.parameters, ranks)
            for norm in trainer.norms:
                norm.finish_step(2)
            named = trainer.model.named_parameters()
            kept = {n: p.grad for n, p in named if p.grad is not None}
            if ranks.rank == 0:
                torch.save((kept, dict(trainer.model.named_buffers())), path)

    assert in_processes(2, work) == [0, 0]
    two, buffers = torch.load(path, weights_only=True)
    assert_same_gradients(one, two)
    for name, value in running.model.named_buffers():
        if "running" in name:
            torch.testing.assert_close(buffers[name], value, rtol=1e-5, atol=1e-6)


SHARED = {
    "both directions": {"kind": "clip", "negatives": [{"kind": "mask_identical_text"}]},
    "learned bias": {"kind": "siglip"},
    "masked language model": {"kind": "biovil"},
    "two views": {"kind": "infonce"},
}


def test_two_processes_that_share_the_loss_have_the_gradient_of_one(run, tmp_path):
    """Of every part of the model, also in micro-batches; and the same figures in the log."""
    shared = {"batch_size": 16, "norm_batch": 4, "shard_loss": "on"}
    runs = {
        name: run(loss=loss, **shared, **({"task": "two_view"} if name == "two views" else {}))
        for name, loss in SHARED.items()
    }
    runs["micro-batches"] = run(loss=SHARED["both directions"], **shared, accumulate=2)
    path = tmp_path / "two.pt"

    def work():
        found = {}
        with process_group(Place.from_environment(), "cpu", StallTimer(0)) as (ranks, device):
            for name, settings in runs.items():
                trainer = Trainer(settings, "the settings", ranks, device)
                assert trainer.cached.sharded
                figures = trainer.cached.backward(trainer.batches[0], [0, 0])
                average_gradients(trainer.parameters, ranks)
                named = [*trainer.model.named_parameters(), *trainer.objective.named_parameters()]
                found[name] = {n: p.grad for n, p in named if p.grad is not None}, figures
            if ranks.rank == 0:
                torch.save(found, path)

    assert in_processes(2, work) == [0, 0]
    for name, (gradient, figures) in torch.load(path, weights_only=True).items():
        trainer = Trainer(runs[name])
        assert not trainer.cached.sharded  # one process has nothing to share
        expected = trainer.cached.backward(trainer.batches[0], [0, 0])
        named = [*trainer.model.named_parameters(), *trainer.objective.named_parameters()]
        assert_same_gradients({n: p.grad for n, p in named if p.grad is not None}, gradient)
        assert figures.keys() == expected.keys()
        for key, value in expected.items():
            assert float(figures[key]) == pytest.approx(float(value), rel=1e-5, abs=1e-6), key


def test_the_loss_is_shared_where_it_is_large_and_the_objective_allows_it(run):
    two, infonce, sogclr = Ranks(0, 2), InfoNCE(), SogCLR()
    plain = run().train
    large = plain.model_copy(update={"batch_size": 2048, "sentences_per_study": 1})
    assert not shares_loss(plain, infonce, two, "x")
    assert shares_loss(large, infonce, two, "x")
    assert not shares_loss(large, infonce, Ranks(), "x")
    assert not shares_loss(large, sogclr, two, "x")
    assert not shares_loss(large.model_copy(update={"shard_loss": "off"}), infonce, two, "x")
    on = plain.model_copy(update={"shard_loss": "on"})
    assert shares_loss(on, infonce, two, "x")
    with pytest.warns(ReportedWarning, match="for 'sogclr' looks at more"):
        assert not shares_loss(on, sogclr, two, "x")


def test_what_is_frozen_does_not_move(deeper):
    settings = deeper(freeze={"image": "layer2", "text": 1}, ema=0.5)
    trainer = Trainer(settings)
    before = {k: v.clone() for k, v in trainer.model.state_dict().items()}
    for step in range(2):
        trainer.step(step)
    moved = {k for k, v in trainer.model.state_dict().items() if not torch.equal(v, before[k])}
    still = ("image_encoder.conv1", "image_encoder.bn1", "image_encoder.layer1.",
             "image_encoder.layer2.", "text_encoder.bert.embeddings",
             "text_encoder.bert.encoder.layer.0.")  # fmt: skip
    assert not [name for name in moved if name.startswith(still)]
    assert {n.split(".")[0] for n in moved} >= {"image_encoder", "text_encoder", "similarity"}
    assert [n for n in moved if n.startswith("text_encoder.bert.encoder.layer.1.")]


@pytest.mark.parametrize("cut", [{}, {"accumulate": 2}, {"norm_batch": 2}])
def test_the_moving_average_is_the_closed_form(run, cut):
    trainer = Trainer(run(ema=0.5, **cut))
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


def test_a_scale_beyond_its_cap_is_brought_back_by_the_next_step_and_learns(run):
    """As an older checkpoint may hold it; the moving average follows."""
    trainer = Trainer(run(ema=0.5))
    state = trainer.state()
    for part, name in (("model", ""), ("average", "module.")):
        state[part][f"{name}similarity.log_scale"].fill_(7.0)
    trainer.restore(state, "old.pt")
    models = (trainer.model, trainer.result)
    assert all(m.similarity.log_scale.item() == pytest.approx(math.log(100)) for m in models)
    scales = [float(trainer.step(step)["scale"]) for step in range(4)]
    # Pairs of an untrained network say nothing, so that a scale of 100 costs much.
    assert scales[0] == pytest.approx(100, rel=1e-6)
    assert scales[0] > scales[1] > scales[2] > scales[3]
    assert trainer.model.similarity.scale < trainer.result.similarity.scale < 100


def test_lower_layers_learn_slower(deeper):
    trainer = Trainer(deeper(lr_factors={"text": 2.0, "layer_decay": 0.5}))
    rate = {p: g["lr_factor"] for g in trainer.optimizer.param_groups for p in g["params"]}
    of = {name: rate[p] for name, p in trainer.model.named_parameters()}
    assert of["image_encoder.conv1.weight"] == 0.125
    assert of["image_encoder.layer1.0.conv1.weight"] == 0.25
    assert of["image_encoder.layer3.0.conv1.weight"] == 1
    assert of["text_encoder.bert.embeddings.word_embeddings.weight"] == 0.5
    assert of["text_encoder.bert.encoder.layer.1.output.dense.weight"] == 2
    assert of["image_projection.weight"] == 1


@pytest.mark.parametrize(
    "option",
    [{"checkpoint_text": True}, {"channels_last": True}, {"fused": True}, {"deterministic": True}],
    ids=lambda option: next(iter(option)),
)
def test_what_only_saves_time_or_memory_changes_nothing(run, option):
    try:
        assert_same_gradients(gradients(run())[0], gradients(run(**option))[0])
        after(run(**option), 2)
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_stays_close_and_saves_its_scaler(run, precision):
    full, half = (gradients(run(precision=p))[1]["loss"].item() for p in ("fp32", precision))
    assert half == pytest.approx(full, rel=1e-2)
    trainer = Trainer(run(precision=precision))
    trainer.step(0)
    assert bool(trainer.state()["scaler"]) == (precision == "fp16")
