# SPDX-License-Identifier: Apache-2.0
"""The two functions that vLLM calls. Standard library only at import; they never raise unless VLLM_EXT_STRICT=1.

Both entry points are named ``vllm_ext``, since VLLM_PLUGINS filters by name across groups.
"""

from __future__ import annotations

from vllm_ext import __version__, envs, features, host
from vllm_ext.log import logger


def platform() -> str | None:
    """Entry point ``vllm.platform_plugins``: return the class path of the platform that we claim, or None.

    vLLM calls it twice while ``import vllm`` may still be running; the decision is made once per process.
    """
    try:
        envs.publish()
        if not envs.enabled():
            return None
        host.answer_for_vllm()
        from vllm_ext.platforms.detect import decide

        return decide().platform_class
    except Exception:
        logger.debug("vllm_ext: platform detection failed", exc_info=True)
        return None


def register() -> None:
    """Entry point ``vllm.general_plugins``: bring every capability into its state and say so once per process.

    Raises features.VllmExtError only under VLLM_EXT_STRICT=1.
    """
    try:
        envs.publish()
        if not envs.enabled():
            return
        features.activate_all()
        features.report(__version__)
    except features.VllmExtError:
        raise
    except Exception:
        logger.warning("vllm_ext: start-up failed, stock vLLM serves", exc_info=True)
        if envs.get("VLLM_EXT_STRICT"):
            raise
