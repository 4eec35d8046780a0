# SPDX-License-Identifier: Apache-2.0
"""The state of ``zen_cpu``: what was decided, and what vLLM made of it."""

from __future__ import annotations

from vllm_ext import host
from vllm_ext.features import Outcome, State
from vllm_ext.platforms.detect import ZEN_PLATFORM, decide


def activate(mode: str) -> Outcome:
    """Compare the decision with the platform that vLLM really took; on a release without Zen support add the dispatch.

    mode makes no difference: the capability is active on every release on which it claims the platform.
    """
    del mode
    decision = decide()
    if decision.platform_class != ZEN_PLATFORM:
        return decision.outcome
    import vllm
    from vllm.platforms import current_platform

    taken = type(current_platform)
    if f"{taken.__module__}.{taken.__qualname__}" != ZEN_PLATFORM:
        why = host.target_device_skips_platform(vllm.__version__) or "vLLM took another platform"
        if getattr(current_platform, "is_zen_cpu", lambda: False)():
            return Outcome(State.NATIVE, f"{why}; vLLM's own {taken.__name__} serves")
        return Outcome(State.UNSUPPORTED, f"{why}; {taken.__name__} serves")
    from vllm_ext.platforms import zen_cpu, zen_linear

    if zen_cpu.IN_TREE:
        added = "extends vLLM's own: float16 only if zentorch says so"
    else:
        zen_linear.DISPATCH.find()  # imported now, so that apply() says now whether it holds
        zen_linear.DISPATCH.apply()
        added = "brings the zentorch linear dispatch, which this vLLM lacks"
    return Outcome(State.ACTIVE, f"{decision.outcome.reason}; {added}")
