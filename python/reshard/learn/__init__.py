# SPDX-License-Identifier: Apache-2.0
"""Layout cards: learned from a framework's own classes and loaders, accepted only if they predict.

    card = learn(teacher, folders, unseen)     # folders: checkpoints of small models of one class

A card is a rules file (docs/cards.md) for one class of one framework. It is fitted to what ranks
hold in two models of different sizes, and then has to predict other parallel sizes and a model that
it never saw: every tensor of the ranks, by name, shape, dtype and element.

A teacher is a module that asks its framework: reshard.learn.vllm, reshard.learn.transformers.
"""

from reshard.learn.learner import NoCard, card_text, extended, learn, prove

__all__ = ["NoCard", "card_text", "extended", "learn", "prove"]
