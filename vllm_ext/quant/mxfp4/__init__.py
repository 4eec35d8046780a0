# SPDX-License-Identifier: Apache-2.0
"""MXFP4 weights with 16-bit activations (W4A16): format, plain torch reference, kernels."""
