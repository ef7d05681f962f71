#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Protects: check_layers.py reports every kind of violation, at its line, and nothing else."""

import pathlib
import tempfile
import unittest

import check_layers

ROOMS = """
reshard_room(base LIBS fmt::fmt)
reshard_room(index ROOMS base)
reshard_room(layout ROOMS index)
reshard_room(model ROOMS layout)
reshard_room(plan ROOMS model transport)
reshard_room(memory ROOMS base layout)
reshard_room(transport ROOMS memory)
reshard_room(exec ROOMS plan transport io)
reshard_room(io ROOMS model plan LIBS nlohmann_json::nlohmann_json)
"""
SPDX = "// SPDX-License-Identifier: Apache-2.0\n"
LONG_BODY = "  f();\n" * 60
UNFINISHED = "TO" + "DO"


class CheckLayers(unittest.TestCase):
  def found(self, files):
    """What is found in a tree of these files: path -> text below the SPDX line, or whole if bytes."""
    with tempfile.TemporaryDirectory() as folder:
      root = pathlib.Path(folder)
      (root / "CMakeLists.txt").write_text(ROOMS)
      for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        whole = text.decode() if isinstance(text, bytes) else SPDX + text
        (root / name).write_text(whole)
      return check_layers.check_tree(root)[0]

  def expect(self, name, text, line, part):
    found = self.found({name: text})
    self.assertEqual(len(found), 1, found)
    self.assertTrue(found[0].startswith(f"{name}:{line}: "), found[0])
    self.assertIn(part, found[0])

  def expect_nothing(self, name, text):
    self.assertEqual(self.found({name: text}), [])

  def test_rooms_reach_through_others(self):
    rooms = check_layers.reachable_rooms(ROOMS)
    self.assertEqual(rooms["base"], set())
    self.assertEqual(rooms["layout"], {"index", "base"})
    self.assertIn("base", rooms["exec"])

  def test_a_room_above_is_reported(self):
    self.expect("reshard/index/a.h", '#pragma once\n#include "reshard/plan/p.h"\n', 3, "index must not")
    self.expect("reshard/base/a.cc", '#include "reshard/index/i.h"\n', 2, "room base must not")
    self.expect_nothing("reshard/plan/a.cc", '#include "reshard/base/b.h"\n#include "reshard/plan/p.h"\n')

  def test_an_internal_header_is_of_its_room_alone(self):
    internal = "#pragma once\nnamespace reshard::shm {}\n"
    use = '#include "reshard/transport/shm/peer.h"\n'
    header = {"reshard/transport/shm/peer.h": internal}
    for user in ("reshard/exec/a.cc", "cli/a.cc", "examples/cpp/a.cc"):
      found = self.found({**header, user: use})
      self.assertEqual(len(found), 1, found)
      self.assertIn(f"{user}:2: ", found[0])
      self.assertIn("internal to its room", found[0])
    for user in ("reshard/transport/a.cc", "reshard/transport/tcp/a.cc", "tests/a_test.cc", "reshard/exec/a_test.cc"):
      self.assertEqual(self.found({**header, user: use}), [])
    interface = {"reshard/transport/shm/peer.h": "#pragma once\nnamespace reshard {}\n"}
    self.assertEqual(self.found({**interface, "reshard/exec/a.cc": use}), [])
    self.expect("reshard/transport/shm/peer.h", "#pragma once\nnamespace reshard {}\n", 1, "no other room uses it")

  def test_a_namespace_has_the_name_of_its_folder(self):
    self.expect("reshard/transport/tcp/a.h", "#pragma once\nnamespace reshard::shm {}\n", 1, "of another name")
    self.expect_nothing("reshard/transport/shm/a.h", "#pragma once\nnamespace reshard::shm {}\n")

  def test_the_namespace_of_a_room_is_an_interface_in_its_folders(self):
    header = {"reshard/transport/shm/a.h": "#pragma once\nnamespace reshard::transport {}\n"}
    self.assertEqual(self.found(header), [])
    self.assertEqual(self.found({**header, "reshard/exec/a.cc": '#include "reshard/transport/shm/a.h"\n'}), [])

  def test_a_crowded_folder_is_reported(self):
    crowd = {f"reshard/io/files/a{i}.cc": "int a;\n" for i in range(26)}
    found = self.found(crowd)
    self.assertEqual(len(found), 1, found)
    self.assertIn("26 product files", found[0])
    del crowd["reshard/io/files/a0.cc"]
    self.assertEqual(self.found({**crowd, "reshard/io/files/a_test.cc": "int b;\n"}), [])

  def test_names_are_forbidden_even_if_cmake_allows_them(self):
    self.expect("reshard/plan/a.cc", '#include "reshard/transport/t.h"\n', 2, "room plan must not")
    self.expect("reshard/transport/a.cc", '#include "reshard/index/i.h"\n', 2, "room transport must not")
    self.expect("reshard/exec/a.cc", '#include "reshard/io/i.h"\n', 2, "room exec must not")
    self.expect_nothing("reshard/transport/a.cc", '#include "reshard/memory/m.h"\n')
    self.expect_nothing("tests/a_test.cc", '#include "reshard/io/i.h"\n')

  def test_nothing_includes_the_programs(self):
    self.expect("reshard/exec/a.cc", '#include "cli/c.h"\n', 2, "only cli/ may")
    self.expect("tests/a.cc", '#include "cli/c.h"\n', 2, "only cli/ may")
    self.expect_nothing("cli/a.cc", '#include "cli/c.h"\n#include "reshard/io/i.h"\n')

  def test_the_front_door_opens_to_users_alone(self):
    self.expect_nothing("reshard/reshard.h", '#pragma once\n#include "reshard/plan/p.h"\n')
    self.expect("reshard/exec/a.cc", '#include "reshard/reshard.h"\n', 2, "is for users")
    self.expect_nothing("examples/cpp/a.cc", '#include "reshard/reshard.h"\n')
    self.expect_nothing("reshard/megatron.h", '#pragma once\n#include "reshard/plan/p.h"\n')
    self.expect("reshard/exec/a.cc", '#include "reshard/megatron.h"\n', 2, "is for users")

  def test_includes_are_written_from_the_root(self):
    self.expect("reshard/index/a.cc", '#include "box.h"\n', 2, "from the root")
    self.expect("reshard/index/a.cc", '#include "../base/b.h"\n', 2, "from the root")

  def test_only_tests_may_use_other_rooms_test_utilities(self):
    include = '#include "reshard/plan/p_testutil.h"\n'
    self.expect("reshard/index/a.cc", include, 2, "room index must not")
    self.expect_nothing("reshard/index/a_test.cc", include)

  def test_a_room_that_cmake_does_not_know_is_reported(self):
    self.expect("reshard/misc/a.cc", '#include "reshard/base/b.h"\n', 2, "no reshard_room")

  def test_heavy_libraries_stay_in_their_places(self):
    self.expect("reshard/io/a.h", "#pragma once\n#include <nlohmann/json.hpp>\n", 3, "JSON only")
    self.expect("reshard/model/a.cc", "#include <nlohmann/json.hpp>\n", 2, "JSON only")
    self.expect("reshard/base/a.h", "#pragma once\n#include <fmt/format.h>\n", 3, "no fmt")
    self.expect("reshard/plan/a.cc", "#include <spdlog/spdlog.h>\n", 2, "log through")
    self.expect("tests/a.cc", "#include <CLI/CLI.hpp>\n", 2, "CLI11 only")
    self.expect_nothing("reshard/io/a.cc", "#include <nlohmann/json.hpp>\n#include <fmt/format.h>\n")

  def test_one_file_includes_cli11(self):
    include = "#include <CLI/CLI.hpp>\n"
    self.assertEqual(self.found({"cli/a.cc": include}), [])
    found = self.found({"cli/a.cc": include, "cli/b.cc": include})
    self.assertEqual(found, ["cli/b.cc:1: CLI11 is already included by cli/a.cc"])

  def test_two_types_of_one_name_are_reported(self):
    one = "#pragma once\nnamespace reshard {\nstruct Move {\n  enum class Kind { a };\n};\n}\n"
    other = "#pragma once\nnamespace reshard {\nclass Move final : public Base {\n};\n}\n"
    found = self.found({"reshard/base/a.h": one, "reshard/index/b.h": other})
    self.assertEqual(found, ["reshard/index/b.h:4: reshard/base/a.h defines reshard::Move, too; rename one, or give it "
                             "a namespace"])
    for inside in ("namespace reshard::other {\n%s}\n", "namespace reshard {\nnamespace {\n%s}\n}\n",
                   "namespace reshard {\nvoid f() {\n%s}\n}\n", "namespace reshard { struct Outer {\n%s}; }\n"):
      text = "#pragma once\n" + inside % "class Move {\n};\n"
      self.assertEqual(self.found({"reshard/base/a.h": one, "reshard/index/b.h": text}), [])

  def test_licence_and_header_guard(self):
    self.expect("reshard/base/a.cc", b"int x;\n", 1, "SPDX")
    self.expect("tools/a.sh", b"#!/bin/bash\n\n", 1, "SPDX")
    self.expect("reshard/base/a.h", "int x;\n", 1, "#pragma once")
    self.expect_nothing("tools/b.sh", b"#!/bin/bash\n# SPDX-License-Identifier: Apache-2.0\n")

  def test_unfinished_work(self):
    self.expect("reshard/base/a.cc", f"int x;\n// {UNFINISHED}: more\n", 3, "unfinished")
    self.expect_nothing("reshard/base/a.cc", '// as in mkstemp("/tmp/XXXXXX")\n')

  def test_long_files(self):
    self.expect("reshard/base/a.cc", "int x;\n" * 500, 1, "501 lines")
    self.expect_nothing("reshard/base/a.cc", "\n" * 499)

  def test_long_functions(self):
    for head in (
      "void f() {\n",
      "template <class T, class U>\nT f(U u) {\n",
      "Result<struct X> Y::f(int a) const {\n",
      "namespace n {\nclass A { int f(int a) {\n",
      'Y::Y() : a_{1}, b_{"}"} {\n',
      "auto f = [](char c = '{') {\n",
      "TEST(A, is_so) {\n",
    ):
      with self.subTest(head):
        line = 1 + head.count("\n")
        self.expect("reshard/base/a.cc", head + LONG_BODY + "}\n", line, "a function of")

  def test_what_is_not_one_long_function(self):
    for text in (
      "namespace n {\n" + "void f() {}\n" * 70 + "}\n",
      "struct A : B<decltype(c())> {\n" + "  int f() { return 1; }\n" * 70 + "};\n",
      "enum class E {\n" + "  a,\n" * 70 + "};\n",
      "constexpr int kTable[] = {\n" + "  1,\n" * 70 + "};\n",
      "void f() {\n" + "  f();\n" * 58 + "}\n",
    ):
      with self.subTest(text[:30]):
        self.expect_nothing("reshard/base/a.cc", text)

  def test_long_python_functions(self):
    body = "def f():\n" + "    f()\n" * 60
    self.expect("tools/a.py", b"# SPDX-License-Identifier: Apache-2.0\n" + body.encode(), 2, "a function of")

  def test_generated_code_and_other_files_are_left_alone(self):
    self.expect_nothing("build/a.cc", b"")
    self.expect_nothing("tests/data.bin", b"\x00")


if __name__ == "__main__":
  unittest.main()
