"""Objectives: one a file, all on the same small batch object."""

from medclip_debias.losses.base import ContrastiveBatch, LossOutput, Objective
from medclip_debias.losses.debiased import (
    DebiasedContrastive,
    DebiasedSettings,
    InfoNCE,
    InfoNCESettings,
)
from medclip_debias.losses.eta import ConstantEta, LanguageModelEta, TableEta

__all__ = [
    "ConstantEta",
    "ContrastiveBatch",
    "DebiasedContrastive",
    "DebiasedSettings",
    "InfoNCE",
    "InfoNCESettings",
    "LanguageModelEta",
    "LossOutput",
    "Objective",
    "TableEta",
]
