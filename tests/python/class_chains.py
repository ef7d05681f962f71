# SPDX-License-Identifier: Apache-2.0
"""What classes go through between two Hugging Face checkpoints, and what does not come back from where."""

import functools
import json
import re

from reshard.learn.models.bases import MEGATRON, Base
from reshard.learn.models.stored import STORED

import program

#: In this order; what comes last has the fewest names of its own.
FRAMEWORKS = ("megatron", "vllm", "sglang", "fsdp")
_SIZES = {
  "megatron": ({"tp": 2, "pp": 2}, {"tp": 2, "pp": 2, "ep": 4, "etp": 1, "dp": 2}),
  "vllm": ({"tp": 2, "pp": 2}, {"tp": 2, "pp": 2, "ep": 2}),
  "sglang": ({"tp": 2, "pp": 2}, {"tp": 2, "pp": 2, "ep": 2}),
  "fsdp": ({"shard": 3}, {"shard": 3}),
}

#: Frameworks whose modules round a class's weights, and what the program says when it converts to them.
ROUNDED = {
  # SGLang's loader adds 1 to the weights of these norms, in the model's dtype.
  ("GemmaForCausalLM", "sglang"): "converts 9 tensors from BF16 to BF16 as plus_one (loses precision)",
  ("MuseGlimmerForConditionalGeneration", "sglang"): "converts 16 tensors from BF16 to BF16 as plus_one (loses precision)",
  # Its router has the model's dtype in SGLang, and in Megatron-Core unless the trainer has F32 weights.
  ("Ernie4_5_MoeForCausalLM", "sglang"): "converts 6 tensors from F32 to BF16 (loses precision)",
}  # fmt: skip
#: What a notation needs more, so that nothing is rounded.
_MORE = {("Ernie4_5_MoeForCausalLM", "megatron"): {"dtype": "float32"}}

# Of a tower, LLaVA's classes in vLLM hold the layers up to the one whose result the model takes.
_LAST = ("vision_tower.vision_model.encoder.layers.2.*", "vision_tower.vision_model.post_layernorm.*")
#: Tensors that no rank of a framework holds, as patterns of --ignore.
LEFT_OUT = {
  # The pooling heads of towers, which published checkpoints do not have.
  ("Cohere2VisionForConditionalGeneration", "vllm"): ("model.vision_tower.vision_model.head.*",),
  ("LlavaForConditionalGeneration", "vllm"): _LAST,
  ("LlavaNextForConditionalGeneration", "vllm"): _LAST,
  ("LlavaNextVideoForConditionalGeneration", "vllm"): ("image_newline", *_LAST),
  # The norm behind a tower, whose result vLLM does not use.
  ("LlavaOnevisionForConditionalGeneration", "vllm"): ("vision_tower.vision_model.post_layernorm.*",),
  # The correction bias of the router, which vLLM does not load.
  ("LagunaForCausalLM", "vllm"): ("model.layers.#.mlp.experts.e_score_correction_bias",),
}
#: The same of forms: modules for multi-token prediction, which only Megatron-Core's modules have.
_OF_FORMS = {
  "multi-token prediction": ("mtp.*",),
  "experts in one tensor and multi-token prediction": ("mtp.*",),
  "multi-token prediction left out": ("model.layers.4.*",),
}

@functools.cache
def _said():
  return json.loads(program.run("models", "--json").stdout)["models"]


def known():
  """{class: the frameworks that know it}, of classes that at least two know."""
  found = {c["class"]: [f for f in FRAMEWORKS if c["layouts"][f]["known"]] for c in _said()}
  return {name: frameworks for name, frameworks in found.items() if len(frameworks) > 1}


def forms_of(name):
  """{what is other in it: a form of the class's published checkpoints}, of those that transformers does not write."""
  types = next(c["model_types"] for c in _said() if c["class"] == name)
  return {form.said: form for of in types for form in STORED.get(of, ())}


def of_form(name, form, frameworks):
  """Those of the frameworks whose cards read the class's checkpoints of this form; SGLang's read no other form."""
  forms = forms_of(name)
  alone = {f for said, one in forms.items() if said != form for f in one.alone}
  if form is not None:
    alone |= {"sglang"} | set(frameworks) - set(forms[form].only or frameworks)
  return [f for f in frameworks if f not in alone]


def notation(framework, sizes):
  return f"{framework}:" + ",".join(f"{k}={v}" for k, v in sizes.items())


def simplest(framework):
  return notation(framework, {"shard": 1} if framework == "fsdp" else {"tp": 1})


def converted(name, framework, experts, at, out, ignored=(), lacked=()):
  """Converts a folder to a layout of the framework: what cuts most of what it knows. Returns (notation, report).

  Keys that the card of the class wants to be 1, and says so, are left out; what was left out before (`lacked`) is left out
  where the card says that it is missing. Nothing else may be refused.
  """
  sizes = _SIZES[framework][experts] | _MORE.get((name, framework), {})
  while True:
    layout = notation(framework, sizes)
    done = program.run("convert", at, out, "--to", layout, *ignored)
    if done.returncode == 0:
      return layout, done.stdout
    if lacked and "missing from the model" in done.stderr:
      ignored, lacked = lacked, ()
      continue
    unknown = re.findall(r"\b(pp|ep) must be 1\b", done.stderr)
    assert unknown and set(unknown) <= sizes.keys(), f"{layout}:\n{done.stdout}{done.stderr}"
    sizes = {k: v for k, v in sizes.items() if k not in unknown}


def left_out(name, form, framework):
  """The patterns of what the framework leaves out of the class's checkpoints of this form; None: nothing."""
  found = LEFT_OUT.get((name, framework))
  return _OF_FORMS.get(form) if found is None and framework != "megatron" else found


def matches(patterns, name):
  """As --ignore: "*" is any text, "#" a number."""
  return any(re.fullmatch(re.escape(p).replace(r"\#", r"\d+").replace(r"\*", ".*"), name) for p in patterns)


def base_of(name):
  """The small models of the class that Megatron-Bridge has modules for, if it wants something of them."""
  proof = next(c["layouts"]["megatron"].get("proof", "") for c in _said() if c["class"] == name)
  return next((base for base in MEGATRON if (base.flag or base.kv_heads) and base.begins(proof)), Base())


def without_loss(name, frameworks, form=None):
  """Those of the frameworks that keep all that they read."""
  return [f for f in of_form(name, form, frameworks) if (name, f) not in ROUNDED and not left_out(name, form, f)]
