"""A run that is killed, stopped or spoilt at any point resumes to the same weights, or says why."""

from __future__ import annotations

import json
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
from medclip_debias.training.precision import advice
from medclip_debias.training.signals import StoppedBySignalError
from medclip_debias.training.step import Trainer
from medclip_debias.training.train import train
from tests.disk import files_of_at_most
from tests.training.conftest import (
    flip,
    in_processes,
    largest_difference,
    same,
    table,
    train_until,
    weights,
)

KILLS = 8
# Everything a checkpoint must hold: state of samples, a moving average, a best validation.
FULL = {"ema": 0.9, "validate_every": 2, "steps": 8, "batch_size": 4}
LOSS = {"kind": "clip", "negatives": [{"kind": "glofnd", "alpha": 0.2}]}


def judge(model):
    """A deterministic figure of the weights, cheaper than a validation."""
    return {"recall_at_10": float(model.image_projection.weight.double().abs().sum())}


@pytest.fixture(scope="module")
def tiny(run_in, tmp_path_factory):
    """The `run` of folders that several tests share."""
    return run_in(tmp_path_factory.mktemp("interrupted"), "tiny")


@pytest.fixture(scope="module")
def whole(tiny):
    """The weights of six plain steps that nothing interrupted."""
    return weights(train(tiny("whole", checkpoint_every=100)).model)


def fork(work):
    child = os.fork()
    if child == 0:  # pragma: no cover
        torch.set_num_threads(1)
        try:
            work()
        except StoppedBySignalError:
            os._exit(75)
        except UserError:
            os._exit(2)
        finally:
            os._exit(0)
    return child


