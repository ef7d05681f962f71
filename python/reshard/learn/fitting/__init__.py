# SPDX-License-Identifier: Apache-2.0
"""From what ranks hold to rules. Knows no framework and makes no model."""
