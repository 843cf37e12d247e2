"""When a policy begins: from a step or an epoch of the run on."""

from __future__ import annotations

from pydantic import Field, model_validator

from medclip_debias.losses.policy import Policy, PolicySettings


class LateStartSettings(PolicySettings):
    """Settings of a policy that needs a network which has learned something already.

    ``start_step``: training step from which it acts; ``start_epoch`` says it in epochs instead,
    for a run that tells its size (`Objective.begin`). GloFND and FNC were published with a start
    after a third of the run or more (GloFND, section 5).
    """

    start_step: int = Field(0, ge=0)
    start_epoch: int | None = Field(None, ge=0)

    @model_validator(mode="after")
    def _starts_once(self) -> LateStartSettings:
        if self.start_epoch is not None and self.start_step:
            raise ValueError("give start_step or start_epoch, not both")
        return self


class LateStart(Policy):
    """A policy with `LateStartSettings`, which knows the step at which it begins."""

    settings: LateStartSettings
    _steps_per_epoch: int | None = None

    def begin(self, *, samples: int, steps_per_epoch: int) -> None:  # noqa: ARG002
        """Remember how long an epoch is."""
        self._steps_per_epoch = steps_per_epoch

    @property
    def start(self) -> int:
        """Training step from which the policy acts.

        Raises:
            ValueError: it is set in epochs, and nothing said how long one is.
        """
        s = self.settings
        if s.start_epoch is None:
            return s.start_step
        if self._steps_per_epoch is None:
            raise ValueError(
                f"'{s.kind}' has a start_epoch, but does not know how long an epoch is: call the "
                "objective's begin(samples=..., steps_per_epoch=...) first, or set start_step"
            )
        return s.start_epoch * self._steps_per_epoch
