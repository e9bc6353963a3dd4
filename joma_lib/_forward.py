"""Run a decoder for its attention maps, one layer's at a time, and leave the model exactly as it was.

Inside `undisturbed`: eval mode, eager attention, no gradients, no autocast, full float32 products, and each module's
half-precision parameters in float32 while that module runs. All of it is undone on the way out, also after an error.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import joma_lib._lazy
from joma_lib._adapters import Layer

torch = joma_lib._lazy.require("torch", extra="torch")

__all__ = ["compute_dtype", "parameter_dtype", "require_loaded", "stream", "undisturbed", "visible_pairs"]

_HALVES = (torch.float16, torch.bfloat16)


def parameter_dtype(model: Any) -> str:
    """Return the dtype(s) of the parameters, read from them (a config may be out of date), such as "float16"."""
    names = sorted({str(p.dtype).removeprefix("torch.") for p in model.parameters()})
    return "+".join(names) or "none"


def compute_dtype(model: Any) -> str:
    """Return the dtype in which the model runs here: float32, or float64 where a parameter has it."""
    return "float64" if any(p.dtype == torch.float64 for p in model.parameters()) else "float32"


def require_loaded(model: Any) -> None:
    """Raise ValueError for parameters that are absent (meta) or quantised."""
    for name, parameter in model.named_parameters():
        if parameter.is_meta:
            raise ValueError(
                f"parameter {name} holds no data (meta device, offloaded); load the whole model first"
            )
        if not parameter.is_floating_point() or parameter.element_size() < 2:
            raise ValueError(f"parameter {name} is quantised ({parameter.dtype}); load the model in float32")


@contextmanager
def undisturbed(model: Any, *, eager: bool) -> Iterator[None]:
    """Prepare the model for a measurement; its modes, attention, parameters and the random streams come back after it.

    Raises ValueError for a model whose attention cannot be made eager.
    """
    devices = {p.device for p in model.parameters()}
    modes = [(module, module.training) for module in model.modules()]
    with ExitStack() as stack:
        stack.callback(_restore_modes, modes)
        for module, _ in modes:
            module.training = False
        if eager:
            _make_eager(model, stack)
        cuda = [device for device in devices if device.type == "cuda"]
        stack.enter_context(torch.random.fork_rng(devices=cuda))
        stack.enter_context(torch.no_grad())
        for kind in {device.type for device in devices} or {"cpu"}:
            with suppress(RuntimeError):  # a device that knows no autocast
                stack.enter_context(torch.autocast(kind, enabled=False))
        with suppress(RuntimeError):  # precision chosen through the newer per-backend switches: leave it
            precision = torch.get_float32_matmul_precision()
            if precision != "highest":
                stack.callback(torch.set_float32_matmul_precision, precision)
                torch.set_float32_matmul_precision("highest")
        _upcast_while_running(model, stack)
        yield


def _restore_modes(modes: list[tuple[Any, bool]]) -> None:
    for module, training in modes:
        module.training = training


def _make_eager(model: Any, stack: ExitStack) -> None:
    configs = {id(m.config): m.config for m in model.modules() if hasattr(m, "config")}
    for config in configs.values():
        if getattr(config, "_attn_implementation", "eager") == "eager":
            continue
        if not hasattr(config, "_attn_implementation_internal"):
            raise ValueError(
                f"{type(model).__name__} runs {config._attn_implementation} attention and cannot be switched; "
                "load it with attn_implementation='eager'"
            )
        stack.callback(setattr, config, "_attn_implementation_internal", config._attn_implementation_internal)
        config._attn_implementation_internal = "eager"


def _upcast_while_running(model: Any, stack: ExitStack) -> None:
    """Let each module with half-precision parameters see them in float32 while it runs."""
    for module in model.modules():
        own = [p for p in module.parameters(recurse=False) if p.dtype in _HALVES]
        half = [name for name, b in module.named_buffers(recurse=False) if b.dtype in _HALVES]
        if not own and not half:
            continue
        saved: list[tuple[Any, Any]] = []

        def enter(module: Any, args: Any, own: Any = own, half: Any = half, saved: Any = saved) -> None:
            for p in own:
                if p.dtype in _HALVES:
                    saved.append((p, p.data))
                    p.data = p.data.float()
            for name in half:
                saved.append(((module, name), module._buffers[name]))
                module._buffers[name] = module._buffers[name].float()

        def leave(module: Any = None, args: Any = None, output: Any = None, saved: Any = saved) -> None:
            while saved:
                target, data = saved.pop()
                if isinstance(target, tuple):
                    target[0]._buffers[target[1]] = data
                else:
                    target.data = data

        stack.callback(leave)
        stack.callback(module.register_forward_pre_hook(enter).remove)
        stack.callback(module.register_forward_hook(leave).remove)


def stream(
    model: Any,
    layers: list[Layer],
    chosen: list[int],
    ids: Any,
    mask: Any,
    receive: Callable[[int, Any, Any], None],
) -> None:
    """Run the base model on a batch and hand `receive(layer, map, visible)` each chosen layer's map as it is made.

    map: [batch, heads, queries, keys]; visible: [batch or 1, queries], the number of positions that a query sees. The
    map is dropped afterwards. Raises ValueError when a map does not arrive or anything is not finite.
    """
    base = getattr(model, "base_model", model)
    seen: list[int] = []
    causal = visible_pairs(mask)
    counted: dict[int, Any] = {}
    shape = (ids.shape[0], ids.shape[1])

    def hook(at: int) -> Callable[..., Any]:
        def received(module: Any, args: Any, kwargs: dict[str, Any], output: Any) -> Any:
            weights = output[1] if isinstance(output, tuple) and len(output) > 1 else None
            if not isinstance(weights, torch.Tensor):
                raise ValueError(
                    f"layer {at} of {type(model).__name__} returned no attention map; "
                    "load the model with attn_implementation='eager'"
                )
            if (
                weights.ndim != 4
                or (weights.shape[0], weights.shape[2]) != shape
                or weights.shape[3] != shape[1]
            ):
                raise ValueError(
                    f"layer {at} of {type(model).__name__} returned a map of shape {tuple(weights.shape)}, "
                    f"not [{shape[0]}, heads, {shape[1]}, {shape[1]}]; pass the callable attention_maps instead"
                )
            given = kwargs.get("attention_mask")
            if id(given) not in counted:
                counted[id(given)] = _count_visible(causal, given), given
            if weights.dtype == torch.float64:  # eager attention takes its softmax in float32
                weights = weights.float()
            receive(at, weights, counted[id(given)][0])
            seen.append(at)
            return (output[0], None, *output[2:])

        return received

    with ExitStack() as stack:
        for at in chosen:
            handle = layers[at].attention.register_forward_hook(hook(at), with_kwargs=True)
            stack.callback(handle.remove)
        output = base(input_ids=ids, attention_mask=mask.to(ids.dtype), **_arguments(base, mask))
    if seen != chosen:
        raise ValueError(
            f"{type(model).__name__} ran layers {seen} where {chosen} were expected; cannot measure it"
        )
    hidden = output[0] if isinstance(output, tuple) else output.last_hidden_state
    if not bool(torch.isfinite(hidden[mask]).all()):
        raise ValueError(
            f"{type(model).__name__} gives activations that are not finite; check its weights (and its version of transformers)"
        )


def _arguments(base: Any, mask: Any) -> dict[str, Any]:
    """Return the keyword arguments of the forward pass, with position ids that do not count padding."""
    accepted = inspect.signature(base.forward).parameters
    wanted: dict[str, Any] = {"use_cache": False}
    if not bool(mask.all()):
        wanted["position_ids"] = (mask.long().cumsum(-1) - 1).clamp_min(0)
    anything = any(p.kind is p.VAR_KEYWORD for p in accepted.values())
    known = {
        key: value for key, value in wanted.items() if key in accepted or (anything and key != "position_ids")
    }
    left = not bool((mask.long().diff(dim=-1) <= 0).all())
    if left and "position_ids" not in known and getattr(base.config, "model_type", "") != "opt":
        raise ValueError(
            f"{type(base).__name__} takes no position ids, so left padding shifts it; pad on the right"
        )
    if "output_attentions" in accepted or anything:
        known["output_attentions"] = False
        known["output_hidden_states"] = False
    return known


def visible_pairs(mask: Any) -> Any:
    """Return [batch or 1, queries, keys], True where a causal decoder's query sees a key under this padding mask."""
    length = mask.shape[1]
    causal = torch.ones(length, length, dtype=torch.bool, device=mask.device).tril()[None]
    return causal if bool(mask.all()) else causal & mask[:, None, :]


def _count_visible(causal: Any, given: Any) -> Any:
    """Return how many keys each query sees; the mask that the layer was given may narrow it (a sliding window)."""
    if isinstance(given, torch.Tensor) and given.ndim == 4:
        allowed = given if given.dtype == torch.bool else given > torch.finfo(given.dtype).min / 2
        causal = causal & allowed[:, 0, :, : causal.shape[-1]]
    return causal.sum(-1)
