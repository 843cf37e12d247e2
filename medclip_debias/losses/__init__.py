"""Objectives and policies on negatives: one a file, all on the same small batch object."""

from medclip_debias.losses.base import (
    ContrastiveBatch,
    LossOutput,
    MaskedLMSettings,
    Objective,
    TwoViewBatch,
)
from medclip_debias.losses.clip import CLIP, BioViL, BioViLSettings, CLIPSettings
from medclip_debias.losses.debiased import (
    DebiasedContrastive,
    DebiasedSettings,
    InfoNCE,
    InfoNCESettings,
)
from medclip_debias.losses.eta import ConstantEta, LanguageModelEta, TableEta
from medclip_debias.losses.fnc import FalseNegativeCancellation, FNCSettings
from medclip_debias.losses.glofnd import GloFND, GloFNDSettings
from medclip_debias.losses.keyword_supervision import KeywordSettings, KeywordSupervision
from medclip_debias.losses.mask_identical_text import (
    MaskIdenticalText,
    MaskIdenticalTextSettings,
)
from medclip_debias.losses.mask_same_study import MaskSameStudy, MaskSameStudySettings
from medclip_debias.losses.negatives import NegativePolicy, PolicySettings
from medclip_debias.losses.remove_by_label import RemoveByLabel, RemoveByLabelSettings
from medclip_debias.losses.remove_by_text import RemoveByText, RemoveByTextSettings
from medclip_debias.losses.remove_known import RemoveKnown, RemoveKnownSettings
from medclip_debias.losses.resample_by_text import ResampleByText, ResampleByTextSettings
from medclip_debias.losses.reweight_by_text import ReweightByText, ReweightByTextSettings
from medclip_debias.losses.siglip import SigLIP, SigLIPSettings
from medclip_debias.losses.sogclr import SogCLR, SogCLRSettings
from medclip_debias.losses.supcon import SupCon, SupConSettings
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
