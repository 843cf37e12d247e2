"""A run that is killed or spoilt at any point resumes to the same weights, or says why not."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time

import pytest
import torch

from medclip_debias.errors import UserError
from medclip_debias.models.dual_encoder import DualEncoder
from medclip_debias.training import checkpoint as checkpoint_module
from medclip_debias.training.checkpoint import (
    checkpoints,
    hash_path,
    load_checkpoint,
    save_checkpoint,
)
from medclip_debias.training.run import advice
from medclip_debias.training.step import Trainer
from medclip_debias.training.train import train
from tests.disk import files_of_at_most
from tests.training.conftest import (
    FULL,
    LOSS,
    exit_code,
    exit_codes,
    flip,
    fork,
    in_processes,
    judge,
    largest_difference,
    same,
    table,
    train_until,
    wait_until,
    weights,
)

KILLS = 3


def rising():
    """Validations of which each is better, so that each writes a best model."""
    figures = iter(range(1, 100))
    return lambda model: {"recall_at_10": float(next(figures))}


@pytest.fixture(scope="module")
def tiny(run_in, tmp_path_factory):
    """The `run` of folders that several tests share."""
    return run_in(tmp_path_factory.mktemp("interrupted"))


def test_a_run_killed_at_random_points_ends_in_the_same_weights(run, tmp_path):
    began = time.perf_counter()
    whole = train(run("whole", LOSS, steps=8, **FULL), validator=judge)
    span = (time.perf_counter() - began) / 8
    broken = run("broken", LOSS, steps=8, **FULL)
    rng = random.Random(5)
    kills = 0
    for _ in range(4 * KILLS):
        steps, mark = rng.randint(1, 3), tmp_path / "mark"  # steps taken before the kill
        mark.unlink(missing_ok=True)
        taken = []

        def work(steps=steps, mark=mark, taken=taken):
            def step_taken(*_):
                taken.append(0)
                if len(taken) == steps:
                    mark.touch()

            train(broken, validator=judge, progress=step_taken)
            mark.touch()

        child = fork(work)
        wait_until(mark.exists)
        time.sleep(rng.uniform(0, span))
        os.kill(child, signal.SIGKILL)
        exit_codes([child])
        if (broken.out / "model").exists():  # done before the kill: begin anew, and kill again
            shutil.rmtree(broken.out)
            continue
        kills += 1
        if kills >= KILLS and checkpoints(broken.out / "checkpoints"):
            break
    result = train(broken, validator=judge)
    assert result.resumed_at > 0
    assert same(weights(whole.model), weights(result.model))
    assert (result.best, result.best_step) == (whole.best, whole.best_step)
    assert not list((broken.out / "checkpoints").glob(".*"))


# A best model and a checkpoint after each step.
WRITING = FULL | {"steps": 3, "validate_every": 1, "checkpoint_every": 1}


@pytest.fixture(scope="module")
def written(tiny):
    """The weights of a whole run whose every file was written undisturbed."""
    return weights(train(tiny("written", **WRITING), validator=rising()).model)


# Place of the file among those written (the first two are of step 1, the next two of step 2), and
# whether it dies half-way or when all is written, with its hash, but not under its name.
@pytest.mark.parametrize(("place", "half"), [(1, True), (3, False)])
def test_a_kill_while_a_checkpoint_is_written_leaves_the_one_before(run, written, place, half):
    broken = run("broken", **WRITING)

    def work():
        save, write_text = torch.save, checkpoint_module.write_text
        calls, hashes = [], []

        def write_then_die(state, stream):
            calls.append(state)
            save(state, stream)
            if half and len(calls) == place + 1:
                stream.truncate(stream.tell() // 2)
                os.kill(os.getpid(), signal.SIGKILL)

        def hash_then_die(path, text):
            write_text(path, text)
            hashes.append(path)
            if len(hashes) == place + 1:
                os.kill(os.getpid(), signal.SIGKILL)

        torch.save = write_then_die
        checkpoint_module.write_text = hash_then_die
        train(broken, validator=rising())

    assert exit_code(work) == -signal.SIGKILL
    left = checkpoints(broken.out / "checkpoints")
    assert [path.name for path in left] == (["step_00000001.pt"] if place > 1 else [])
    result = train(broken, validator=rising())
    assert result.resumed_at == len(left)
    assert same(written, weights(result.model))


def test_a_run_goes_on_with_another_number_of_processes(run):
    settings = run("whole", LOSS, trainable={"text": "frozen"}, steps=4)
    whole = train(settings)
    broken = settings.model_copy(update={"out": settings.out.parent / "broken"})

    def at_one(done, total, loss):
        if done == 1:
            os.kill(os.getpid(), signal.SIGTERM)

    # Only the first process is signalled: the other stops with it.
    assert in_processes(2, lambda: train(broken, progress=at_one)) == [75, 75]
    result = train(broken)
    assert result.resumed_at == 2
    assert largest_difference(weights(whole.model), weights(result.model)) <= 1e-5


def test_an_error_in_one_process_ends_all_with_one_sentence(run, capfd):
    settings = run("broken")

    def work():
        def fail(*_):
            raise UserError("this process cannot go on.")

        try:
            if os.environ["RANK"] == "1":
                Trainer._step = fail
            train(settings)
        except UserError as error:
            os.write(2, f"SENTENCE {error}".encode())
            raise SystemExit(2) from None

    assert in_processes(2, work) == [2, 2]
    output = capfd.readouterr()
    assert (output.out + output.err).count("SENTENCE") == 1


def test_the_rows_of_a_run_that_went_on_are_those_of_the_whole_run(run):
    """The row after a resume averages the steps before the checkpoint too."""
    several = {"log_every": 3, "checkpoint_every": 1, "steps": 5}
    whole, broken = run("whole", **several), run("broken", **several)
    train(whole)
    for cut in (1, 4):
        train_until(broken, cut)
    assert train(broken).resumed_at == 4
    measured = {"images_per_second", "data_wait", "seconds", "memory_mib"}
    rows, expected = (
        [{k: v for k, v in row.items() if k not in measured} for row in table(folder)]
        for folder in (broken.out / "metrics.csv", whole.out / "metrics.csv")
    )
    assert [row["step"] for row in expected] == ["3", "5"]
    assert {"loss", "scale", "gradient_norm", "lr"} <= expected[0].keys()
    assert rows == expected


# ----------------------------------------------------------------------------- damaged files


@pytest.fixture(scope="module")
def interrupted(tiny):
    """A run's folder with checkpoints after steps 2 and 4 of 6, and the weights of a whole one."""
    settings = tiny("interrupted")
    train_until(settings, 5)
    return settings.out, weights(train(tiny("whole", checkpoint_every=100)).model)


