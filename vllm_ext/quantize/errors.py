# SPDX-License-Identifier: Apache-2.0
"""What can go wrong while quantizing, as one sentence each: what, where, remedy."""

from __future__ import annotations


class QuantizeError(Exception):
    """The run failed through no fault of the input; exit code 1."""

    exit_code = 1


class InputError(QuantizeError):
    """The source, the output or an option cannot be used as given; exit code 2."""

    exit_code = 2
