// SPDX-License-Identifier: Apache-2.0
// A rank of a megatron layout as a live model: a tree of modules with the attributes that Megatron
// would put there, and values that say where they belong.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "reshard/exec/rank_buffers.h"
#include "reshard/megatron/module.h"
#include "reshard/model/config.h"
#include "reshard/transform/oracle.h"

namespace reshard::megatron {

struct ModuleOptions {
  bool shared = false;  ///< memory that other processes can map.
  /// Ranks in process groups count from the layout's first one, as in a world of its own.
  bool own_world = false;
  bool bf16_expert_bias = false;  ///< a freshly built engine's router.
  bool mark_fp8 = false;          ///< linear weights carry fp8_weight.
};

/// One rank's model and its memory.
class ModuleUnderTest {
 public:
  /// @pre the layout is of the family megatron and has the rank
  ModuleUnderTest(std::shared_ptr<const ModelLayout> layout, const ModelConfig& config, Rank rank,
                  const ModuleOptions& options = {});

  /// The model; for a layout with virtual stages the parent of the chunks, which no call is given.
  Module& module() { return *module_; }
  Module* get() { return module_.get(); }
  /// The chunks of a virtual pipeline, each a model of its own; of others the one module.
  std::vector<Module*> chunks();

  /// Writes the oracle's values into all parameters and persistent buffers.
  void fill(const Oracle& oracle);
  /// The first few elements that are not the oracle's, with their tensors; empty: all are right.
  /// Tensors in `except` are not looked at.
  std::string wrong(const Oracle& oracle, const std::vector<std::string>& except = {});
  /// Zeros everywhere.
  void clear();

 private:
  void add_tensor(SlotId slot);
  void add_groups(const ModelConfig& config);
  ParameterAttributes attributes_of(SlotId slot) const;
  GroupRanks group(int mesh, const char* axis) const;
  void number_layers();
  /// A refit that replaces a buffer of a chunk does not know this parent.
  void invalidate_chunks();

  std::shared_ptr<const ModelLayout> layout_;
  Rank rank_;
  ModuleOptions options_;
  RankBuffers memory_;
  std::shared_ptr<Module> module_ = std::make_shared<Module>();
  std::vector<OwnedTensor> extra_;  ///< buffers that the layout does not know.
};

}  // namespace reshard::megatron
