"""Look at the machine, and for a run at its data, a step and its cost.

Nothing here prints report text or ids, and nothing is left behind in the run's folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from medclip_debias.doctor import machine
from medclip_debias.doctor.findings import Examination, Finding, Say, Tell
from medclip_debias.errors import UserError


def examine(
    config: Path | None,
    overrides: Sequence[str],
    say: Say | None = None,
    tell: Tell | None = None,
    loss: str | None = None,
) -> list[Finding]:
    """Look at the machine and, with a config, at everything that the run needs.

    Args:
        config: YAML file of the run, or None.
        overrides: ``key.path=value`` words.
        say: called with what is being looked at now.
        tell: called with each finding when there is one.
        loss: name of a preset over the config.

    Raises:
        UserError: the settings themselves are wrong.
    """
    from medclip_debias.losses.objective import loss_settings
    from medclip_debias.training.resolve import load_run

    if config is None and overrides:
        raise UserError(f"'{overrides[0]}' is a setting of a run; name the run's file before it.")
    if config is None and loss is not None:
        raise UserError(f"--loss {loss}: is for a run; name the run's file.")
    run = None if config is None else load_run(config, overrides, loss)
    if run is not None:
        loss_settings(run.loss, str(config))
    found = Examination(say, tell)
    found.say("Looking at the machine ...")
    found.add(machine.versions())
    found.add(machine.codecs())
    found.add(*machine.gpus(None if run is None else run.train.device))
    found.add(machine.shared_memory(None if run is None else run.train.workers))
    found.look("all-reduce", "Adding up numbers among processes ...", machine.all_reduce)
    if run is not None:
        from medclip_debias.doctor.training_run import examine_run

        examine_run(run, str(config), found)
    return found.findings