@pytest.fixture
def begun(run, interrupted):
    """Settings of a run whose folder is a copy of that of `interrupted`."""
    settings = run()
    shutil.copytree(interrupted[0], settings.out)
    return settings


def test_damaged_checkpoints_are_passed_over_with_a_warning_while_one_is_left(begun, interrupted):
    older, newer = checkpoints(begun.out / "checkpoints")
    content = older.read_bytes()
    flip(older)
    digest = hash_path(newer).read_text()
    hash_path(newer).unlink()
    with pytest.raises(UserError, match=r"every checkpoint is damaged .*--fresh"):
        train(begun)
    older.write_bytes(content)
    flip(newer)
    hash_path(newer).write_text(digest)
    warnings = []
    result = train(begun, warn=warnings.append)
    (warning,) = warnings
    assert newer.name in warning
    assert "damaged" in warning
    assert result.resumed_at == 2
    assert same(interrupted[1], weights(result.model))


def test_a_full_disk_leaves_the_earlier_checkpoints(begun):
    folder = begun.out / "checkpoints"
    kept = {path.name: path.read_bytes() for path in folder.iterdir()}

    def work():
        size = len(kept["step_00000004.pt"])
        with (
            files_of_at_most(size // 2),
            pytest.raises(UserError, match=r"cannot be written.*intact"),
        ):
            train(begun)
        raise SystemExit(2)

    assert exit_code(work) == 2
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == kept
    assert train(begun).resumed_at == 4


def test_a_loss_that_is_no_number_names_step_batch_and_checkpoint(begun):
    folder = begun.out / "checkpoints"
    state = load_checkpoint(checkpoints(folder)[-1])
    state["model"]["text_projection.bias"].fill_(float("nan"))
    save_checkpoint(folder, 4, state)
    digest = Trainer(begun).batch_hash(4)
    with pytest.raises(UserError, match=rf"step 4: .*hash {digest}.*step_00000004\.pt"):
        train(begun)
    assert not (begun.out / "model").exists()


def test_a_batch_that_does_not_fit_memory_gets_advice(run, monkeypatch):
    def too_large(self, images):
        # A real failed allocation of torch's own CPU allocator: 2^60 bytes.
        return torch.empty(2**60, dtype=torch.uint8)

    monkeypatch.setattr(DualEncoder, "encode_images", too_large)
    with pytest.raises(UserError, match=r"train\.accumulate.*checkpoint_text.*batch_size"):
        Trainer(run()).step(0)


def test_a_compiler_that_fails_is_one_sentence():
    """A graph is captured in earnest; a backend in place of torch's own gives up."""

    def fail(*_, **__):
        raise RuntimeError("no working C++ compiler found")

    layer = torch.nn.Linear(2, 2)
    layer.compile(backend=fail)
    expected = r"train\.compile is set, but.*cannot be compiled here"
    with pytest.raises(UserError, match=expected), advice(compiled=True):
        layer(torch.zeros(1, 2))
    torch._dynamo.reset()


# ----------------------------------------------------------------------------- the best model


def test_the_best_weights_are_kept_and_a_run_gives_up(run):
    figures = iter([0.3, 0.5, 0.4, 0.2, 0.9])
    seen = []

    def validator(model):
        assert not model.training
        seen.append(model.image_projection.weight.clone())
        return {"recall_at_10": next(figures)}

    settings = run(steps=5, validate_every=1, checkpoint_every=2, patience=2, keep="best")
    result = train(settings, validator=validator)
    assert (result.steps, result.best, result.best_step) == (4, 0.5, 2)
    assert torch.equal(weights(result.model)["image_projection.weight"], seen[1])
    # Those that are no longer the best are dropped.
    left = {path.name for path in (settings.out / "checkpoints").glob("best*.pt")}
    assert left == {"best_00000002.pt"}
    # Once more: it has given up, and stays so.
    assert train(settings, validator=validator).steps == 4


def test_a_kill_while_a_better_model_is_written_leaves_the_best_before_it(run, monkeypatch):
    """Also where the steps that are taken again do not come out better, as on a GPU they may."""
    settings = run("best", keep="best", validate_every=1, checkpoint_every=1, steps=3)
    figures = iter([0.5, 0.9])
    kept = []

    def better(model):
        kept.append({name: value.clone() for name, value in model.state_dict().items()})
        return {"recall_at_10": next(figures)}

    write_text = checkpoint_module.write_text

    def killed(path, text):
        write_text(path, text)
        if path.name.startswith("best") and len(kept) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint_module, "write_text", killed)
    with pytest.raises(KeyboardInterrupt):
        train(settings, validator=better)
    monkeypatch.undo()
    result = train(settings, validator=lambda _: {"recall_at_10": 0.1})
    assert (result.resumed_at, result.best, result.best_step) == (1, 0.5, 1)
    assert same(weights(result.model), kept[0])
