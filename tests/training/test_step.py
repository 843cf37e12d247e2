"""A step against plain formulas, also where its batch is cut up or shared by processes."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch

from medclip_debias.errors import ReportedWarning
from medclip_debias.losses.batch import ContrastiveBatch
from medclip_debias.losses.clip import InfoNCE
from medclip_debias.losses.distributed import Ranks
from medclip_debias.losses.sogclr import SogCLR
from medclip_debias.losses.two_views import TwoViewBatch
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
        ids = [trainer.cached.tokens[number] for number in part.texts.tolist()]
        encoded.append((features.stored, model.encode_ids(ids)))
        if term:
            hidden = term.mask(model, ids, np.random.default_rng([3, seed]))
            masked.append(term(model, hidden) * len(hidden.targets))
            tokens += len(hidden.targets)
    first, second = (torch.cat(side) for side in zip(*encoded, strict=True))
    fields, scale = trainer.cached.fields.of(batch, 0), model.similarity.scale
    if batch.two_view:
        everyone = TwoViewBatch.from_views(first, second, scale, **fields)
    else:
        everyone = ContrastiveBatch(model.similarity(first, second), scale, batch.owners, **fields)
    loss = trainer.objective(everyone).loss
    if term:
        loss = loss + term.settings.weight * sum(masked) / tokens
    loss.backward()
    return {n: p.grad for n, p in model.named_parameters() if p.grad is not None}, loss.item()


@pytest.mark.parametrize("name", [*OBJECTIVES, "two views"])
def test_four_micro_batches_have_the_gradient_of_one_graph(run, name):
    task = {"task": "two_view"} if name == "two views" else {}
    settings = run(loss=OBJECTIVES.get(name), batch_size=16, accumulate=4, **task)
    (ours, figures), (expected, loss) = gradients(settings), in_one_graph(settings)
    assert_same_gradients(expected, ours)
    assert figures["loss"].item() == pytest.approx(loss, rel=1e-6)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_two_processes_train_as_two_micro_batches_do(run, tmp_path, name):
    """Dropout and masked tokens included; the batch norms are frozen, as those of parts differ."""
    frozen = {"trainable": {"image": "frozen"}, "steps": TOGETHER, "loss": OBJECTIVES[name]}
    one, settings, path = (
        after(run(**frozen, accumulate=2), TOGETHER),
        run(**frozen),
        tmp_path / "x",
    )

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
    assert largest_difference(one["model"], model) <= 1e-5
    assert loss.item() == pytest.approx(one["loss"].item(), rel=1e-5)
    if any(value.numel() for value in objective.values()):
        assert largest_difference(one["objective"], objective) <= 1e-5


def test_statistics_taken_over_processes_are_those_of_the_whole_batch(run, tmp_path):
    # Text frozen, so in evaluation mode: each process has its own dropout masks.
    # Gradients, not weights: Adam divides by their size, so rounding grows where they are tiny.
    settings = run(trainable={"text": "frozen"})
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
}


def test_two_processes_that_share_the_loss_have_the_gradient_of_two_that_do_not(run, tmp_path):
    """Of every part of the model, also in micro-batches; and the same figures in the log."""
    runs = {name: {"loss": loss, "batch_size": 16} for name, loss in SHARED.items()}
    runs["micro-batches"] = runs["both directions"] | {"accumulate": 2}

    def work():
        kept = {}
        with process_group(Place.from_environment(), "cpu", StallTimer(0)) as (ranks, device):
            for name, shard in product(runs, ("on", "off")):
                settings = run(**runs[name], shard_loss=shard)
                trainer = Trainer(settings, "the settings", ranks, device)
                assert trainer.cached.sharded == (shard == "on")
                figures = trainer.cached.backward(trainer.batches[0], [0, 0])
                average_gradients(trainer.parameters, ranks)
                named = [*trainer.model.named_parameters(), *trainer.objective.named_parameters()]
                kept[name, shard] = {n: p.grad for n, p in named if p.grad is not None}, figures
        if ranks.rank == 0:
            torch.save(kept, tmp_path / "two.pt")

    assert in_processes(2, work) == [0, 0]
    kept = torch.load(tmp_path / "two.pt", weights_only=True)
    for name in runs:
        (gradient, figures), (expected, whole) = kept[name, "on"], kept[name, "off"]
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
    assert not shares_loss(large.model_copy(update={"shard_loss": "off"}), infonce, two, "x")
    on = plain.model_copy(update={"shard_loss": "on"})
    assert shares_loss(on, infonce, two, "x")
    with pytest.warns(ReportedWarning, match="for 'sogclr' looks at more"):
        assert not shares_loss(on, sogclr, two, "x")


def test_what_is_frozen_does_not_move(deeper):
    settings = deeper(trainable={"image": {"last_blocks": 1}, "text": {"last_blocks": 1}}, ema=0.5)
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


@pytest.mark.parametrize("cut", [{}, {"accumulate": 2}])
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
