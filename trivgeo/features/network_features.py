"""Features of data that a named layer of a network gives, or its last linear layer reads."""

from __future__ import annotations

import difflib
import inspect
import threading
from collections.abc import Callable
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from trivgeo._torch import pytree
from trivgeo.checks import checked, with_tensors
from trivgeo.errors import ConfigurationError, ShapeError
from trivgeo.inversion.evaluation import evaluation_mode

# layers whose output has its channels in the last dimension, whatever its rank
_CHANNELS_LAST_LAYERS = (nn.Linear, nn.LayerNorm, nn.Embedding, nn.TransformerEncoder, nn.TransformerEncoderLayer)
_MAX_LAYERS_IN_MESSAGE = 12


@checked
class NetworkFeatures(nn.Module):
    """Features ``[b, d]`` of a batch of data.

    Features with further dimensions are averaged over them: ``[b, d, *space]``, as convolutions give them, or
    ``[b, tokens, d]``, as linear layers, normalisations of layers and transformers do. The network is in evaluation
    mode while it computes features, and sees data in the dtype of its parameters. The hook that reads the layer is
    removed after every call.

    Args:
        network: a network, or a function from a batch of data to features.
        layer: name of the layer whose output is taken, as in `torch.nn.Module.named_modules`. Of the last linear layer,
            the classifier, the input is taken. ``None`` for the output of the whole network or function.

    Raises:
        ConfigurationError: the network is neither, has no such layer, or a function is given a layer.
    """

    def __init__(self, network: nn.Module | Callable[[Any], Tensor], layer: str | None = None) -> None:
        super().__init__()
        if not callable(network) or isinstance(network, type):
            raise ConfigurationError(f"network: expected a torch.nn.Module or a function of data, got {network!r}")
        self.network = network
        # the module whose method the function is: it moves with the energy and is put into evaluation mode
        owner = network.__self__ if inspect.ismethod(network) else None
        self.owner = owner if isinstance(owner, nn.Module) else None
        self.layer = layer
        if layer is None:
            return
        if not isinstance(network, nn.Module):
            raise ConfigurationError(f"layer: expected None for a function, which has no layers, got {layer!r}")
        _check_layer(network, layer)

    def forward(self, x: Any) -> Float[Tensor, "b d"]:
        """Return the features of a batch x of data, ``[b, d]``.

        Raises:
            ConfigurationError: the layer was not called, or gives no tensor; or x holds no tensors.
            ShapeError: its output has no channels.
        """
        x = with_tensors("x", x)
        if not any(isinstance(leaf, Tensor) for leaf in pytree.tree_leaves(x)):
            raise ConfigurationError(f"x: expected data, one tensor or several, got {x!r:.80}")
        x = self._in_own_dtype(x)
        # this check is cheap, and keeps a compiled graph free of the lock of the modes
        if not any(part.training for part in self.modules()):
            return self._features(x)
        with evaluation_mode(self):
            return self._features(x)

    def _features(self, x: Any) -> Tensor:
        if self.layer is None:
            layer = self.network if isinstance(self.network, nn.Module) else None
            return pooled("network", self.network(x), layer)
        assert isinstance(self.network, nn.Module)
        layer = self.network.get_submodule(self.layer)
        classifier = classifier_of(self.network)[1]
        seen: list[Any] = []
        thread = threading.get_ident()

        def read(module: nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
            if threading.get_ident() == thread:  # another thread may use the network at the same time
                seen.append(arguments[0] if module is classifier else output)

        handle = layer.register_forward_hook(read)
        try:
            self.network(x)
        finally:
            handle.remove()
        if not seen:
            raise ConfigurationError(f"layer: expected one that the network calls, got {self.layer!r}")
        return pooled(f"layer {self.layer!r}", seen[-1], layer)

    def _in_own_dtype(self, x: Any) -> Any:
        dtype = next((p.dtype for p in self.parameters() if p.is_floating_point()), None)
        if dtype is None:
            return x
        return pytree.tree_map(lambda y: y.to(dtype) if isinstance(y, Tensor) and y.is_floating_point() else y, x)


def classifier_of(network: nn.Module) -> tuple[str | None, nn.Linear | None]:
    """Return the last linear layer of a network and its name; ``None`` twice if it has none."""
    found = [(name, module) for name, module in network.named_modules() if isinstance(module, nn.Linear)]
    return found[-1] if found else (None, None)


def pooled(name: str, output: Any, layer: nn.Module | None) -> Float[Tensor, "b d"]:
    """Return an output averaged over all its dimensions but those of batch and channels.

    Args:
        output: ``[b, d]``, ``[b, d, *space]`` or ``[b, *places, d]``.

    Raises:
        ConfigurationError: it is no tensor of floating-point numbers.
        ShapeError: it has no channels.
    """
    if not isinstance(output, Tensor) or not output.is_floating_point():
        got = f"{output.dtype}" if isinstance(output, Tensor) else type(output).__name__
        raise ConfigurationError(f"{name}: expected floating-point features, got {got}")
    if output.ndim < 2:
        raise ShapeError(f"{name}: expected features [b, d] or [b, d, *space], got {list(output.shape)}")
    if output.ndim == 2:
        return output
    between = range(1, output.ndim - 1) if isinstance(layer, _CHANNELS_LAST_LAYERS) else range(2, output.ndim)
    return output.mean(tuple(between))


def _check_layer(network: nn.Module, layer: str) -> None:
    names = [name for name, _ in network.named_modules() if name]
    if layer in names:
        return
    shown = (
        difflib.get_close_matches(str(layer), names, _MAX_LAYERS_IN_MESSAGE, 0.0)
        if len(names) > _MAX_LAYERS_IN_MESSAGE
        else names
    )
    rest = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
    listed = ", ".join(map(repr, shown)) or "none, for it has no layers"
    raise ConfigurationError(f"layer: expected one of {listed}{rest}, got {layer!r}")
