# SPDX-License-Identifier: Apache-2.0
"""Plans and predictions as figures, and the numbers that these draw."""
