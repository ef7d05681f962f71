// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "reshard/megatron/tensor_view.h"
#include "reshard/model/reported/parameter_metadata.h"

/// Megatron-Core's refit as C++: models as trees of modules, and the functions of core.resharding
/// under their names. docs/megatron_api.md lists them.
namespace reshard::megatron {

struct MXFP8Tensor;

/// The attributes that Megatron sets on a parameter. The defaults are those of a missing attribute.
struct ParameterAttributes {
  bool tensor_model_parallel = false;
  int partition_dim = 0;
  Index partition_stride = 1;
  std::optional<std::vector<Index>> partition_sizes = std::nullopt;
  bool allreduce =
      true;  ///< false: an expert's parameter, which expert parallel ranks do not share.
  /// A weight that an engine keeps in FP8. Transformer Engine expresses this by the parameter's
  /// type.
  bool fp8_weight = false;
};

/// A parameter or buffer. Its address is its identity: a tensor in two modules is one tensor.
struct Tensor {
  TensorView view;
  ParameterAttributes attributes = {};
  /// Set if the values are kept as MXFP8. `view` then has only the original dtype and shape; its
  /// memory is neither read nor written.
  std::shared_ptr<MXFP8Tensor> mxfp8 = nullptr;
  /// The memory of `view`, if this tensor owns it.
  std::shared_ptr<const OwnedTensor> owner = nullptr;
};
using TensorPtr = std::shared_ptr<Tensor>;

/// The process groups of a module; null if it has none. Ranks are numbered within the module's own
/// world; rank offsets make them unique.
struct ProcessGroups {
  GroupRanks tp = nullptr, pp = nullptr, ep = nullptr, dp = nullptr, expt_tp = nullptr;
};

/// The parts of a model's config that the functions read.
struct TransformerConfig {
  std::optional<Index> num_moe_experts = std::nullopt;
  /// Weights are kept as MXFP8 if transformer_impl is "inference_optimized" and fp8_recipe is
  /// "mxfp8".
  std::string transformer_impl = {};
  std::string fp8_recipe = {};
  /// Scales of MXFP8 weights: true: 1-D, in the 128 x 4 tile order of tensor cores; false: 2-D.
  bool swizzled_scales = true;
};

struct NamedTensor {
  std::string name;
  TensorPtr tensor;
  bool is_buffer = false;
};

class Module;

/// The place of a persistent buffer in its module. The buffer may be replaced; its place stays.
struct BufferPlace {
  Module* parent = nullptr;
  std::size_t index = 0;  ///< in Module::buffers().
  std::string resolved_name;
  const TensorPtr& tensor() const;
};

/// Tensors by name, in the order of named_refit_tensors(), the places of those that are buffers,
/// and the numbers of the module's layers.
class TensorDict {
 public:
  TensorDict(std::vector<NamedTensor> items, LayerPrefixMap layers,
             std::vector<BufferPlace> buffers);
  TensorDict(const TensorDict&) = delete;
  TensorDict& operator=(const TensorDict&) = delete;
  const std::vector<NamedTensor>& items() const { return items_; }
  /// Null if there is no tensor of this name.
  const TensorPtr* find(std::string_view name) const;
  const LayerPrefixMap& layers() const { return layers_; }
  /// In the order of named_persistent_buffers(). Valid while the modules live.
  const std::vector<BufferPlace>& buffers() const { return buffers_; }
  /// Digest of names and layers.
  std::uint64_t digest() const { return digest_; }

 private:
  std::vector<NamedTensor> items_;
  LayerPrefixMap layers_;
  std::vector<BufferPlace> buffers_;
  std::uint64_t digest_ = 0;
  std::unordered_map<std::string_view, std::size_t> by_name_;
};

/// A tree of modules with parameters and buffers, like torch.nn.Module. Memory is borrowed and must
/// outlive every refit. Not thread-safe.
class Module {
 public:
  struct Buffer {
    std::string name;
    TensorPtr tensor;
    bool persistent = true;
  };
  struct Child {
    std::string name;
    std::shared_ptr<Module> module;
  };

  std::optional<Index> layer_number = std::nullopt;  ///< of a layer module; 1-based and global.
  std::optional<TransformerConfig> config = std::nullopt;
  std::optional<ProcessGroups> pg_collection = std::nullopt;
  /// A wrapper such as Float16Module or DistributedDataParallel: its child "module" is the model.
  bool is_wrapper = false;
  /// The children are the chunks of a virtual pipeline on one rank; resolved names omit the chunk's
  /// name. See chunk_list().
  bool is_chunk_list = false;

