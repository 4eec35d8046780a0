# SPDX-License-Identifier: Apache-2.0
"""The platform class for AMD Zen CPUs. vLLM imports this module when it resolves our platform entry point.

It extends the in-tree class where the release has one (0.18 and later) and `CpuPlatform` where it has none.
"""

from __future__ import annotations

import torch
from vllm.platforms.cpu import CpuPlatform

try:
    from vllm.platforms.zen_cpu import ZenCpuPlatform as _Base
except ImportError:  # vLLM 0.17
    _Base = CpuPlatform

IN_TREE = _Base is not CpuPlatform


def fp16_supported() -> bool:
    """Return whether zentorch says it has float16 kernels for this CPU; one without the operator to ask has not."""
    probe = getattr(torch.ops.zentorch, "zentorch_is_fp16_supported", None)
    return probe is not None and bool(probe())


class ZenCpuPlatform(_Base):  # type: ignore[misc, valid-type]
    """AMD EPYC and Ryzen with AVX-512, linear layers through zentorch."""

    device_name: str = "cpu"
    device_type: str = "cpu"

    def is_zen_cpu(self) -> bool:
        return True

    @property
    def supported_dtypes(self) -> list[torch.dtype]:
        """dtypes a model may have, best first. vLLM 0.33 asks zentorch without checking that the operator is there."""
        dtypes = [torch.bfloat16, torch.float32]
        return [*dtypes, torch.float16] if fp16_supported() else dtypes
