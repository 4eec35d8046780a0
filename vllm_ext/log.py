# SPDX-License-Identifier: Apache-2.0
"""Our logger: a child of vLLM's, so that its handlers, levels and prefixes apply."""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable
from typing import Any

from vllm_ext.patching import MORE, Patch

logger = logging.getLogger("vllm.vllm_ext")

_said: set[str] = set()


def once(level: int, message: str) -> None:
    """Log *message* the first time this process sees it."""
    if message not in _said:
        _said.add(message)
        logger.log(level, "%s", message)


def when_configured(say: Callable[[], None]) -> None:
    """Call *say* now, or, where vLLM has not configured its logging yet, as soon as it has.

    The front-end process of recent releases (0.32 among them) loads the plugins while it builds its command line, and
    configures logging after it has parsed it; a line logged before that is lost.
    """
    host = sys.modules.get("vllm.logger")
    configured = (
        logging.getLogger("vllm").handlers  # not hasHandlers(): other packages put theirs on the root logger
        or getattr(host, "_last_configured_logging_config", None) is not None  # VLLM_CONFIGURE_LOGGING=0: no handler
    )
    if configured or not hasattr(host, "configure_logging"):
        say()
        return

    _waiting.append(say)
    WHEN_CONFIGURED.apply()


_waiting: list[Callable[[], None]] = []


def _make(configure: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(configure)
    def configure_logging(*args: Any, **kwargs: Any) -> Any:
        result = configure(*args, **kwargs)
        WHEN_CONFIGURED.revert()
        while _waiting:
            _waiting.pop(0)()
        return result

    return configure_logging


WHEN_CONFIGURED = Patch(
    id="log.when_configured",
    targets=("vllm.logger:configure_logging",),
    parameters=(MORE,),
    releases=">=0.31",
    make=_make,
    reason="vLLM has no hook that runs in every process once its logging is configured.",
    upstream="vLLM 0.31 and later configure logging after the front-end has parsed its command line",
    remove_when="vLLM loads plugins after it has configured logging",
)