  Module();
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;
  Module(Module&&) = default;
  Module& operator=(Module&&) = default;
  /// Unique in the process; not reused when another module gets the same address.
  std::uint64_t id() const { return id_; }

  /// Errors: the name is empty, contains a dot or is taken; the child is null.
  Result<> add_child(std::string name, std::shared_ptr<Module> child);
  /// The module at this dotted path; creates missing modules. "" is this module.
  Module& submodule(std::string_view path);

  /// Errors of all three: the name is empty, contains a dot or is taken; the memory has gaps or is
  /// null.
  Result<TensorPtr> register_parameter(std::string name, const TensorView& memory,
                                       ParameterAttributes attributes = {});
  Result<TensorPtr> register_buffer(std::string name, const TensorView& memory,
                                    bool persistent = true);
  /// Adds a tensor that another module has too (tied embeddings).
  Result<> share_parameter(std::string name, TensorPtr tensor);
  /// Makes the attribute `name` refer to another tensor. Errors: there is no such buffer.
  Result<> replace_buffer(std::string_view name, TensorPtr tensor);

  const std::vector<Child>& children() const { return children_; }
  const std::vector<NamedTensor>& parameters() const { return parameters_; }
  const std::vector<Buffer>& buffers() const { return buffers_; }
  /// The child with this name, or null.
  Module* child(std::string_view name) const;
  /// The buffer with this name, or null.
  TensorPtr buffer(std::string_view name) const;

 private:
  friend std::shared_ptr<const TensorDict> get_refit_tensor_dict(Module& module);
  friend void invalidate_refit_tensor_cache(Module& module);
  friend Result<Module*> chunk_list(const std::vector<Module*>& chunks);
  Result<> check_name(std::string_view name) const;

  std::uint64_t id_;
  std::vector<Child> children_;
  std::vector<NamedTensor> parameters_;
  std::vector<Buffer> buffers_;
  std::shared_ptr<const TensorDict> refit_tensor_cache_;
  const Module* cached_at_ = nullptr;  ///< this module's address when it was cached.
  /// The chunks' dicts that refit_tensor_cache_ was made from, if this is a chunk list.
  std::vector<std::shared_ptr<const TensorDict>> chunk_caches_;
  std::vector<std::uint64_t> chunk_ids_;  ///< of a chunk list: the id() of each chunk.
  std::shared_ptr<Module> chunk_list_;    ///< the chunk list whose first chunk this module is.
};

/// A module of the tree and its dotted path; "" for the root.
struct NamedModule {
  std::string name;
  Module* module;
};
/// All modules of the tree, depth first: each before its children, children in the order in which
/// they were added. A module that occurs twice is listed once.
std::vector<NamedModule> named_modules(Module& module);

/// The parameters of all modules in that order; a tensor that occurs twice is listed once.
std::vector<NamedTensor> named_parameters(Module& module);

struct NamedBuffer {
  std::string full_name;
  Module* parent;
  std::string name;
  TensorPtr tensor;
};
/// All persistent buffers; the others hold temporary state of a training step.
std::vector<NamedBuffer> named_persistent_buffers(Module& module);

/// All parameters, then all persistent buffers: the tensors of a refit.
std::vector<NamedTensor> named_refit_tensors(Module& module);

/// The same by name. Made by the first call and cached on the module: later calls return the same
/// pointer until invalidate_refit_tensor_cache(), or until the module is moved. Call that after
/// replacing a buffer, or a part of the tree.
std::shared_ptr<const TensorDict> get_refit_tensor_dict(Module& module);
void invalidate_refit_tensor_cache(Module& module);

/// The chunks of a virtual pipeline as one module with children "model0", "model1", ..., in this
/// order. It has the current groups and config of the first chunk, and is cached there: the same
/// list gives the same module. Errors: a chunk occurs twice; its groups differ from the first
/// chunk's. @pre several chunks, none null, each with a pg_collection
Result<Module*> chunk_list(const std::vector<Module*>& chunks);

/// The model inside its wrappers. Errors: a wrapper has no child "module".
Result<Module*> unwrap_model(Module& module);

}  // namespace reshard::megatron
