"""What settings choose by a ``kind``: one registry for each role, filled by a decorator.

A `Registry` belongs to a package, or to one module. Whoever asks it for a kind has every module of
that package imported first, so there is no list to keep::

    PENALTIES: Registry[type[Penalty]] = Registry("penalty", "medclip_debias.penalties")

    @PENALTIES.register("absolute", AbsoluteSettings, formula="|x|", paper="Lasso (1996)")
    class Absolute(Penalty): ...
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import sys
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Generic, Literal, TypeVar, cast, get_type_hints

from pydantic import ValidationInfo, create_model

from medclip_debias.config import Settings, validate
from medclip_debias.errors import UserError, did_you_mean

T = TypeVar("T")
C = TypeVar("C")


class Registry(Generic[T]):
    """Entries by kind.

    Attributes:
        entries: what was added so far; `all` imports the package first.

    Args:
        what: what an entry is, as in ``two objectives of the kind 'x'``.
        folder: dotted name of the package (or module) whose modules add the entries.
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
        """Add ``entry``; ``of`` is the class or function that an entry of another type describes.

        Raises:
            ValueError: another one has this kind (not the same one, reloaded).
        """
        origin = _origin(entry if of is None else of)
        old = self._origins.get(kind)
        if kind in self.entries and old != origin:
            raise ValueError(
                f"two entries ({self.what}) of the kind '{kind}': {old} and {origin}; rename one"
            )
        self.entries[kind], self._origins[kind] = entry, origin
        return entry

    def register(self, kind: str, settings: type[Settings], **attributes: Any) -> Callable[[C], C]:
        """Decorator: add a class, a `Chosen`, under ``kind``, with ``attributes``."""

        def add(entry: C) -> C:
            for name, value in (attributes | {"kind": kind, "settings_class": settings}).items():
                setattr(entry, name, value)
            self.add(kind, cast(T, entry))
            return entry

        return add

    def all(self) -> dict[str, T]:
        """Every entry by kind, in alphabetical order."""
        if not self._imported:
            package = importlib.import_module(self.folder)
            for module in pkgutil.iter_modules(getattr(package, "__path__", ())):
                if not module.name.startswith("__"):  # __main__ is a program
                    importlib.import_module(f"{self.folder}.{module.name}")
            self._imported = True
        return dict(sorted(self.entries.items()))

    def find(self, kind: Any, where: str, setting: str = "kind") -> T:
        """The entry of ``kind``; where there is none, a `UserError` names ``setting``."""
        known = self.all()
        if not isinstance(kind, str) or kind not in known:
            raise self._unknown(kind, where, setting)
        return known[kind]

    def _unknown(self, kind: Any, where: str, setting: str) -> UserError:
        known = self.all()
        return UserError(
            f"{where}: setting '{setting}' is {kind!r}{did_you_mean(str(kind), known)}; "
            f"{self.known}: {', '.join(known)}."
        )

    def settings(self, content: Any, where: str, prefix: str = "") -> Any:
        """Validate settings by the ``kind`` that they name; ``prefix`` is their dotted place."""
        if isinstance(content, Settings):
            return content
        if not isinstance(content, Mapping):
            raise self._unknown(content, where, f"{prefix}kind")
        entry: Any = self.find(content.get("kind"), where, f"{prefix}kind")
        return validate(entry.settings_class, content, where, prefix)

    def build(self, settings: Any) -> Any:
        """What validated ``settings`` choose, made with them."""
        entry: Any = self.all()[settings.kind]
        return entry(settings)

    def choice(self, value: Any, info: ValidationInfo) -> Any:
        """Validator of a field that holds settings of one kind, in the settings of another.

        ``Annotated[SerializeAsAny[PenaltySettings], BeforeValidator(PENALTIES.choice)]``
        """
        return self.settings(value, *_place(info, self.what))

    def choices(self, value: Any, info: ValidationInfo) -> Any:
        """The same of a field that holds a list of them."""
        if not isinstance(value, list | tuple):
            return value
        where, prefix = _place(info, self.what)
        return tuple(self.settings(x, where, f"{prefix}{n}.") for n, x in enumerate(value))


def _place(info: ValidationInfo, what: str) -> tuple[str, str]:
    """File and dotted place of a field, as `medclip_debias.config.validate` passes them on."""
    context = info.context or {}
    return context.get("where", what), f"{context.get('prefix', '')}{info.field_name}."


def _origin(entry: object) -> str:
    """Module and name of a class or function; of anything else, what it shows itself as."""
    name = getattr(entry, "__qualname__", None)
    return repr(entry) if name is None else f"{getattr(entry, '__module__', '')}.{name}"


class Chosen:
    """Base of what settings choose by their ``kind``.

    Class attributes, which `Registry.register` sets:
        kind: its name.
        settings_class: of its settings.
        formula: one line.
        paper: where it comes from.
    """

    kind: ClassVar[str]
    settings_class: ClassVar[type[Any]]
    formula: ClassVar[str]
    paper: ClassVar[str]

    settings: Any

    def __init__(self, settings: Settings | None = None) -> None:
        super().__init__()
        self.settings = self.settings_class(kind=self.kind) if settings is None else settings


def class_of(function: Any, kind: str, base: type[Chosen], method: str) -> type[Any]:
    """A subclass of ``base`` whose ``method`` is ``function``, and of its settings.

    What the function takes by keyword alone are its settings: their types, bounds and defaults.
    """
    parameters = inspect.signature(function).parameters.values()
    hints = get_type_hints(function, include_extras=True)
    chosen = {p.name: (hints[p.name], p.default) for p in parameters if p.kind is p.KEYWORD_ONLY}

    def call(self: Chosen, *args: Any) -> Any:
        return function(*args, **{name: getattr(self.settings, name) for name in chosen})

    names = ("__doc__", "__module__", "__qualname__")
    members = {method: call} | {name: getattr(function, name) for name in names}
    fields: dict[str, Any] = {"kind": (Literal[kind], kind)} | chosen
    name, module = f"{function.__name__}_settings", function.__module__
    settings = create_model(name, __base__=base.settings_class, __module__=module, **fields)
    settings.__doc__ = function.__doc__
    setattr(sys.modules[module], name, settings)  # where pickle looks for it
    return type(function.__name__, (base,), members | {"settings_class": settings})
