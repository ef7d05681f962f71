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

#include "reshard/model/reported/parameter_metadata.h"
#include "reshard/refit/megatron/tensor_view.h"

/// Megatron-Core's refit as C++: a model as its modules show it, and the calls of
/// core.resharding under their names. docs/megatron_api.md lists them.
namespace reshard::megatron {

struct MXFP8Tensor;

/// What Megatron writes on a parameter; the defaults are what its absence means.
struct ParameterAttributes {
  bool tensor_model_parallel = false;
  int partition_dim = 0;
  Index partition_stride = 1;
  std::optional<std::vector<Index>> partition_sizes = std::nullopt;
  bool allreduce = true;  ///< false: of an expert, which expert parallel ranks do not share.
  /// A weight that an engine keeps in FP8: what Transformer Engine says by the parameter's type.
  bool fp8_weight = false;
};

/// A parameter or buffer. Its identity is its address: a tensor that two modules hold is one.
struct Tensor {
  TensorView view;
  ParameterAttributes attributes = {};
  /// Set where the values are kept as MXFP8: `view` then says only their dtype and shape before,
  /// and its memory is neither read nor written.
  std::shared_ptr<MXFP8Tensor> mxfp8 = nullptr;
  /// Memory of `view`, where this owns it.
  std::shared_ptr<const OwnedTensor> owner = nullptr;
};
using TensorPtr = std::shared_ptr<Tensor>;

/// The process groups of a module; null where it has none. Ranks count within the module's own
/// world: rank offsets make them unique.
struct ProcessGroups {
  GroupRanks tp = nullptr, pp = nullptr, ep = nullptr, dp = nullptr, expt_tp = nullptr;
};

/// What the calls read of a model's config.
struct TransformerConfig {
  std::optional<Index> num_moe_experts = std::nullopt;
  std::string transformer_impl = {};  ///< "inference_optimized" and
  std::string fp8_recipe = {};        ///< "mxfp8": weights are kept as MXFP8.
  /// Scales of those weights in the 128 x 4 tile order of tensor cores, 1-D; else 2-D.
  bool swizzled_scales = true;
};

struct NamedTensor {
  std::string name;
  TensorPtr tensor;
  bool is_buffer = false;
};

/// Tensors by name, in the order in which the module's walk finds them, and the numbers of its
/// layers.
class TensorDict {
 public:
  TensorDict(std::vector<NamedTensor> items, LayerPrefixMap layers);
  TensorDict(const TensorDict&) = delete;
  TensorDict& operator=(const TensorDict&) = delete;
  const std::vector<NamedTensor>& items() const { return items_; }
  /// Null where there is none of this name.
  const TensorPtr* find(std::string_view name) const;
  const LayerPrefixMap& layers() const { return layers_; }
  /// Of names and layers.
  std::uint64_t digest() const { return digest_; }

 private:
  std::vector<NamedTensor> items_;
  LayerPrefixMap layers_;
  std::uint64_t digest_ = 0;
  std::unordered_map<std::string_view, std::size_t> by_name_;
};

/// A tree of modules with parameters and buffers, as torch.nn.Module. Memory is borrowed and must
/// outlive every refit. Used from one thread at a time.
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

  std::optional<Index> layer_number = std::nullopt;  ///< 1-based and global, of a layer module.
  std::optional<TransformerConfig> config = std::nullopt;
  std::optional<ProcessGroups> pg_collection = std::nullopt;
  /// Float16Module, DistributedDataParallel: the model itself is the child "module".
  bool is_wrapper = false;
  /// The children are the chunks of a virtual pipeline on one rank: resolved names leave out their
  /// names. See chunk_list().
  bool is_chunk_list = false;

  Module();
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;
  Module(Module&&) = default;
  Module& operator=(Module&&) = default;
  /// Of this module and no other of the process, whatever becomes of its address.
  std::uint64_t id() const { return id_; }

  /// Errors: a name that is empty, has a dot or is taken; a null child.
  Result<> add_child(std::string name, std::shared_ptr<Module> child);
  /// The module at this dotted path; those that are missing are made. "" is this one.
  Module& submodule(std::string_view path);

  /// Errors of all: a name that is empty, has a dot or is taken; memory with gaps or none.
  Result<TensorPtr> register_parameter(std::string name, const TensorView& memory,
                                       ParameterAttributes attributes = {});
  Result<TensorPtr> register_buffer(std::string name, const TensorView& memory,
                                    bool persistent = true);
  /// One that another module holds too (tied embeddings).
  Result<> share_parameter(std::string name, TensorPtr tensor);
  /// What the attribute `name` refers to from now on. Errors: there is no such buffer.
  Result<> replace_buffer(std::string_view name, TensorPtr tensor);

  const std::vector<Child>& children() const { return children_; }
  const std::vector<NamedTensor>& parameters() const { return parameters_; }
  const std::vector<Buffer>& buffers() const { return buffers_; }
  /// The child of this name, or null.
  Module* child(std::string_view name) const;
  /// The buffer of this name, or null.
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
  /// Of a chunk list: the chunks' own, of which refit_tensor_cache_ was made.
  std::vector<std::shared_ptr<const TensorDict>> chunk_caches_;
  std::vector<std::uint64_t>
      chunk_ids_;                       ///< of a chunk list: its chunks, whatever their addresses.
  std::shared_ptr<Module> chunk_list_;  ///< whose first chunk this is.
};

/// A module of the tree and its dotted path; "" for the root.
struct NamedModule {
  std::string name;
  Module* module;
};
/// The tree depth first: a module before its children, those in the order in which they were added.
/// One that stands twice is there once.
std::vector<NamedModule> named_modules(Module& module);

/// Parameters of all modules in that order; a tensor that stands twice is there once.
std::vector<NamedTensor> named_parameters(Module& module);

struct NamedBuffer {
  std::string full_name;
  Module* parent;
  std::string name;
  TensorPtr tensor;
};
/// Every persistent buffer; the others hold what a training step forgets.
std::vector<NamedBuffer> named_persistent_buffers(Module& module);

/// Every parameter, then every persistent buffer: what travels in a refit.
std::vector<NamedTensor> named_refit_tensors(Module& module);

/// The same by name, made at the first call and kept on the module: equal pointers until
/// invalidate_refit_tensor_cache(), which whoever replaces a buffer calls.
std::shared_ptr<const TensorDict> get_refit_tensor_dict(Module& module);
void invalidate_refit_tensor_cache(Module& module);

/// The chunks of a virtual pipeline as one module with the children "model0", "model1", ..., in
/// this order; groups and config are those of the first, as they are now. It is kept on the first
/// chunk: the same for the same list. Errors: a chunk that stands twice; one whose groups differ
/// from those of the first. @pre several chunks, none null, each with a pg_collection
Result<Module*> chunk_list(const std::vector<Module*>& chunks);

/// The model inside its wrappers. Errors: a wrapper without the child "module".
Result<Module*> unwrap_model(Module& module);

}  // namespace reshard::megatron
