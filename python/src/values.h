// SPDX-License-Identifier: Apache-2.0
// Python values for small C++ ones: ranks, shapes, sets of ranks, dtypes.
#pragma once

#include <filesystem>
#include <set>
#include <string>

#include "python/src/support.h"

namespace reshard::python {

/// A rank that a caller names: any int, as large as it may be.
struct RankArgument {
  nb::handle number;
};

/// The rank. Throws InvalidArgumentError if it is not in `ranks`; `of` names whose they are.
Rank rank_of(RankArgument argument, const RankSet& ranks, const std::string& of);
/// The rank. Throws InvalidArgumentError if it is negative or not below kMaxRanks.
Rank rank_of(RankArgument argument);

/// Any iterable of ints. Throws InvalidArgumentError for a rank outside [0, kMaxRanks).
RankSet rank_set_of(const nb::iterable& ranks);
inline constexpr Index kMaxRanks = Index{1} << 20;

/// Names or patterns that a caller gives: an iterable of str, or one str.
struct Names {
  std::set<std::string> names;
};

/// False, without an exception, if the value is neither.
bool read_names(nb::handle value, std::set<std::string>& names) noexcept;

/// A str or any os.PathLike.
struct PathArgument {
  std::filesystem::path path;
};

/// Several of them; one alone is a list of one.
struct PathsArgument {
  std::vector<std::string> paths;
};

/// False, without an exception, if the value is none.
bool read_paths(nb::handle value, std::vector<std::string>& paths) noexcept;

/// The argument `progress` of with_progress().
struct ProgressArgument {
  nb::object value = nb::none();
};

/// The number of threads that a caller gives; 0: one per core. Throws InvalidArgumentError if it is
/// negative or above 4096.
int threads_of(Index threads);

/// A dtype that a caller names: a reshard.DType; its name in safetensors ("BF16") or torch
/// ("bfloat16"); a dtype of torch, numpy, ml_dtypes or JAX. Throws InvalidArgumentError otherwise.
DType dtype_of(const nb::handle& dtype);

/// A shape that a caller gives. Throws InvalidArgumentError for more than kMaxDims dimensions, a
/// negative one, or a volume that overflows.
Dims shape_of(const std::vector<Index>& shape, const std::string& of);

/// An index that a caller gives. Throws InvalidArgumentError for more than kMaxDims numbers.
Dims dims_from(const std::vector<Index>& numbers, const std::string& of);

nb::tuple to_tuple(const Dims& dims);
nb::tuple to_tuple(const RankSet& ranks);

}  // namespace reshard::python

namespace nanobind::detail {

template <>
struct type_caster<reshard::python::RankArgument> {
  NB_TYPE_CASTER(reshard::python::RankArgument, const_name("int"))
  bool from_python(handle src, uint8_t, cleanup_list*) noexcept {
    if (!PyIndex_Check(src.ptr()) || PyBool_Check(src.ptr())) return false;
    value.number = src;
    return true;
  }
};

template <>
struct type_caster<reshard::python::Names> {
  NB_TYPE_CASTER(reshard::python::Names, const_name("str | collections.abc.Iterable[str]"))
  bool from_python(handle src, uint8_t, cleanup_list*) noexcept {
    return reshard::python::read_names(src, value.names);
  }
};

template <>
struct type_caster<reshard::python::PathsArgument> {
  NB_TYPE_CASTER(
      reshard::python::PathsArgument,
      const_name("str | os.PathLike[str] | collections.abc.Iterable[str | os.PathLike[str]]"))
  bool from_python(handle src, uint8_t, cleanup_list*) noexcept {
    return reshard::python::read_paths(src, value.paths);
  }
};

template <>
struct type_caster<reshard::python::PathArgument> {
  NB_TYPE_CASTER(reshard::python::PathArgument, const_name("str | os.PathLike[str]"))
  bool from_python(handle src, uint8_t flags, cleanup_list* cleanup) noexcept {
    make_caster<std::filesystem::path> caster;
    if (!caster.from_python(src, flags, cleanup)) return false;
    value.path = std::move(caster.value);
    return true;
  }
};

template <>
struct type_caster<reshard::python::ProgressArgument> {
  NB_TYPE_CASTER(reshard::python::ProgressArgument,
                 const_name("collections.abc.Callable[[str, int, int], object] | bool | None"))
  bool from_python(handle src, uint8_t, cleanup_list*) noexcept {
    value.value = borrow(src);
    return true;
  }
};

/// To Python only.
template <>
struct type_caster<reshard::Dims> {
  NB_TYPE_CASTER(reshard::Dims, const_name("tuple[int, ...]"))
  static handle from_cpp(const reshard::Dims& dims, rv_policy, cleanup_list*) noexcept {
    return reshard::python::to_tuple(dims).release();
  }
};

template <class Tag, class Rep>
struct type_caster<reshard::StrongInt<Tag, Rep>> {
  using Id = reshard::StrongInt<Tag, Rep>;
  NB_TYPE_CASTER(Id, const_name("int"))
  static handle from_cpp(Id id, rv_policy, cleanup_list*) noexcept {
    return PyLong_FromLongLong(id.value());
  }
};

template <>
struct type_caster<reshard::RankSet> {
  NB_TYPE_CASTER(reshard::RankSet, const_name("tuple[int, ...]"))
  static handle from_cpp(const reshard::RankSet& ranks, rv_policy, cleanup_list*) noexcept {
    return reshard::python::to_tuple(ranks).release();
  }
};

}  // namespace nanobind::detail
