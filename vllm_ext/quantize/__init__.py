# SPDX-License-Identifier: Apache-2.0
"""Quantize a causal language model to a Quark W4A16 MXFP4 checkpoint, on the CPU."""

from __future__ import annotations

from vllm_ext.quantize.errors import InputError, QuantizeError
from vllm_ext.quantize.run import QuantizeReport, quantize_checkpoint

__all__ = ["InputError", "QuantizeError", "QuantizeReport", "quantize_checkpoint"]
