# SPDX-License-Identifier: Apache-2.0
"""What the adapters for vLLM, SGLang, verl and NeMo-RL share. Internal.

link, invitation, offers   the group of trainers and an engine's workers, and how they find each other
trainer, manifest, quantisation
                           updates from the trainer's shards straight into an engine's parameters
stream                     updates in buckets of whole tensors
"""
