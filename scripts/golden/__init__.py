# SPDX-License-Identifier: Apache-2.0
"""Helpers of the reference scripts (make_golden, verify_real, perplexity_reference)."""
