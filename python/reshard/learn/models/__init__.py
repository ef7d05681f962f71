# SPDX-License-Identifier: Apache-2.0
"""The small models that cards are learned from, and what transformers says of their classes."""
