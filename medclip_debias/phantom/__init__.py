"""Phantom: seeded synthetic chest radiographs and reports whose truth is known."""

from medclip_debias.phantom.settings import PhantomSettings
from medclip_debias.phantom.writer import generate

__all__ = ["PhantomSettings", "generate"]
