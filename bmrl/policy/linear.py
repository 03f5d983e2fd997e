"""Linear layers, quicker than those of torch and peft where that changes nothing but rounding.

On a CPU a frozen bfloat16 weight is laid out once as its products read it, where a plain product does so at every
call: up to two thirds of its time. An adapter on it is computed in bfloat16 as well, which is what its input is;
peft computes float32 adapters in float32, and so takes longer for them than for the model. While sampling, nothing
is differentiated and the weights hold still: float32 adapters are added to the weights, others are multiplied along
with them, and layers that read the same are one product. For a token of few rows most of a product's time is the call.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn.functional import linear

from bmrl.policy.model import Policy

Forward = Callable[[Tensor], Tensor]
Product = Callable[..., Tensor]  # with a weight, of one argument, or of two: then the second is added to it
# Layers of a module that read the same, as transformers names them; where they do not, nothing breaks, see ``_Shared``.
TOGETHER = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
ROWS = 1024  # tokens that a layout is chosen for; of layouts for 16 to 1,024 none was slower with another number


def lay_out(policy: Policy) -> Policy:
    """The same policy, whose frozen bfloat16 layers have their weights laid out, where there is something to gain.

    It takes a second copy of these weights.
    """
    adapted, plain = _layers(policy)
    for layer in plain:
        if _compiled(layer.weight) and not layer.weight.requires_grad:
            layer.forward = _frozen(layer)
    for layer in adapted:
        if _plain_lora(layer) and type(layer.base_layer) is nn.Linear and _compiled(layer.base_layer.weight):
            layer.forward = _with_adapter(layer, layer.forward)
    return policy


def for_sampling(policy: Policy) -> list[tuple[nn.Module, Forward]]:
    """Layers and what to compute in place of their ``forward``, see ``swapped``; copies of the weights of now.

    Weights of 16 bit would round most of a small adapter away: there the adapter is computed apart, in the model's own
    type, without a conversion on the way into and out of each layer. A layer with an adapter of another kind than plain
    LoRA stays as it is, one of 4 bit too (in the model's type its adapter is farther from the update's: 0.064 nats
    against 0.048 on SmolLM2-135M), and one without that ``lay_out`` has been at.
    """
    adapted, plain = _layers(policy)
    simple = [layer for layer in adapted if _plain_lora(layer)]
    joined = [layer for layer in simple if type(_base(layer)) is nn.Linear and _lays_out(_base(layer).weight)]
    joined += [layer for layer in plain if _lays_out(layer.weight) and "forward" not in vars(layer)]
    found: list[tuple[nn.Module, Forward]] = []
    with torch.no_grad():
        for group in _together(policy, joined):
            shared = _Shared(_side_by_side(group), [layer.out_features for layer in group])
            found += [(layer, partial(shared.part, i)) for i, layer in enumerate(group)]
        found += [(layer, _apart(layer)) for layer in simple if layer not in joined]
    return found


@contextmanager
def swapped(forwards: Sequence[tuple[nn.Module, Forward]]) -> Iterator[None]:
    """With these in place of the layers' own; afterwards as before."""
    before = [vars(layer).get("forward") for layer, _ in forwards]
    for layer, forward in forwards:
        layer.forward = forward
    try:
        yield
    finally:
        for (layer, _), own in zip(forwards, before, strict=True):
            del layer.forward  # which uncovers that of its class
            if own is not None:
                layer.forward = own


def _layers(policy: Policy) -> tuple[list[Any], list[Any]]:
    """Layers with an adapter, and linear layers without one."""
    from peft.tuners.lora import LoraLayer

    modules = [*policy.causal.get_decoder().modules(), policy.causal.get_output_embeddings()]
    adapted = [module for module in modules if isinstance(module, LoraLayer)]
    parts = {part for layer in adapted for part in layer.modules()}
    return adapted, [module for module in modules if type(module) is nn.Linear and module not in parts]


def _plain_lora(layer: Any) -> bool:
    """Whether its adapter is a product of two matrices and nothing else."""
    from peft.tuners.lora import Linear

    return isinstance(layer, Linear) and "default" not in layer.lora_variant and not layer.lora_bias["default"]


class _Shared:
    """Layers that read the same, computed all at once when the first of them is asked.

    One that reads something else than the others is computed with them in vain, and rightly.

    Args:
        product: of all layers, their outputs side by side.
        widths: of each layer's output.
    """

    def __init__(self, product: Forward, widths: list[int]) -> None:
        self._product, self._widths = product, widths
        self._read: Tensor | None = None
        self._parts: dict[int, Tensor] = {}  # what has not been asked for yet

    def part(self, index: int, x: Tensor) -> Tensor:
        """The output of one of the layers for ``x``."""
        if len(self._widths) == 1:
            return self._product(x)
        if x is not self._read or index not in self._parts:
            self._read, self._parts = x, dict(enumerate(torch.split(self._product(x), self._widths, -1)))
        found = self._parts.pop(index)
        if not self._parts:
            self._read = None
        return found


def _together(policy: Policy, layers: Sequence[Any]) -> list[list[Any]]:
    """The same layers in groups that read the same and have the same data type."""
    alone = {id(layer): layer for layer in layers}
    groups = []
    for module in policy.causal.get_decoder().modules():
        for names in TOGETHER:
            group = [child for name in names if id(child := getattr(module, name, None)) in alone]
            if len(group) > 1 and len({_base(layer).weight.dtype for layer in group}) == 1:
                groups.append([alone.pop(id(layer)) for layer in group])
    return groups + [[layer] for layer in alone.values()]


