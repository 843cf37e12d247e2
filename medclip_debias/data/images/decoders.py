"""Which decoder reads which compressed DICOM file, and what to install where it is missing."""

from __future__ import annotations

JPEG_EXTENDED = "1.2.840.10008.1.2.4.51"
LOSSLESS = ("gdcm", "pylibjpeg")
"""GDCM, or else libjpeg, whose package is under the GPL and never installed by this project."""
TWELVE_BITS = ("pylibjpeg",)
"""With libjpeg: GDCM reads no 12-bit lossy JPEG."""
_HTJ2K = ("pylibjpeg",)
"""With openjpeg."""
_PLUGINS = {
    "1.2.840.10008.1.2.4.50": ("pillow",),  # JPEG Baseline
    JPEG_EXTENDED: ("pillow",),
    "1.2.840.10008.1.2.4.57": LOSSLESS,  # JPEG lossless
    "1.2.840.10008.1.2.4.70": LOSSLESS,  # JPEG lossless, first-order prediction
    "1.2.840.10008.1.2.4.80": ("pyjpegls",),  # JPEG-LS lossless
    "1.2.840.10008.1.2.4.81": ("pyjpegls",),  # JPEG-LS near-lossless
    "1.2.840.10008.1.2.4.90": ("pillow",),  # JPEG 2000 lossless
    "1.2.840.10008.1.2.4.91": ("pillow",),  # JPEG 2000
    "1.2.840.10008.1.2.4.201": _HTJ2K,  # HTJ2K lossless
    "1.2.840.10008.1.2.4.202": _HTJ2K,  # HTJ2K lossless, by resolution
    "1.2.840.10008.1.2.4.203": _HTJ2K,  # HTJ2K
    "1.2.840.10008.1.2.5": ("pydicom",),  # RLE
}


def plugins_of(syntax: str, bits: int) -> tuple[str, ...]:
    """The decoders of a transfer syntax, the first of them that is installed to be used.

    Decoders of lossy JPEG differ by a grey level. Left to itself pydicom takes whichever is
    installed, so the same files would give other bytes on another machine.
    """
    if syntax == JPEG_EXTENDED and bits > 8:
        return TWELVE_BITS
    return _PLUGINS.get(syntax, _HTJ2K)


def remedy(form: str, plugins: tuple[str, ...]) -> str:
    """What a file is compressed as, and what reads it, as the end of a sentence."""
    if plugins is TWELVE_BITS:
        return (
            "12-bit lossy JPEG, which only a package under the GPL-3 reads; export it again in"
            " another form, or run pip install pylibjpeg pylibjpeg-libjpeg if that license suits"
            " you"
        )
    return f"'{form}', which needs another decoder; run pip install 'medclip-debias[codecs]'"


def undecodable() -> list[str]:
    """Names of the compressed forms that `prepare` reads and that lack their decoder here.

    12-bit lossy JPEG is not among them: no package of this project reads it.
    """
    from pydicom.pixels import get_decoder
    from pydicom.uid import UID

    return [
        UID(syntax).name
        for syntax, plugins in _PLUGINS.items()
        if not set(plugins) & set(get_decoder(UID(syntax)).available_plugins)
    ]
