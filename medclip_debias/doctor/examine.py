"""Look at the machine, and for a run at its data, a step and its cost.

Nothing here prints report text or ids, and nothing is left behind in the run's folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
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
    """Look at the machine and, with a config, at everything that the run needs."""
    if config is None and overrides:
        raise UserError(f"'{overrides[0]}' is a setting of a run; name the run's file before it.")
    if config is None and loss is not None:
        raise UserError(f"--loss {loss}: is for a run; name the run's file.")
    examination = Examination(say, tell)
    run = None
    if config is not None:  # first: where the settings are wrong, that is all there is to say
        with examination.at_work("Reading the settings (torch and others are imported) ..."):
            from medclip_debias.losses.objective import loss_settings
            from medclip_debias.training.resolve import load_run

            run = load_run(config, overrides, loss)
            loss_settings(run.loss, str(config))
    device = run.train.device if run else None
    look = examination.look
    look("versions", "Checking torch and other libraries ...", machine.versions)
    look("compiled modules", "Checking compiled modules ...", machine.compiled)
    look("codecs", "Checking decoders of DICOM files ...", machine.codecs)
    look("GPU", "Checking the GPUs ...", partial(machine.gpus, device))
    look("all-reduce", "Adding up numbers among processes ...", machine.all_reduce)
    if run is not None:
        with examination.at_work("Importing what a run needs ..."):
            from medclip_debias.doctor.training_run import examine_run
        examine_run(run, str(config), examination)
    return examination.findings
