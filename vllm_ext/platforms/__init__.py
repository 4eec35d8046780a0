# SPDX-License-Identifier: Apache-2.0
"""Platforms: detection without vLLM, the platform classes, and the capability's state."""
