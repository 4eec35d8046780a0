# SPDX-License-Identifier: Apache-2.0
"""``python -m vllm_ext`` is ``vllm-ext``."""

import sys

from vllm_ext.cli import main

sys.exit(main())
