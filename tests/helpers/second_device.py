"""A device on a machine that has none: its tensors lie beside the processor's and never meet them.

``torch.device("second")`` is torch's extension backend in Python. A tensor of it holds one of the
processor, which computes in its place, so that results are equal to the last bit; what CUDA
refuses, it refuses: an operation on tensors of two devices. `waits` counts what a GPU would make
the program wait for.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.backend_registration import (
    _DummyBackendModule,
    _setup_privateuseone_for_python_backend,
)

aten: Any = torch.ops.aten
waits: Counter[str] = Counter()
"""Operations since it was last cleared for whose result the processor waits."""
_COPIES = {aten._to_copy.default, aten.copy_.default}
_JOINS = {aten.cat.default, aten.stack.default}  # take no number of the processor either
_READS = {
    aten._local_scalar_dense.default,
    aten.nonzero.default,
    aten.masked_select.default,
    aten.equal.default,
    aten._unique2.default,
    aten.unique_consecutive.default,
    aten.repeat_interleave.Tensor,
    aten.bincount.default,
}
_INDEXED = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default}


class _Module(_DummyBackendModule):
    """What torch asks ``torch.second`` for."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    def manual_seed_all(self, seed: int) -> None:
        """The processor's random numbers are this device's."""


class _Held(Tensor):
    held: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, held: Tensor) -> _Held:
        place = {"strides": held.stride(), "storage_offset": held.storage_offset()}
        about = {"dtype": held.dtype, "device": DEVICE, "requires_grad": held.requires_grad}
        return Tensor._make_wrapper_subclass(cls, held.shape, **place, **about)

    def __init__(self, held: Tensor) -> None:
        self.held = held

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["held"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Tensor], *_: Any) -> _Held:
        return _Held(inner["held"])

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        copy = self.detach().clone().requires_grad_(self.requires_grad)
        copy.__dict__.update({k: v for k, v in self.__dict__.items() if k != "held"})
        memo[id(self)] = copy
        return copy

    def tolist(self) -> Any:
        waits["tolist"] += 1
        return self.held.tolist()

    def __format__(self, spec: str) -> str:
        return format(self.held, spec)

    def __repr__(self) -> str:  # type: ignore[override]
        return f"second({self.held!r})"

    def __reduce_ex__(self, protocol: Any) -> Any:  # checkpoints are read onto the processor
        return self.held.detach().__reduce_ex__(protocol)

    @classmethod
    def __torch_dispatch__(cls, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        parts = (
            op.decompose(*args, **kwargs) if torch.is_inference_mode_enabled() else NotImplemented
        )
        return _run(op, *args, **kwargs) if parts is NotImplemented else parts


@torch.inference_mode(False)
@torch.no_grad()
def _run(op: Any, *args: Any, **kwargs: Any) -> Any:
    leaves, spec = pytree.tree_flatten((args, kwargs))
    assert all(x.shape == x.held.shape for x in leaves if isinstance(x, _Held)), op
    mine = {id(x.held): x for x in leaves if isinstance(x, _Held)}
    device = kwargs.get("device")
    goes_back = op in _COPIES and device is not None and torch.device(device).type != DEVICE.type
    _check(op, args, leaves, bool(mine))
    if op in _READS or goes_back:
        waits[op.name()] += 1
    if op in _COPIES and not goes_back:
        from_processor = not isinstance(args[op is aten.copy_.default], _Held)
        blocks = not (
            kwargs.get("non_blocking") or (op is aten.copy_.default and args[2:] == (True,))
        )
        waits["to the device"] += from_processor and blocks
        if op is aten.copy_.default and not isinstance(args[0], _Held):
            waits[op.name()] += 1
    plain = [x.held if isinstance(x, _Held) else _processor(x) for x in leaves]
    args, kwargs = pytree.tree_unflatten(plain, spec)
    result = op(*args, **kwargs)

    def wrap(x: Any) -> Any:
        if not isinstance(x, Tensor) or goes_back:
            return x
        return mine[id(x)] if id(x) in mine else _Held(x)

    if op is aten.copy_.default and not isinstance(leaves[0], _Held):
        return leaves[0]
    return pytree.tree_map(wrap, result)


def _processor(x: Any) -> Any:
    return torch.device("cpu") if isinstance(x, torch.device) and x.type == DEVICE.type else x


def _check(op: Any, args: Any, leaves: list[Any], any_mine: bool) -> None:
    """Refuse what CUDA refuses."""
    if op in _COPIES or not any_mine:
        return
    others = [x for x in leaves if isinstance(x, Tensor) and not isinstance(x, _Held)]
    if op in _INDEXED and isinstance(args[0], _Held):
        indices = [x for x in args[1] if x is not None]
        waits["mask"] += any(x.dtype == torch.bool for x in indices)
        others = [x for x in others if all(x is not index for index in indices)]
    if any(x.ndim or op in _JOINS for x in others):
        raise RuntimeError(f"{op}: Expected all tensors to be on the same device")


def _overload(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(aten, packet), overload or "default")


_setup_privateuseone_for_python_backend("second", _Module())
DEVICE = torch.device("second", 0)
_library = torch.library.Library("_", "IMPL", "PrivateUse1")
_library.fallback(_run)
# Where tensors are made of numbers, torch asks for the kernel itself.
_kernels = torch.library.Library("aten", "IMPL", "PrivateUse1")
_kernels.impl("copy_", partial(_run, aten.copy_.default))
for name in ("arange", "arange.start", "arange.start_step", "linspace", "eye", "randperm"):
    _kernels.impl(name, partial(_run, _overload(name)))
