"""Options that several layers share: declared and documented here once, and listed in each layer's signature."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Literal, TypedDict, TypeVar, cast

Init = TypeVar("Init", bound=Callable[..., None])


class SharedOptions(TypedDict, total=False):
    """Options of every layer.

    Args:
        conv_size: Width of the short convolution, usually 2 or 4. Default: 4.
        conv_bias: Whether the short convolution has a bias. Default: False.
        conv_on: ``"qkv"`` to convolve q, k and v; ``"input"`` for one convolution, without activation, of the layer's
            input, which routers and gates then read as well. Default: ``"qkv"``.
        norm_eps: Epsilon of the layer's RMSNorms. Default: 1e-5.
        layer_idx: Index of the layer in the model; its key in a shared cache. Default: None.
    """

    conv_size: int
    conv_bias: bool
    conv_on: Literal["qkv", "input"]
    norm_eps: float
    layer_idx: int | None


class RecurrentOptions(SharedOptions, total=False):
    """Options of every recurrent layer, in addition to :class:`SharedOptions`.

    Args:
        head_dim: Key and value dimensions of a head; excludes ``expand_k`` and ``expand_v``. Default: None.
        expand_k: Width of the keys of all heads together, relative to ``hidden_size``. Default: 1; 0.5 for SwiLA, as
            in the paper.
        expand_v: Width of the values of all heads together, relative to ``hidden_size``. Default: as ``expand_k``'s.
        use_short_conv: Whether q, k and v pass a short convolution. Default: True.
        backend: Backend of :func:`swila.switching_delta_rule`; or, not for SwiLA, ``"fla"`` for the kernels of
            flash-linear-attention. Default: ``"auto"``.
    """

    head_dim: int | None
    expand_k: float | None
    expand_v: float | None
    use_short_conv: bool
    backend: str


class AttentionOptions(SharedOptions, total=False):
    """Options of every softmax attention layer, in addition to :class:`SharedOptions`.

    Args:
        num_kv_heads: Number of heads of keys and values. Default: ``num_heads``.
        head_dim: Dimensions of a head. Default: ``hidden_size / num_heads``.
        qkv_bias: Whether the projections of q, k and v have a bias. Default: False.
        qk_norm: Whether to apply an RMSNorm per head to q and k. Default: False.
        use_output_gate: Whether to multiply the output by ``sigmoid(W x)``. Default: False.
        use_short_conv: Whether q, k and v pass a short convolution, without activation. Default: False.
    """

    num_kv_heads: int | None
    head_dim: int | None
    qkv_bias: bool
    qk_norm: bool
    use_output_gate: bool
    use_short_conv: bool


def forwards(options: Any, to: type) -> Callable[[Init], Init]:
    """Return a decorator for an ``__init__`` that forwards ``**shared`` to the ``__init__`` of a base class.

    The decorator writes the options into the signature, with the defaults of the base class, and into the docstring.
    :func:`help`, :func:`inspect.signature` and :func:`swila.layers.make_mixer` thus see all options of a layer. An
    option that the layer does not have raises a TypeError that lists those it has.

    Args:
        options: The TypedDict that ``**shared`` is annotated with.
        to: The base class.
    """
    accepted = inspect.signature(to.__init__).parameters  # type: ignore[misc]
    shared = [accepted[name].replace(kind=inspect.Parameter.KEYWORD_ONLY) for name in options.__annotations__]
    described = _arguments(options) if options is SharedOptions else _arguments(options) + _arguments(SharedOptions)

    def decorate(init: Init) -> Init:
        signature = inspect.signature(init)
        own = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
        complete = signature.replace(parameters=[*own, *shared])

        @functools.wraps(init)
        def checked(self: Any, *args: Any, **kwargs: Any) -> None:
            for name in kwargs:
                if name not in complete.parameters:  # here, because the base class would name itself in the error
                    known = ", ".join(list(complete.parameters)[1:])
                    raise TypeError(f"{type(self).__name__} has no option {name!r}; it has {known}")
            init(self, *args, **kwargs)

        checked.__signature__ = complete  # type: ignore[attr-defined]
        checked.__doc__ = f"{inspect.getdoc(init) or 'Make the layer.'}\n\nShared options:\n{described}"
        return cast(Init, checked)

    return decorate


def _arguments(options: Any) -> str:
    """Return the lines that describe the options."""
    return (inspect.getdoc(options) or "").partition("Args:\n")[2].rstrip() + "\n"
