// SPDX-License-Identifier: Apache-2.0
// Parameters of the numeric examples of the source documents, cut as they say, and what each
// element of each shard must be.
#pragma once

#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "reshard/megatron/module.h"
#include "reshard/megatron/mxfp8_tensor.h"

namespace reshard::megatron {

/// How ranks [first, first + members) cut dimension `dim` of a parameter.
struct ExampleCut {
  int first = 0, members = 1;
  Index stride = 1;
  std::vector<Index> packed = {};  ///< rows of each packed part on a member.
  std::vector<Index> uneven = {};  ///< rows of each member, where they differ.
  int dim = 0;
  int end() const { return first + members; }
};

struct TilingExample {
  std::string name;
  Dims shape;  ///< of the whole parameter.
  ExampleCut src, dst;
  bool divides = true;  ///< false: the documented tiling refuses it.
  int ranks() const { return std::max(src.end(), dst.end()); }
};
inline std::ostream& operator<<(std::ostream& out, const TilingExample& e) { return out << e.name; }

std::vector<TilingExample> tiling_examples();

/// The metadata that a rank reports of its shard. @pre cut.first + member is its rank
ParameterMetadata metadata_of(const TilingExample& e, const ExampleCut& cut, int member);

/// A rank's shard as a module of one parameter "w"; nothing on a rank that has none.
class ExampleShard {
 public:
  /// Its elements say where they belong where it is `filled`, else they are zeros.
  ExampleShard(const TilingExample& e, const ExampleCut& cut, int rank, bool filled);
  Module* module() { return has_ ? &module_ : nullptr; }
  const TensorView& view() const { return memory_.view; }
  /// Elements that are not what the whole parameter has there.
  Index wrong() const;

 private:
  template <class F>
  void for_each(F&& f) const;
  const TilingExample& example_;
  ExampleCut cut_;
  int member_;
  bool has_;
  OwnedTensor memory_;
  Module module_;
};

/// One of two trainers' columns of a bf16 weight [130, 96] on ranks 0 and 1, null elsewhere: in
/// each row three blocks, 1 to 32 times 1, 16 and 1/4.
struct Mxfp8Example {
  std::unique_ptr<Module> module;
  OwnedTensor memory;
};
Mxfp8Example mxfp8_ramp(int rank);
/// The engine's module on rank `target`: the whole weight, its values kept as MXFP8 elsewhere.
Module mxfp8_target(int target);
/// Expects the bytes that the ramp's blocks are by the format's definition, worked out by hand.
void expect_ramp(const MXFP8Tensor& got);

}  // namespace reshard::megatron
