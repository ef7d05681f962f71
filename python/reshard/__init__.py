# SPDX-License-Identifier: Apache-2.0
"""reshard moves the weights of a language model from any parallel layout to any other.

    model = reshard.open_model("qwen3-30b-a3b")
    source = reshard.layout("megatron:tp=4,ep=8,etp=1", model)
    target = reshard.layout("vllm:tp=8,offset=8", model)
    plan = reshard.plan(source, target)
    print(plan)

docs/python.md begins with an installation and ends with a refit that is verified.
"""

import importlib
from typing import TYPE_CHECKING, Any

from reshard import _exit as _exit
from reshard import delta as delta
from reshard._core import (
  Box,
  CanonicalTensor,
  Checkpoint,
  ConversionCounts,
  ConversionRow,
  ConversionUse,
  ConvertReport,
  DType,
  FileLeftOut,
  Fragment,
  InProcessRefit,
  KindInLayout,
  Launched,
  LayerKind,
  Layout,
  LayoutBuilder,
  LayoutDifference,
  LocalTensor,
  Model,
  ModelConfig,
  ModelFingerprints,
  ModelSpec,
  PeerVolume,
  PendingRefit,
  PlacedBox,
  Plan,
  Prediction,
  ProcessGroup,
  PublishedVersion,
  QuantisedMatrix,
  RankBuffers,
  RankPlan,
  RefitReport,
  Session,
  SessionReport,
  SynthesizeReport,
  TargetVersion,
  Tensor,
  TensorDifference,
  TensorKind,
  Transfer,
  TransportStatus,
  VerifiedCheckpoint,
  VerifyReport,
  amax,
  cluster_names,
  compare_fingerprints,
  convert,
  copy_ceiling,
  dequantise,
  diff,
  dtensor_layout,
  example_names,
  explain_layout,
  explicit_layout,
  find_transport,
  fingerprints,
  join,
  launched,
  layout,
  load_weights,
  local,
  open_model,
  plan,
  quantise,
  quantise_layout,
  rules_layout,
  synthesize,
  tensor_kinds,
  transport_names,
  transports,
  verify,
  why_no_gpu,
)
from reshard._core import __version__ as __version__
from reshard._errors import (
  AbortedError,
  CorruptError,
  DeadlineError,
  Error,
  InvalidArgumentError,
  IoError,
  NotFoundError,
  UnsupportedError,
)
from reshard._explain import explain
from reshard._figures.sweep import Sweep, sweep
from reshard._ray import from_ray
from reshard._rendezvous import from_store, from_torch
from reshard.fleet.member import Fleet, FleetReport

__all__ = [
  "AbortedError",
  "Box",
  "CanonicalTensor",
  "Checkpoint",
  "ConversionCounts",
  "ConversionRow",
  "ConversionUse",
  "ConvertReport",
  "CorruptError",
  "DType",
  "DeadlineError",
  "Error",
  "FileLeftOut",
  "Fleet",
  "FleetReport",
  "Fragment",
  "InProcessRefit",
  "InvalidArgumentError",
  "IoError",
  "KindInLayout",
  "Launched",
  "LayerKind",
  "Layout",
  "LayoutBuilder",
  "LayoutDifference",
  "LocalTensor",
  "Model",
  "ModelConfig",
  "ModelFingerprints",
  "ModelSpec",
  "NotFoundError",
  "PeerVolume",
  "PendingRefit",
  "PlacedBox",
  "Plan",
  "Prediction",
  "ProcessGroup",
  "PublishedVersion",
  "QuantisedMatrix",
  "RankBuffers",
  "RankPlan",
  "RefitReport",
  "Session",
  "SessionReport",
  "Sweep",
  "SynthesizeReport",
  "TargetVersion",
  "Tensor",
  "TensorDifference",
  "TensorKind",
  "Transfer",
  "TransportStatus",
  "UnsupportedError",
  "VerifiedCheckpoint",
  "VerifyReport",
  "amax",
  "cluster_names",
  "compare_fingerprints",
  "convert",
  "copy_ceiling",
  "delta",
  "dequantise",
  "diff",
  "dtensor_layout",
  "example_names",
  "explain",
  "explain_layout",
  "explicit_layout",
  "find_transport",
  "fingerprints",
  "from_ray",
  "from_store",
  "from_torch",
  "join",
  "launched",
  "layout",
  "load_weights",
  "local",
  "model_of",
  "module_tensors",
  "of_dtensors",
  "of_modules",
  "open_model",
  "plan",
  "quantise",
  "quantise_layout",
  "rules_layout",
  "sweep",
  "synthesize",
  "tensor_kinds",
  "traced",
  "transport_names",
  "transports",
  "verify",
  "why_no_gpu",
]

if TYPE_CHECKING:
  from reshard._model_of import model_of
  from reshard.live import module_tensors, of_dtensors, of_modules
  from reshard.tracing import traced

# What needs torch, and where it is.
_WITH_TORCH = {
  "model_of": "reshard._model_of",
  "module_tensors": "reshard.live",
  "of_dtensors": "reshard.live",
  "of_modules": "reshard.live",
  "traced": "reshard.tracing",
}


def __getattr__(name: str) -> Any:
  """What needs torch is imported when it is used first."""
  if name in _WITH_TORCH:
    return getattr(importlib.import_module(_WITH_TORCH[name]), name)
  raise AttributeError(f"module 'reshard' has no attribute '{name}'")
