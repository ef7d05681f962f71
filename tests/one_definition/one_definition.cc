// SPDX-License-Identifier: Apache-2.0
// Finds violations of the one-definition rule that no linker reports: two types of one name in one
// program (g++ then keeps the template instances of one of them, for both), and two inline
// functions of one name.
//
//   one_definition PROGRAM...     reads the debug information of each, prints each pair, and fails
//                                 if there is any
//
// Types inside unnamed namespaces and inside functions belong to one file and are left out.
#include <dwarf.h>
#include <elfutils/libdw.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <map>
#include <string>
#include <string_view>
#include <utility>

namespace reshard::one_definition {
namespace {

struct Definition {
  std::string file;
  int line = 0;
  std::int64_t bytes = 0;  // of a type; 0 of a function.
};

// The folder and the name: two build folders, or a compiler cache, write the rest in several ways.
std::string_view short_path(std::string_view path) {
  const std::size_t name = path.rfind('/');
  if (name == std::string_view::npos || name == 0) return path;
  const std::size_t folder = path.rfind('/', name - 1);
  return folder == std::string_view::npos ? path : path.substr(folder + 1);
}

bool is_same(const Definition& a, const Definition& b) {
  return a.line == b.line && a.bytes == b.bytes && short_path(a.file) == short_path(b.file);
}

// The definitions of one program, by qualified name (types) or by symbol (functions).
class Program {
 public:
  explicit Program(const char* path) : path_(path) {}

  // Reads its debug information. False where there is none.
  bool read() {
    const int file = open(path_, O_RDONLY | O_CLOEXEC);
    if (file < 0) return false;
    Dwarf* const dwarf = dwarf_begin(file, DWARF_C_READ);
    Dwarf_Off at = 0, next = 0;
    std::size_t header = 0;
    bool any = false;
    while (dwarf != nullptr &&
           dwarf_nextcu(dwarf, at, &next, &header, nullptr, nullptr, nullptr) == 0) {
      Dwarf_Die unit;
      if (dwarf_offdie(dwarf, at + header, &unit) != nullptr) read_scope(unit, "");
      at = next;
      any = true;
    }
    if (dwarf != nullptr) dwarf_end(dwarf);
    close(file);
    return any;
  }

  int num_violations() const { return num_violations_; }

 private:
  void read_scope(Dwarf_Die& scope, const std::string& prefix) {
    Dwarf_Die child;
    if (dwarf_child(&scope, &child) != 0) return;
    do read_entry(child, prefix);
    while (dwarf_siblingof(&child, &child) == 0);
  }

  void read_entry(Dwarf_Die& entry, const std::string& prefix) {
    const int tag = dwarf_tag(&entry);
    const char* const name = dwarf_diename(&entry);
    if (tag == DW_TAG_namespace) {
      if (name != nullptr) read_scope(entry, prefix + name + "::");
      return;
    }
    if (dwarf_hasattr(&entry, DW_AT_declaration)) return;
    if (tag == DW_TAG_subprogram) return read_function(entry);
    const bool is_enum = tag == DW_TAG_enumeration_type;
    const bool is_class =
        tag == DW_TAG_class_type || tag == DW_TAG_structure_type || tag == DW_TAG_union_type;
    if (name == nullptr || !(is_enum || is_class)) return;
    add(types_, prefix + name, entry, dwarf_bytesize(&entry));
    if (is_class) read_scope(entry, prefix + name + "::");
  }

  void read_function(Dwarf_Die& function) {
    if (dwarf_hasattr(&function, DW_AT_abstract_origin)) return;
    Dwarf_Attribute found;
    if (dwarf_attr_integrate(&function, DW_AT_external, &found) == nullptr ||
        dwarf_attr_integrate(&function, DW_AT_linkage_name, &found) == nullptr) {
      return;
    }
    add(functions_, dwarf_formstring(&found), function, 0);
  }

  void add(std::map<std::string, Definition>& known, const std::string& name, Dwarf_Die& entry,
           std::int64_t bytes) {
    const char* const file = dwarf_decl_file(&entry);
    if (file == nullptr || std::string_view(file).starts_with("/usr/")) return;
    Definition found{.file = file, .line = 0, .bytes = bytes};
    dwarf_decl_line(&entry, &found.line);
    const auto [first, is_new] = known.emplace(name, found);
    if (is_new || is_same(first->second, found)) return;
    const Definition& other = first->second;
    std::printf("%s: two definitions of %s: %s:%d (%lld bytes) and %s:%d (%lld bytes)\n", path_,
                name.c_str(), other.file.c_str(), other.line, static_cast<long long>(other.bytes),
                found.file.c_str(), found.line, static_cast<long long>(found.bytes));
    ++num_violations_;
  }

  const char* path_;
  std::map<std::string, Definition> types_, functions_;
  int num_violations_ = 0;
};

}  // namespace
}  // namespace reshard::one_definition

int main(int argc, char** argv) {
  int num_violations = 0;
  if (argc < 2) std::fprintf(stderr, "usage: one_definition PROGRAM...\n");
  for (int i = 1; i < argc; ++i) {
    reshard::one_definition::Program program(argv[i]);
    if (!program.read()) {
      std::fprintf(stderr, "%s: no debug information; build it with -g\n", argv[i]);
      return 2;
    }
    num_violations += program.num_violations();
  }
  return argc < 2 || num_violations > 0 ? 1 : 0;
}