def _base(layer: Any) -> Any:
    return getattr(layer, "base_layer", layer)


def _side_by_side(layers: Sequence[Any]) -> Forward:
    """The product of an input with several layers, laid out; their outputs side by side."""
    bases = [_base(layer) for layer in layers]
    downs, ups = zip(*(_low_rank(layer, bases[0].weight.dtype) for layer in layers), strict=True)
    bias = None
    if any(base.bias is not None for base in bases):
        bias = torch.cat(
            [base.weight.new_zeros(base.out_features) if base.bias is None else base.bias for base in bases]
        )
    if bases[0].weight.dtype == torch.float32:
        parts = [base.weight + up @ down for base, down, up in zip(bases, downs, ups, strict=True)]
        return _laid_out(torch.cat(parts), bias)
    weight = torch.cat([base.weight for base in bases])
    if not any(len(down) for down in downs):
        return _laid_out(weight, bias)
    inner = _laid_out(torch.cat(downs), None)
    up: Tensor = torch.block_diag(*ups)  # type: ignore[no-untyped-call]
    both = _laid_out(torch.cat([weight, up], dim=1), bias)
    return lambda x: both(torch.cat([x, inner(x)], dim=-1))


def _low_rank(layer: Any, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The factors of its adapter, (rank, in) and (out, rank); without one, of rank 0."""
    if layer is _base(layer):
        return layer.weight.new_zeros(0, layer.in_features), layer.weight.new_zeros(layer.out_features, 0)
    up = layer.lora_B["default"].weight * layer.scaling["default"]
    return layer.lora_A["default"].weight.to(dtype), up.to(dtype)


def _apart(layer: Any) -> Forward:
    """A layer whose weight is not laid out, with its adapter."""
    base = layer.base_layer
    if base.weight.dtype == torch.float32:
        weight, bias = base.weight + layer.get_delta_weight("default"), base.bias
        return lambda x: linear(x, weight, bias)
    down, up = _low_rank(layer, base.weight.dtype)
    return lambda x: base(x) + linear(linear(x, down), up)


def _frozen(layer: Any) -> Forward:
    product = _laid_out(layer.weight, layer.bias)

    return lambda x: _frozen_product(x, layer.weight, product)


def _frozen_product(x: Tensor, weight: Tensor, product: Product) -> Tensor:
    found: Tensor = _Product.apply(x, weight, product) if torch.is_grad_enabled() else product(x)  # type: ignore[no-untyped-call]
    return found


def _with_adapter(layer: Any, of_peft: Forward) -> Forward:
    base = layer.base_layer
    product = _laid_out(base.weight, base.bias)

    def forward(x: Tensor) -> Tensor:
        if layer.disable_adapters:
            return _frozen_product(x, base.weight, product)
        name = layer.active_adapters[0]
        dropping = layer.training and isinstance(layer.lora_dropout[name], nn.Dropout)
        if dropping or len(layer.active_adapters) > 1:
            return of_peft(x)
        down, up = layer.lora_A[name].weight, layer.lora_B[name].weight * layer.scaling[name]
        if torch.is_grad_enabled():
            found: Tensor = _Adapted.apply(x, down, up, base.weight, product)  # type: ignore[no-untyped-call]
            return found
        return product(x, linear(linear(x, down.to(x.dtype)), up.to(x.dtype)))

    return forward


class _Product(Function):
    """The product with a frozen weight."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, product: Product) -> Tensor:
        ctx.weight = weight
        return product(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return grads[0] @ ctx.weight, None, None


class _Adapted(Function):
    """The same with a low-rank adapter: x W' + x down' up', computed in the type of ``x``.

    ``down`` (rank, in) and ``up`` (out, rank), float32, get float32 gradients.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, down: Tensor, up: Tensor, weight: Tensor, product: Product) -> Tensor:
        down, up = down.to(x.dtype), up.to(x.dtype)
        inner = linear(x, down)
        ctx.save_for_backward(x, inner, down, up)
        ctx.weight = weight
        return product(x, linear(inner, up))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, inner, down, up = ctx.saved_tensors
        grad = grads[0].flatten(0, -2)
        of_inner = grad @ up
        of_down = of_inner.t() @ x.flatten(0, -2)
        of_up = grad.t() @ inner.flatten(0, -2)
        of_x = None
        if ctx.needs_input_grad[0]:
            of_x = torch.addmm(of_inner @ down, grad, ctx.weight).view_as(x)
        return of_x, of_down.float(), of_up.float(), None, None


def _lays_out(weight: Tensor) -> bool:
    """Whether oneDNN computes products with it."""
    available = weight.device.type == "cpu" and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return bool(available and (weight.dtype == torch.float32 or _compiled(weight)))


def _compiled(weight: Tensor) -> bool:
    """Whether the processor has products of this type of its own, and it is bfloat16."""
    found = weight.device.type == "cpu" and weight.dtype == torch.bfloat16
    return bool(found and torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _laid_out(weight: Tensor, bias: Tensor | None) -> Product:
    """The product with a weight in a layout of its own; of two arguments, the second is added to it.

    These calls of oneDNN are what torch's own compiler emits.
    """
    packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), ROWS)
    alone, plus = torch.ops.mkldnn._linear_pointwise.default, torch.ops.mkldnn._linear_pointwise.binary

    def product(x: Tensor, other: Tensor | None = None) -> Tensor:
        found: Tensor = alone(x, packed, bias, "none", [], "") if other is None else plus(x, other, packed, bias, "add")
        return found

    return product
