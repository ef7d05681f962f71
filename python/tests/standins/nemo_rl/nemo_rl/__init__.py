# SPDX-License-Identifier: Apache-2.0
"""A stand-in for NeMo-RL, which is in no package index: the class that a checkpoint engine derives from
and the function that makes it. Written from its documentation; nothing of NeMo-RL runs in the tests."""
