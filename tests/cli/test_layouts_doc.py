# SPDX-License-Identifier: Apache-2.0
"""Every rule in the tables of docs/layouts.md has an example with numbers, and the program gives those numbers.

An example is a code span `MODEL LAYOUT @RANK NAME SHAPE: TENSOR BOX, TENSOR BOX, ...`: on this rank the local tensor whose
name ends in NAME has this shape and holds these boxes of these tensors (ends of names), in this order; a last `...` stands
for more of them, and no boxes at all for none but padding. `MODEL LAYOUT @RANK NAME none` says that the rank lacks it.
"""

import collections
import functools
import json
import pathlib
import re
import unittest

import program

DOC = pathlib.Path(__file__).parents[2] / "docs" / "layouts.md"
EXAMPLE = re.compile(r"`([\w.-]+) (\w+:?[^ `]*) @(\d+) ([\w.]+) (none|\[[\d, ]*\](?:: [^`]*)?)`")
# Tables of keys and of models state no rule.
RULE_TABLES = ("tensor", "rule")


def rules():
    """(line number, cells) of each row of the tables that state rules."""
    inside = False
    for number, line in enumerate(DOC.read_text().splitlines(), 1):
        if not line.startswith("|"):
            inside = False
            continue
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if cells[0] in RULE_TABLES:
            inside = True
        elif inside and not set(cells[0]) <= set("-: "):
            yield number, cells


@functools.cache
def wanted():
    """The names that examples ask for, by model, layout and rank."""
    names = collections.defaultdict(set)
    for _, cells in rules():
        for model, layout, rank, name, _ in EXAMPLE.findall(cells[-1]):
            names[model, layout, rank].add(name)
    return names


@functools.cache
def local_tensors(model, layout, rank):
    """name: the local tensors whose names end in it. Of the others, up to 37 MB of text, nothing is kept."""
    report = program.done("inspect", model, "--layout", layout, "--rank", rank, "--json")
    local = json.loads(report)["local"]
    return {
        name: [t for t in local if t["name"] == name or t["name"].endswith("." + name)]
        for name in wanted()[model, layout, rank]
    }


def expected(text):
    """(shape, [(tensor, box)], whether there may be more) of what stands behind the name."""
    shape, _, parts = text.partition(": ")
    boxes = [part.rsplit(" ", 1) for part in parts.split(", ") if part and part != "..."]
    return json.loads(shape), [tuple(box) for box in boxes], parts.endswith("...")


class LayoutsDoc(unittest.TestCase):
    def check(self, model, layout, rank, name, text):
        found = local_tensors(model, layout, rank)[name]
        if text == "none":
            return self.assertEqual([t["name"] for t in found], [])
        self.assertEqual(len(found), 1, f"{name}: {[t['name'] for t in found]}")
        shape, boxes, more = expected(text)
        self.assertEqual(found[0]["shape"], shape)
        have = [(f["tensor"], f["box"]) for f in found[0]["fragments"]]
        if more:
            self.assertGreater(len(have), len(boxes))
            have = have[: len(boxes)]
        self.assertEqual([box for _, box in have], [box for _, box in boxes])
        for (tensor, _), (end, _) in zip(have, boxes):
            self.assertTrue(tensor.endswith(end), f"{tensor} does not end in {end}")
        return None

    def test_every_rule_has_an_example_that_is_right(self):
        count = 0
        for number, cells in rules():
            with self.subTest(line=number, rule=cells[0]):
                examples = EXAMPLE.findall(cells[-1])
                self.assertTrue(examples, "has no example")
                for example in examples:
                    self.check(*example)
                    count += 1
        self.assertGreater(count, 40)


if __name__ == "__main__":
    unittest.main()
