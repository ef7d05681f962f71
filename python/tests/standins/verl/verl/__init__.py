# SPDX-License-Identifier: Apache-2.0
"""A stand-in for verl 0.9.1, which is not installed here: what a checkpoint engine is registered with
and derives from. Written from its documentation; nothing of verl runs in tests that use it."""

STANDIN = True
