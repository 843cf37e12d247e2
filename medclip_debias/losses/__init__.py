"""Objectives and policies on negatives: one a file, all on the same small batch object."""

from medclip_debias.losses.batch import ContrastiveBatch, TwoViewBatch
from medclip_debias.losses.eta import ConstantEta, LanguageModelEta, TableEta
from medclip_debias.losses.objective import LossOutput, MaskedLMSettings, Objective
from medclip_debias.losses.objectives.biovil import BioViL, BioViLSettings
from medclip_debias.losses.objectives.clip import CLIP, CLIPSettings
from medclip_debias.losses.objectives.debiased import DebiasedContrastive, DebiasedSettings
from medclip_debias.losses.objectives.infonce import InfoNCE, InfoNCESettings
from medclip_debias.losses.objectives.keyword_supervision import (
    KeywordSettings,
    KeywordSupervision,
)
from medclip_debias.losses.objectives.siglip import SigLIP, SigLIPSettings
from medclip_debias.losses.objectives.sogclr import SogCLR, SogCLRSettings
from medclip_debias.losses.objectives.supcon import SupCon, SupConSettings
from medclip_debias.losses.objectives.xclr import XCLR, XCLRSettings
from medclip_debias.losses.policies.fnc import FalseNegativeCancellation, FNCSettings
from medclip_debias.losses.policies.glofnd import GloFND, GloFNDSettings
from medclip_debias.losses.policies.known import RemoveKnown, RemoveKnownSettings
from medclip_debias.losses.policies.label import RemoveByLabel, RemoveByLabelSettings
from medclip_debias.losses.policies.mask import (
    MaskIdenticalText,
    MaskIdenticalTextSettings,
    MaskSameStudy,
    MaskSameStudySettings,
)
from medclip_debias.losses.policies.text import (
    RemoveByText,
    RemoveByTextSettings,
    ResampleByText,
    ResampleByTextSettings,
    ReweightByText,
    ReweightByTextSettings,
)
from medclip_debias.losses.policy import NegativePolicy, PolicySettings

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
    "FNCSettings",
    "FalseNegativeCancellation",
    "GloFND",
    "GloFNDSettings",
    "InfoNCE",
    "InfoNCESettings",
    "KeywordSettings",
    "KeywordSupervision",
    "LanguageModelEta",
    "LossOutput",
    "MaskIdenticalText",
    "MaskIdenticalTextSettings",
    "MaskSameStudy",
    "MaskSameStudySettings",
    "MaskedLMSettings",
    "NegativePolicy",
    "Objective",
    "PolicySettings",
    "RemoveByLabel",
    "RemoveByLabelSettings",
    "RemoveByText",
    "RemoveByTextSettings",
    "RemoveKnown",
    "RemoveKnownSettings",
    "ResampleByText",
    "ResampleByTextSettings",
    "ReweightByText",
    "ReweightByTextSettings",
    "SigLIP",
    "SigLIPSettings",
    "SogCLR",
    "SogCLRSettings",
    "SupCon",
    "SupConSettings",
    "TableEta",
    "TwoViewBatch",
    "XCLRSettings",
]
