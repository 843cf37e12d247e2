"""Image-text learning from chest radiographs and their reports, corrected for false negatives.

Everything a script or notebook needs is here, and imported when it is first used::

    import medclip_debias as md

    model = md.load("runs/debiased/model")

`load`, `Model`, `read_radiograph`, `prepare`, `results` and the modules `losses` and `hub`:
docs/python.md.
"""

from typing import TYPE_CHECKING

__version__ = "0.1.0"

__all__ = ["Model", "hub", "load", "losses", "prepare", "read_radiograph", "results"]

if TYPE_CHECKING:
    from medclip_debias import hub, losses
    from medclip_debias.data.images import read_radiograph
    from medclip_debias.front.model import Model, load
    from medclip_debias.front.preparation import prepare
    from medclip_debias.front.results import results
else:
    _PLACES = {
        "Model": "front.model",
        "load": "front.model",
        "prepare": "front.preparation",
        "read_radiograph": "data.images",
        "results": "front.results",
    }

    def __getattr__(name):
        """Import one of `__all__`: torch and pandas take seconds, and ``--help`` needs neither."""
        from importlib import import_module

        if name in ("hub", "losses"):
            return import_module(f"{__name__}.{name}")
        if name not in _PLACES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
        globals()[name] = found
        return found

    def __dir__():
        return sorted({*globals(), *__all__})
