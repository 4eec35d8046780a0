# SPDX-License-Identifier: Apache-2.0
"""Names the layer when a tensor of a Quark checkpoint does not fit: vLLM's own error names neither layer nor tensor."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from vllm_ext.patching import MORE, Patch


def naming(loader: Callable[..., Any], layer: str) -> Callable[..., Any]:
    """Return *loader* (``param, loaded_weight, ...``), whose errors name *layer*, both shapes and the remedy."""

    @functools.wraps(loader)
    def load(param: Any, loaded_weight: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return loader(param, loaded_weight, *args, **kwargs)
        except (AssertionError, RuntimeError, ValueError) as error:
            raise ValueError(
                f"{layer}: a tensor {list(loaded_weight.shape)} of the checkpoint does not fit into the layer's "
                f"{list(param.shape)} ({error or 'the shapes differ'}): the files and config.json do not belong "
                "together, copy or export the checkpoint again"
            ) from error

    return load


def _make(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def create_weights(self: Any, layer: Any, *args: Any, **kwargs: Any) -> Any:
        loader = kwargs.get("weight_loader")
        if loader is not None:
            kwargs["weight_loader"] = naming(loader, getattr(layer, "prefix", "") or type(layer).__name__)
        return original(self, layer, *args, **kwargs)

    return create_weights


NAMES_LAYER = Patch(
    id="quark_mxfp4.names_layer",
    targets=("vllm.model_executor.layers.quantization.quark.quark:QuarkLinearMethod.create_weights",),
    parameters=("self", "layer", MORE),
    make=_make,
    reason="No release has a hook around weight loading; a tensor of another size ends in an error without a name.",
    upstream="no issue known",
    remove_when="vLLM's weight loaders name the parameter in their errors",
)
