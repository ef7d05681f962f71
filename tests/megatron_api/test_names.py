# SPDX-License-Identifier: Apache-2.0
"""docs/megatron_api.md has every public name of core.resharding's documents once; what it says is here is declared and tested."""

import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).parents[2]
DOC = ROOT / "docs" / "megatron_api.md"
CODE = ROOT / "reshard" / "megatron"

# The names in the documents' own order: functions, classes and their members, data.
NAMES = {
  "refit": """RefitBackendName _PlanCacheKey _PlanCacheKey.rank _PlanCacheKey.src_config
    _PlanCacheKey.dst_config _PlanCacheKey.num_experts _PlanCacheKey.src_rank_offset
    _PlanCacheKey.dst_rank_offset _get_config_tuple _build_plan_cache_key _service_cache _plan_cache
    get_or_create_service clear_service_cache clear_plan_cache clear_all_caches
    _unwrap_model_cores _build_or_get_plan _needs_mxfp8_conversion _setup_mxfp8_transform_on_plan
    prepare_swap_model_weights swap_model_weights _harmonize_buffer_dtypes reshard_model_weights""",
  "utils": """TransferOp TransferOp.param_name TransferOp.peer_rank TransferOp.is_send TransferOp.my_slice
    TransferOp.peer_slice TransferOp.task_id ParameterMetadata ParameterMetadata.name
    ParameterMetadata.shape ParameterMetadata.dtype ParameterMetadata.element_size
    ParameterMetadata.is_tp ParameterMetadata.partition_dim ParameterMetadata.partition_stride
    ParameterMetadata.partition_sizes ParameterMetadata.is_ep ParameterMetadata.num_experts
    ParameterMetadata.owner_rank ParameterMetadata.tensor_parallel_group_ranks
    ParameterMetadata.expert_parallel_group_ranks ParameterMetadata.data_parallel_group_ranks
    ParameterMetadata.pipeline_parallel_group_ranks ParameterMetadata.resolved_name
    ParameterMetadata.global_expert_index ShardingDescriptor ShardingDescriptor.name
    ShardingDescriptor.dim ShardingDescriptor.src_stride ShardingDescriptor.dst_stride
    ShardingDescriptor.src_dim_ranks ShardingDescriptor.dst_dim_ranks ReshardPlan ReshardPlan.send_ops
    ReshardPlan.recv_ops ReshardPlan.transform ReshardPlan.buffer_dtypes ReshardPlan.__str__
    _get_rank_in_group _EXPERT_PARAM_RE _detect_expert_index_from_param_name
    assign_ep_resolved_name_inplace assign_resolved_name_inplace named_persistent_buffers
    named_refit_tensors _REFIT_TENSOR_CACHE_ATTR get_refit_tensor_dict invalidate_refit_tensor_cache
    _build_layer_module_prefix_map _resolve_global_layer_number_in_name extract_param_metadata
    _filter_by_ep_local_rank _round_robin_dp select_src_metadata_balanced""",
  "transforms": """ReshardTransform ReshardTransform.should_transform ReshardTransform.prepare_send
    ReshardTransform.prepare_recv ReshardTransform.finalize_recv _scale_slice_from_data_slice
    _ensure_sendable MXFP8ReshardTransform MXFP8ReshardTransform.should_transform
    MXFP8ReshardTransform.prepare_send MXFP8ReshardTransform.prepare_recv
    MXFP8ReshardTransform.finalize_recv""",
  "planner": """logger _build_descriptors_for_param _plan_multi_dim_lcm _finalize_dp_transfers
    _determine_source_ranks_for_dst_param build_centralized_reshard_plan""",
}
# The name of nothing here: the library prints nothing.
NOWHERE = "logger"


def tables():
  """{module: rows of its table}; a row is the list of its cells, code spans without backquotes."""
  found, module = {}, None
  for line in DOC.read_text().splitlines():
    if line.startswith("## "):
      module = line.removeprefix("## core.resharding.")
    elif line.startswith("| `"):
      found.setdefault(module, []).append([c.strip().strip("`") for c in line.split("|")[1:-1]])
  return found


def sources(of_tests):
  is_test = re.compile(r"_test(util)?\.(h|cc)$")
  folders = [CODE, ROOT / "reshard" / "model", ROOT / "reshard" / "plan"]
  files = [f for folder in folders for f in sorted(folder.rglob("*.h" if not of_tests else "*_test*.*"))]
  return "\n".join(f.read_text() for f in files if bool(is_test.search(f.name)) == of_tests)


class Names(unittest.TestCase):
  def test_the_tables_have_the_names_of_the_documents(self):
    rows = tables()
    for module, names in NAMES.items():
      self.assertEqual([row[0] for row in rows[module]], names.split(), module)

  def test_rows_say_what_a_name_does_and_what_differs(self):
    for module in NAMES:
      for row in tables()[module]:
        self.assertEqual(len(row), 4, row)
        self.assertTrue(all(row), row)

  def test_what_is_here_is_declared_and_tested(self):
    declared, tested = sources(False), sources(True)
    names = {row[1] for rows in tables().values() for row in rows if row[0] != NOWHERE}
    for where, text in (("declared", declared), ("tested", tested)):
      missing = [n for n in sorted(names) if not re.search(rf"\b{re.escape(n)}\b", text)]
      self.assertEqual(missing, [], f"not {where}")

  def test_tests_name_the_document_of_each_sentence(self):
    tested = sources(True)
    for module in NAMES:
      self.assertGreater(len(re.findall(rf'// {module}[:,] ', tested)), 2, module)


if __name__ == "__main__":
  unittest.main()
