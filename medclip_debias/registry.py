"""What can be chosen by its ``kind``: found by being there, named once.

A `Registry` belongs to a folder of modules. Whoever asks it for a kind has every module of that
folder imported first, and importing a module adds what is in it; there is no list to keep.
`Chosen` is the base of classes that settings choose::

    class AbsoluteSettings(Settings):
        kind: Literal["absolute"] = "absolute"

    class Absolute(Penalty[AbsoluteSettings]):  # Penalty is a Chosen with a registry
        ...

The kind stands in the settings class alone: the class that is chosen takes it from there.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from typing import Any, ClassVar, Generic, TypeVar, get_args

from medclip_debias.config import Settings
from medclip_debias.errors import UserError, did_you_mean

T = TypeVar("T")
S = TypeVar("S", bound=Settings)


class Registry(Generic[T]):
    """Entries by kind.

    Attributes:
        entries: what was added so far; `all` imports the folder first.

    Args:
        what: what an entry is, as in ``two objectives of the kind 'x'``.
        folder: dotted name of the package whose modules add the entries.
        known: how a message introduces the list of kinds.

    Example:
        >>> shapes = Registry[int]("shape", "medclip_debias.losses.keywords", known="known shapes")
        >>> shapes.add("triangle", 3)
        3
        >>> shapes.find("triangel", "run.yaml", "shape.kind")
        Traceback (most recent call last):
            ...
        medclip_debias.errors.UserError: run.yaml: setting 'shape.kind' is 'triangel' (did you \
mean 'triangle'?); known shapes: triangle.
    """

    def __init__(self, what: str, folder: str, *, known: str = "known kinds") -> None:
        self.what, self.folder, self.known = what, folder, known
        self.entries: dict[str, T] = {}
        self._origins: dict[str, str] = {}
        self._imported = False

    def add(self, kind: str, entry: T, *, of: object = None) -> T:
        """Add ``entry``; also a decorator's inside.

        Args:
            kind: what it is chosen by.
            entry: what is chosen.
            of: class or function that an entry of another type describes; by default the entry.

        Raises:
            ValueError: another one has this kind. (The same one again, from a module that was
                reloaded, takes the place of the old.)
        """
        origin = _origin(entry if of is None else of)
        old = self._origins.get(kind)
        if kind in self.entries and old != origin:
            raise ValueError(
                f"two entries ({self.what}) of the kind '{kind}': {old} and {origin}; rename one"
            )
        self.entries[kind], self._origins[kind] = entry, origin
        return entry

    def all(self) -> dict[str, T]:
        """Every entry by kind, in alphabetical order."""
        if not self._imported:
            package = importlib.import_module(self.folder)
            for module in pkgutil.iter_modules(package.__path__):
                if not module.name.startswith("__"):  # __main__ is a program
                    importlib.import_module(f"{self.folder}.{module.name}")
            self._imported = True
        return dict(sorted(self.entries.items()))

    def find(self, kind: Any, where: str, setting: str = "kind") -> T:
        """The entry of ``kind``.

        Args:
            kind: as it was given.
            where: file or command line that gave it, for the message.
            setting: dotted key of it there.

        Raises:
            UserError: there is no such kind.
        """
        known = self.all()
        if not isinstance(kind, str) or kind not in known:
            raise self.unknown(kind, where, setting)
        return known[kind]

    def unknown(self, kind: Any, where: str, setting: str) -> UserError:
        """The error of `find`."""
        known = self.all()
        return UserError(
            f"{where}: setting '{setting}' is {kind!r}{did_you_mean(str(kind), known)}; "
            f"{self.known}: {', '.join(known)}."
        )


def _origin(entry: object) -> str:
    """Module and name of a class or function; of anything else, what it shows itself as."""
    name = getattr(entry, "__qualname__", None)
    return repr(entry) if name is None else f"{getattr(entry, '__module__', '')}.{name}"


class Chosen(Generic[S]):
    """Base of what is chosen by the ``kind`` of its settings.

    A subclass names its settings class in brackets. If that has a ``kind``, the subclass is
    registered under it; without (a base of several, or a class of a test) it is not.

    Class attributes:
        registry: where subclasses are added; a base sets it.
        kind: of the settings class.
        settings_class: what stands in the brackets.
        formula: one line.
        paper: where it comes from.
        examples: settings that differ from the defaults, beside which each test that holds for
            every kind is run; the first should read little, ``{}`` is the defaults.
    """

    registry: ClassVar[Registry[Any]]
    kind: ClassVar[str]
    settings_class: ClassVar[type[Any]]
    formula: ClassVar[str]
    paper: ClassVar[str]
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = ({},)

    settings: S

    def __init__(self, settings: S | None = None) -> None:
        super().__init__()
        self.settings = self.settings_class() if settings is None else settings

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for base in cls.__dict__.get("__orig_bases__", ()):
            for given in get_args(base):
                if isinstance(given, type) and issubclass(given, Settings):
                    cls._take(given)

    @classmethod
    def _take(cls, settings_class: type[Settings]) -> None:
        cls.settings_class = settings_class
        field = settings_class.model_fields.get("kind")
        if field is not None and isinstance(field.default, str) and field.default:
            cls.kind = field.default
            cls.registry.add(cls.kind, cls)
