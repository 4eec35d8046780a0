# SPDX-License-Identifier: Apache-2.0
"""A plugin for unmodified vLLM; see README.md."""

__version__ = "0.1.0"
