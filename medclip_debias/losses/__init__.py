"""Objectives and policies on negatives: one loss a file, all on the same small batch object."""

from typing import Any

from medclip_debias.losses.batch import ContrastiveBatch
from medclip_debias.losses.biovil import BioViL, BioViLSettings, MaskedLMSettings
from medclip_debias.losses.clip import CLIP, CLIPSettings, InfoNCE, InfoNCESettings
from medclip_debias.losses.debiased import (
    ConstantEta,
    DebiasedContrastive,
    DebiasedSettings,
    LanguageModelEta,
    TableEta,
)
from medclip_debias.losses.keyword_supervision import KeywordSettings, KeywordSupervision
from medclip_debias.losses.multi_positive import MultiPositive, MultiPositiveSettings
from medclip_debias.losses.objective import (
    EVIDENCE,
    LossOutput,
    Objective,
    build_objective,
    loss_settings,
    objectives,
)
from medclip_debias.losses.policy import POLICIES, Policy, PolicySettings
from medclip_debias.losses.siglip import SigLIP, SigLIPSettings
from medclip_debias.losses.sogclr import SogCLR, SogCLRSettings
from medclip_debias.losses.supcon import SupCon, SupConSettings
from medclip_debias.losses.two_views import TwoViewBatch
from medclip_debias.losses.xclr import XCLR, XCLRSettings

__all__ = [
    "CLIP",
    "XCLR",
    "BioViL",
    "BioViLSettings",
    "CLIPSettings",
    "ConstantEta",
    "ContrastiveBatch",
    "DebiasedContrastive",
    "DebiasedSettings",
    "InfoNCE",
    "InfoNCESettings",
    "KeywordSettings",
    "KeywordSupervision",
    "LanguageModelEta",
    "LossOutput",
    "MaskedLMSettings",
    "MultiPositive",
    "MultiPositiveSettings",
    "Objective",
    "Policy",
    "PolicySettings",
    "SigLIP",
    "SigLIPSettings",
    "SogCLR",
    "SogCLRSettings",
    "SupCon",
    "SupConSettings",
    "TableEta",
    "TwoViewBatch",
    "XCLRSettings",
    "build_objective",
    "describe",
    "loss_settings",
]


def describe() -> list[dict[str, Any]]:
    """Every objective, policy on negatives and kind of evidence: formula, paper, settings.

    ``role`` is ``objective`` (a ``loss.kind``), ``policy`` (of ``loss.negatives``) or ``evidence``.
    """
    roles: dict[str, dict[str, Any]] = {
        "objective": objectives(),
        "policy": POLICIES.all(),
        "evidence": EVIDENCE.all(),
    }
    return [
        {
            "kind": kind,
            "role": role,
            "formula": entry.formula,
            "paper": entry.paper,
            "settings": entry.settings_class().model_dump(mode="json", exclude={"kind"}),
        }
        for role, entries in roles.items()
        for kind, entry in entries.items()
    ]
