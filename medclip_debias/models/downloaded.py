"""A model's folder: here, or on the Hugging Face Hub, where nothing is downloaded unasked."""

from __future__ import annotations

from pathlib import Path

from medclip_debias.errors import UserError


def model_folder(
    name: str | Path,
    *,
    revision: str | None = None,
    cache_dir: str | Path | None = None,
    force_download: bool = False,
    local_files_only: bool = True,
    token: str | bool | None = None,
) -> Path:
    """The folder called ``name``, or that of a model on the hub."""
    folder = Path(name)
    if folder.is_dir():
        return folder
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        path = snapshot_download(
            str(name),
            revision=revision,
            cache_dir=cache_dir,
            force_download=force_download,
            local_files_only=local_files_only,
            token=token,
        )
    except HFValidationError:
        raise UserError(f"{name}: there is no such folder; give the folder of a model.") from None
    except LocalEntryNotFoundError:
        remedy = (
            "is no folder, and no model of this name was downloaded before; nothing is"
            " downloaded unless local_files_only=False is given"
            if local_files_only
            else "could not be downloaded; see whether the hub can be reached"
        )
        raise UserError(f"{name}: {remedy}.") from None
    except Exception as error:  # the hub's and its client's many ways to say no
        kind = type(error).__name__
        raise UserError(f"{name}: could not be downloaded from the hub ({kind}).") from error
    return Path(path)
