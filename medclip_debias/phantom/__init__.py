"""Phantom: seeded synthetic chest radiographs and reports whose truth is known."""

from __future__ import annotations

from medclip_debias.phantom.catalogue import CLASS_NAMES, CLASSES, FindingClass
from medclip_debias.phantom.settings import PhantomSettings
from medclip_debias.phantom.truth import (
    Clause,
    Statement,
    agreement_matrix,
    agrees,
    eta_true,
    statement_from_json,
)
from medclip_debias.phantom.writer import generate

__all__ = [
    "CLASSES",
    "CLASS_NAMES",
    "Clause",
    "FindingClass",
    "PhantomSettings",
    "Statement",
    "agreement_matrix",
    "agrees",
    "eta_true",
    "generate",
    "statement_from_json",
]
