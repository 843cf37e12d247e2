"""Conventions of the Hugging Face Hub: Auto classes, model cards, uploads, exported networks.

Importing it registers the model with transformers, so that a folder loads without remote code::

    import medclip_debias.hub
    from transformers import AutoModel, AutoProcessor

    model, processor = AutoModel.from_pretrained(folder), AutoProcessor.from_pretrained(folder)
"""

from medclip_debias.hub.auto import (
    MedClipDebiasConfig,
    MedClipDebiasImageProcessor,
    MedClipDebiasModel,
    MedClipDebiasOutput,
    MedClipDebiasProcessor,
    register,
)

__all__ = [
    "MedClipDebiasConfig",
    "MedClipDebiasImageProcessor",
    "MedClipDebiasModel",
    "MedClipDebiasOutput",
    "MedClipDebiasProcessor",
    "register",
]

register()
