// SPDX-License-Identifier: Apache-2.0
#include "python/src/values.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

namespace reshard::python {
namespace {

/// The number, or none if int64 cannot hold it.
std::optional<Index> small(const nb::handle& number) {
  const nb::object exact = nb::steal(PyNumber_Index(number.ptr()));
  if (!exact.is_valid()) {
    clear_ordinary();
    throw nb::type_error(
        fmt::format("rank must be int, not {}", nb::type_name(number.type()).c_str()).c_str());
  }
  int overflow = 0;
  const long long value = PyLong_AsLongLongAndOverflow(exact.ptr(), &overflow);
  if (value == -1 && PyErr_Occurred() != nullptr) throw nb::python_error();
  return overflow != 0 ? std::nullopt : std::optional<Index>(value);
}

std::string text_of(const nb::handle& object) { return nb::cast<std::string>(nb::str(object)); }

bool is_rank(std::optional<Index> number) { return number && *number >= 0 && *number < kMaxRanks; }

/// The name of a dtype of torch, numpy or JAX: "torch.bfloat16", "float32", a scalar type's name.
std::string library_name(const nb::handle& dtype) {
  if (nb::isinstance<nb::str>(dtype)) return nb::cast<std::string>(dtype);
  if (PyType_Check(dtype.ptr()) != 0) return text_of(dtype.attr("__name__"));
  return text_of(dtype);
}

}  // namespace

Rank rank_of(RankArgument argument, const RankSet& ranks, const std::string& of) {
  const std::optional<Index> number = small(argument.number);
  if (is_rank(number))
    if (const Rank rank(static_cast<Rank::rep>(*number)); ranks.contains(rank)) return rank;
  raise(Code::invalid_argument, fmt::format("rank {} is not in {}; the ranks are {}",
                                            text_of(argument.number), of, to_string(ranks)));
}

Rank rank_of(RankArgument argument) {
  const std::optional<Index> number = small(argument.number);
  if (!is_rank(number))
    raise(Code::invalid_argument,
          fmt::format("rank {} is not from 0 to {}", text_of(argument.number), kMaxRanks - 1));
  return Rank(static_cast<Rank::rep>(*number));
}

RankSet rank_set_of(const nb::iterable& ranks) {
  RankSet set;
  for (const nb::handle rank : ranks) {
    if (!PyIndex_Check(rank.ptr()))
      throw nb::type_error(fmt::format("ranks are ints, not {}", text_of(rank)).c_str());
    set.insert(rank_of(RankArgument{rank}));
  }
  return set;
}

bool read_names(nb::handle value, std::set<std::string>& names) noexcept {
  try {
    if (nb::isinstance<nb::str>(value)) {
      names.insert(nb::cast<std::string>(value));
      return true;
    }
    for (const nb::handle name : nb::iter(value)) {
      if (!nb::isinstance<nb::str>(name)) return false;
      names.insert(nb::cast<std::string>(name));
    }
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

bool read_paths(nb::handle value, std::vector<std::string>& paths) noexcept {
  try {
    PathArgument one;
    if (nb::try_cast(value, one)) return paths.push_back(one.path.string()), true;
    for (const nb::handle path : nb::iter(value)) {
      if (!nb::try_cast(path, one)) return false;
      paths.push_back(one.path.string());
    }
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

int threads_of(Index threads) {
  if (threads < 0 || threads > 4096)
    raise(Code::invalid_argument, fmt::format("threads is {}; it must be from 0 to 4096", threads));
  return static_cast<int>(threads);
}

DType dtype_of(const nb::handle& dtype) {
  if (nb::isinstance<DType>(dtype)) return nb::cast<DType>(dtype);
  const std::string text = library_name(dtype);
  std::string upper = text;
  std::transform(upper.begin(), upper.end(), upper.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  if (const auto known = dtype_from_name(upper)) return *known;
  if (const auto known = dtype_from_torch_name(text)) return *known;
  raise(Code::invalid_argument,
        fmt::format("'{}' is no dtype; give a reshard.DType, a name such as 'BF16' or 'bfloat16', "
                    "or a dtype of torch, numpy or JAX",
                    text));
}

Dims dims_from(const std::vector<Index>& numbers, const std::string& of) {
  if (numbers.size() > kMaxDims)
    raise(Code::invalid_argument,
          fmt::format("{}: {} dimensions; at most {} are possible", of, numbers.size(), kMaxDims));
  return Dims(std::span<const Index>(numbers));
}

Dims shape_of(const std::vector<Index>& shape, const std::string& of) {
  const auto wrong = [&](const std::string& why) {
    raise(Code::invalid_argument, fmt::format("{}: {}", of, why));
  };
  const Dims dims = dims_from(shape, of);
  Index elements = 1;
  bool overflows = false;
  for (const Index size : shape) {
    if (size < 0) wrong(fmt::format("dimension {} is negative", size));
    overflows |= __builtin_mul_overflow(elements, std::max<Index>(size, 1), &elements);
  }
  if (overflows || elements > (Index{1} << 58)) wrong("its size overflows");
  return dims;
}

nb::tuple to_tuple(const Dims& dims) {
  nb::list list;
  for (const Index size : dims) list.append(size);
  return nb::tuple(list);
}

nb::tuple to_tuple(const RankSet& ranks) {
  nb::list list;
  ranks.for_each([&](Rank rank) { list.append(rank.value()); });
  return nb::tuple(list);
}

void bind_values(nb::module_& m) {
  nb::enum_<DType> dtypes(m, "DType",
                          "The type of a tensor's elements, with the names of C++; `name` in upper "
                          "case is that of the safetensors format.");
  for (int i = 0; i <= static_cast<int>(kLastDType); ++i) {
    const auto dtype = static_cast<DType>(i);
    std::string member(name(dtype));
    std::transform(member.begin(), member.end(), member.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    dtypes.value(member.c_str(), dtype);
  }
}

}  // namespace reshard::python