def ended(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_run_killed_at_random_points_ends_in_the_same_weights(run):
    train(run("first", LOSS, steps=1))  # pays for the imports, so that the next is timed alone
    settings = run("whole", LOSS, **FULL)
    began = time.perf_counter()
    whole = train(settings, validator=judge)
    span = time.perf_counter() - began
    broken = settings.model_copy(update={"out": settings.out.parent / "broken"})
    rng = random.Random(5)
    kills = halfway = 0
    while kills < KILLS:
        ready, tell = os.pipe()
        wanted = rng.randint(0, 3)  # steps taken before the kill, in this attempt

        def work(tell=tell, wanted=wanted):
            taken = [0]

            def step_taken(*_):
                taken[0] += 1
                if taken[0] == wanted:
                    os.write(tell, b".")

            if not wanted:
                os.write(tell, b".")
            train(broken, validator=judge, progress=step_taken)
            os.write(tell, b".")

        child = fork(work)
        os.close(tell)
        assert os.read(ready, 1)
        time.sleep(rng.uniform(0, 2 if wanted else 5) * span / FULL["steps"])
        os.kill(child, signal.SIGKILL)
        os.close(ready)
        if ended(child) == -signal.SIGKILL and not (broken.out / "model").exists():
            kills += 1
            halfway += bool(checkpoints(broken.out / "checkpoints"))
        if (broken.out / "model").exists():  # done before the kill: begin anew, and kill again
            assert same(weights(whole.model), weights(broken.out / "model"))
            shutil.rmtree(broken.out)
    assert halfway > KILLS // 4
    result = train(broken, validator=judge)
    assert same(weights(whole.model), weights(result.model))
    assert (result.best, result.best_step) == (whole.best, whole.best_step)
    assert not list((broken.out / "checkpoints").glob(".*"))


def rising():
    """Validations of which each is better, so that each writes a best model."""
    figures = iter(range(1, 100))
    return lambda model: {"recall_at_10": float(next(figures))}


# A best model and a checkpoint after each step.
WRITING = FULL | {"steps": 3, "validate_every": 1, "checkpoint_every": 1}


@pytest.fixture(scope="module")
def written(tiny):
    """The weights of a whole run, and how often it wrote to each of its files in turn."""
    write, writes = checkpoint_module._HashedStream.write, {}

    def counted(self, data):
        writes[self] = writes.get(self, 0) + 1
        return write(self, data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint_module._HashedStream, "write", counted)
        model = train(tiny("written", **WRITING), validator=rising()).model
    assert len(writes) == 6
    return weights(model), list(writes.values())


# Place of the file among those written (the first two are of step 1, the next two of step 2) and
# how much of it is there; None is all of it, with its hash, but not under its name.
@pytest.mark.parametrize(
    ("place", "share"), [(1, 0.5), (2, 0.5), (3, 0.0), (3, 0.5), (3, 1.0), (3, None)]
)
def test_a_kill_while_a_checkpoint_is_written_leaves_the_one_before(run, written, place, share):
    expected, writes = written
    broken = run("broken", **WRITING)

    def die():
        os.kill(os.getpid(), signal.SIGKILL)

    def work():
        write, plain = checkpoint_module._HashedStream.write, checkpoint_module.write_text
        calls, hashes = {}, []

        def write_then_die(self, data):
            calls[self] = calls.get(self, 0) + 1
            if len(calls) == place + 1 and calls[self] == 1 + int(share * (writes[place] - 1)):
                self.stream.flush()
                die()
            return write(self, data)

        def hash_then_die(path, text):
            plain(path, text)
            hashes.append(path)
            if len(hashes) == place + 1:
                die()

        if share is None:
            checkpoint_module.write_text = hash_then_die
        else:
            checkpoint_module._HashedStream.write = write_then_die
        train(broken, validator=rising())

    assert ended(fork(work)) == -signal.SIGKILL
    found = checkpoints(broken.out / "checkpoints")
    assert [path.name for path in found] == (["step_00000001.pt"] if place > 1 else [])
    for path in found:
        load_checkpoint(path)
    result = train(broken, validator=rising())
    assert result.resumed_at == len(found)
    assert same(expected, weights(result.model))


def test_a_run_goes_on_with_another_number_of_processes(run):
    settings = run("whole", LOSS, trainable={"text": "frozen"}, steps=4)
    whole = train(settings)
    broken = settings.model_copy(update={"out": settings.out.parent / "broken"})

    def half():
        def at_one(done, total, loss):
            if done == 1:
                os.kill(os.getpid(), signal.SIGTERM)

        try:
            train(broken, progress=at_one)
        except StoppedBySignalError:
            raise SystemExit(75) from None

    # Only the first process is signalled: the other stops with it.
    assert in_processes(2, half) == [75, 75]
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


def rows(folder):
    """What ``metrics.csv`` says, but for what no two runs have in common."""
    measured = {"images_per_second", "data_wait", "seconds", "memory_mib"}
    lines = table(folder / "metrics.csv")
    return [{k: v for k, v in row.items() if k not in measured} for row in lines]


ROWS = {"log_every": 3, "checkpoint_every": 1, "steps": 5}


@pytest.fixture(scope="module")
def whole_rows(tiny):
    settings = tiny("rows", **(ROWS | {"checkpoint_every": 100}))
    train(settings)
    return rows(settings.out)


@pytest.mark.parametrize("cut", [1, 2, 4])
def test_the_rows_of_a_run_that_went_on_are_those_of_the_whole_run(run, whole_rows, cut):
    """The row after a resume averages the steps before the checkpoint too."""
    broken = run("broken", **ROWS)

    train_until(broken, cut)
    assert train(broken).resumed_at == cut
    assert [row["step"] for row in whole_rows] == ["3", "5"]
    assert {"loss", "scale", "gradient_norm", "lr"} <= whole_rows[0].keys()
    assert rows(broken.out) == whole_rows


# ----------------------------------------------------------------------------- damaged files


@pytest.fixture(scope="module")
def interrupted(tiny):
    """The folder of a run with checkpoints after steps 2 and 4 of 6."""
    settings = tiny("interrupted")

    train_until(settings, 5)
    return settings.out


@pytest.fixture
def begun(run, interrupted):
    """Settings of a run whose folder is a copy of `interrupted`."""
    settings = run()
    shutil.copytree(interrupted, settings.out)
    return settings


def begins_anew(settings):
    """Whether ``fresh`` does, as one step shows."""
    short = settings.train.model_copy(update={"steps": 1})
    return train(settings.model_copy(update={"train": short}), fresh=True).resumed_at == 0


def test_a_damaged_checkpoint_is_passed_over_with_a_warning(begun, whole):
    newer = checkpoints(begun.out / "checkpoints")[-1]
    flip(newer)
    said = []
    result = train(begun, warn=said.append)
    assert result.resumed_at == 2
    assert len(said) == 1
    assert newer.name in said[0]
    assert "damaged" in said[0]
    assert same(whole, weights(result.model))


def test_when_every_checkpoint_is_damaged_the_run_says_so(begun):
    older, newer = checkpoints(begun.out / "checkpoints")
    flip(older)
    hash_path(newer).unlink()
    with pytest.raises(UserError, match=r"every checkpoint is damaged .*--fresh"):
        train(begun)
    assert begins_anew(begun)


def test_changed_data_is_refused_unless_forced(begun, tmp_path):
    copy = tmp_path / "changed"
    shutil.copytree(begun.prepared, copy)
    meta = json.loads((copy / "meta.json").read_text())
    before, after = meta["content_hash"], "0" * 16
    (copy / "meta.json").write_text(json.dumps(meta | {"content_hash": after}))
    moved = begun.model_copy(update={"prepared": copy})
    with pytest.raises(UserError, match=rf"{before}.*{after}.*--allow-changed-data"):
        train(moved)
    assert train(moved, allow_changed_data=True).resumed_at == 4


def test_a_compiler_that_fails_is_one_sentence():
    """A graph is captured in earnest; what would make machine code of it gives up.

    One layer, as the networks would take half a minute to capture; and a backend in place of
    torch's own, whose import alone takes longer than all else here.
    """

    def fail(*_, **__):
        raise RuntimeError("no working C++ compiler found")

    layer = torch.nn.Linear(2, 2)
    layer.compile(backend=fail)
    try:
        reported = r"train\.compile is set, but.*cannot be compiled here"
        with pytest.raises(UserError, match=reported), advice(compiled=True):
            layer(torch.zeros(1, 2))
        with pytest.raises(RuntimeError), advice(compiled=False):  # then it is a fault of ours
            layer(torch.zeros(1, 2))
    finally:
        torch._dynamo.reset()


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
        os._exit(2)

    assert ended(fork(work)) == 2
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


def test_a_batch_that_does_not_fit_memory_gets_advice(begun, monkeypatch):
    def too_large(self, images):
        # A real failed allocation of torch's own CPU allocator: 2^60 bytes.
        return torch.empty(2**60, dtype=torch.uint8)

    monkeypatch.setattr(DualEncoder, "encode_images", too_large)
    with pytest.raises(UserError, match=r"train\.accumulate.*checkpoint_text.*batch_size"):
        train(begun)


# ----------------------------------------------------------------------------- the best model


def test_the_best_weights_are_kept_and_a_run_gives_up(run):
    figures = iter([0.3, 0.5, 0.4, 0.2, 0.9])
    seen = []

    def validator(model):
        assert not model.training
        seen.append(model.image_projection.weight.clone())
        return {"recall_at_10": next(figures)}

    settings = run(steps=5, validate_every=1, patience=2, keep="best")
    result = train(settings, validator=validator)
    assert (result.steps, result.best, result.best_step) == (4, 0.5, 2)
    kept = weights(result.model)["image_projection.weight"]
    assert torch.equal(kept, seen[1])
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


def test_models_that_are_no_longer_the_best_are_dropped(run):
    settings = run("best", keep="best", validate_every=1, checkpoint_every=2, steps=4)
    train(settings, validator=rising())
    left = {path.name for path in (settings.out / "checkpoints").glob("best*.pt")}
    # Those of the two checkpoints that are kept.
    assert left == {"best_00000002.pt", "best_00000004.pt"}
    short = settings.model_copy(update={"train": settings.train.model_copy(update={"steps": 2})})
    train(short, fresh=True, validator=lambda _: {"recall_at_10": 0.5})
    left = {path.name for path in (settings.out / "checkpoints").glob("best*")}
    assert left == {"best_00000001.pt", "best_00000001.pt.sha256"}
