# SPDX-License-Identifier: Apache-2.0
"""Command lines, layouts, configs and rules that the program must refuse."""

from bad_input import case, config_file, rules_file, text_file

PLAN = "plan --model llama-3.1-8b "
MOE = "plan --model demo-moe "
RULES = "plan --model {hf} --from hf --to rules:{d}/rules.json"

RUN = "run --model demo-moe --from megatron:tp=2 --to vllm:tp=2,offset=2 "
JOIN = RUN + "--transport shm --rendezvous "


def processes_usage():
    """Options of `run` over processes that do not fit together."""
    table = (
        ("unknown transport", RUN + "--transport tcp", "'tcp'", "shm, mpi, gloo or ucx"),
        ("nccl", RUN + "--transport nccl", "nccl", "GPUs", "host memory"),
        ("spawn inproc", RUN + "--spawn", "--spawn", "inproc", "in this process"),
        ("join inproc", RUN + "--rendezvous file:///x", "--rendezvous", "in this process"),
        ("interface inproc", RUN + "--interface lo", "--interface", "in this process"),
        ("deadline inproc", RUN + "--deadline 3", "--deadline", "in this process"),
        ("spawn mpi", RUN + "--transport mpi --spawn", "--spawn", "mpirun"),
        ("deadline 0", RUN + "--transport shm --deadline 0", "'0'", "seconds from 0.001"),
        ("deadline text", RUN + "--transport shm --deadline 1s", "'1s'", "number of seconds"),
        ("ranks alone", RUN + "--transport shm --ranks 0", "--ranks requires --rendezvous"),
        ("role alone", RUN + "--transport shm --role source", "--role requires"),
        ("secret alone", RUN + "--transport shm --secret-file {d}/s", "requires --rendezvous"),
        ("job alone", RUN + "--transport shm --job x", "--job requires --rendezvous"),
        ("unknown role", JOIN + "file:///x --ranks 0 --role x", "'x'", "source or target"),
        ("ranks backwards", JOIN + "file:///x --ranks 3-1", "'1'", "from 3 to"),
        ("ranks no number", JOIN + "file:///x --ranks a-b", "'a'", "whole number"),
        ("ranks open", JOIN + "file:///x --ranks 1-", "''", "whole number"),
        ("tcp without secret", JOIN + "tcp://h:1 --ranks 0", "--secret-file", "nobody else"),
        ("other rendezvous", JOIN + "http://h:1 --ranks 0", "'http://h:1'", "tcp://HOST:PORT"),
        ("relative folder", JOIN + "file://x --ranks 0", "'file://x'", "file:///FOLDER"),
    )
    return [case(name, arguments, *words, code=2) for name, arguments, *words in table]


PLACES = [
    case("rank beyond", JOIN + "file:///x --ranks 4 --spawn", "--ranks 4-4", "ranks 0 to 3", code=2),
    case("role of other", JOIN + "file:///x --ranks 1-2 --role source", "rank 2", "target", code=2),
    case("role of source", JOIN + "file:///x --ranks 0-1 --role target", "rank 0", "source", code=2),
    case("several by hand", JOIN + "file:///x --ranks 0-1", "2 processes", "mpirun -n 2", code=2),
    case("nobody else", RUN + "--transport shm", "ranks 0 to 3", "--spawn", "mpirun -n 4", code=2),
    case("a bad job", JOIN + "file:///x --ranks 0 --job a/b", "job name", code=2),
    case("no folder", JOIN + "file:///nowhere/x --ranks 0 --deadline 0.2", "/nowhere/x"),
    case(
        "torchrun alone",
        RUN + "--transport shm",
        "torchrun",
        "--rendezvous",
        code=2, env={"RANK": "0", "WORLD_SIZE": "4"},
    ),
    case(
        "one rank alone",
        "run --model demo-moe --from hf --to vllm:tp=1 --transport shm",
        "one process",
        "--spawn", code=2,
    ),
    case("half a launcher", RUN + "--transport shm", "WORLD_SIZE", code=2, env={"RANK": "0"}),
]

USAGE = [
    case("no command", "", "command is missing", "plan, explain, run, convert", code=2),
    case("unknown command", "reshape", "unknown command 'reshape'", "convert", code=2),
    case("missing option", PLAN + "--from hf", "--to is required", "plan --help", code=2),
    case("unknown option", PLAN + "--from hf --to hf --fast", "--fast", "plan --help", code=2),
    case("misspelt option", PLAN + "--form hf --to hf", "--form (did you mean '--from'?)", code=2),
    case("misspelt command", "plna", "'plna' (did you mean 'plan'?)", code=2),
    case("misspelt family", PLAN + "--from hf --to vlm:tp=2", "(did you mean 'vllm'?)", code=2),
    case("misspelt word", RUN + "--path mesage", "(did you mean 'message'?)", code=2),
    case("misspelt example", "inspect lama-3.1-8b", "(did you mean 'llama-3.1-8b'?)"),
    case("a model of the hub", "inspect Qwen/Qwen3-8B", "hf download Qwen/Qwen3-8B", "qwen3-4b"),
    case("missing output", "convert {hf} --to hf", "OUT is required", code=2),
    case("one argument too many", "convert {hf} {d}/out x --to hf", "not expected", "x", code=2),
    case("negative rank", PLAN + "--from hf --to hf --rank -1", "'-1'", "from 0 to", code=2),
    case("no threads", PLAN + "--from hf --to hf --threads 0", "'0'", "from 1 to", code=2),
    case(
        "no number",
        "run --model demo-moe --from hf --to hf --repeat x",
        "'x'",
        "whole number",
        code=2,
    ),
    case("negative seed", "synth demo-moe {d}/out --seed -3", "--seed", "'-3'", "from 0", code=2),
    case("no layers", "synth demo-moe {d}/out --layers 0", "--layers", "'0'", "from 1", code=2),
    case(
        "unknown unit", "convert {hf} {d}/out --to hf --buffer-bytes 3XB", "'3XB'", "64MiB", code=2
    ),
    case(
        "no bytes",
        "convert {hf} {d}/out --to hf --max-shard-bytes 0",
        "'0'",
        "number of bytes",
        code=2,
    ),
    case(
        "unknown path",
        "run --model demo-moe --from hf --to hf --path x",
        "'x'",
        "direct or message",
        code=2,
    ),
    *processes_usage(),
    case("dot and json", PLAN + "--from hf --to hf --dot --json", "--json excludes --dot", code=2),
    case(
        "transfers of no rank", PLAN + "--from hf --to hf --transfers 3", "requires --rank", code=2
    ),
    case(
        "unknown family",
        PLAN + "--from hf --to deepspeed:tp=2",
        "'deepspeed'",
        "hf, megatron, vllm, ",
        code=2,
    ),
    case(
        "key without value", PLAN + "--from hf --to megatron:tp", "'tp' must be key=value", code=2
    ),
    case("a key twice", PLAN + "--from hf --to megatron:tp=2,tp=4", "'tp' is given twice", code=2),
    case("rules without a file", PLAN + "--from hf --to rules", "rules:cut.json", code=2),
    case(
        "dtensor without a file", PLAN + "--from hf --to dtensor", "dtensor:cut.json", code=2
    ),
    case(
        "layout without family",
        PLAN + "--from hf --to :tp=2",
        "names no family",
        "megatron:tp=4",
        code=2,
    ),
]

LAYOUTS = [
    case("tp of heads", PLAN + "--from hf --to megatron:tp=3", "tp=3", "num_attention_heads=32", code=2),
    case("tp of heads, vllm", PLAN + "--from hf --to vllm:tp=5", "tp=5", "=32", code=2),
    case("tp 0", PLAN + "--from hf --to megatron:tp=0", "tp=0", "from 1 to", code=2),
    case("tp negative", PLAN + "--from hf --to vllm:tp=-2", "tp=-2", "from 1 to", code=2),
    case("tp no number", PLAN + "--from hf --to vllm:tp=two", "tp=two", "whole number", code=2),
    case(
        "several things",
        PLAN + "--from hf --to vllm:tp=5,ep=3,pp=99",
        "tp=5 does not divide num_attention_heads=32; ",
        "ep=3 must be 1, tp=5",
        "pp=99 exceeds num_hidden_layers=32", code=2,
    ),
    case(
        "virtual stages of a hybrid",
        "plan --model nemotron-3-nano-30b-a3b --from hf --to megatron:pp=2,vpp=2",
        "vpp=2",
        "layout=", code=2,
    ),
    case(
        "pp of a hybrid",
        "plan --model nemotron-3-nano-30b-a3b --from hf --to megatron:pp=6",
        "pp=6 does not divide num_hidden_layers=52",
        "first=", code=2,
    ),
    case("unknown key", PLAN + "--from hf --to megatron:tq=2", "'tq'", "cp", "ep", code=2),
    case("unknown key of hf", PLAN + "--from hf:tp=2 --to hf", "'tp'", "shards", code=2),
    case(
        "pp of layers",
        PLAN + "--from hf --to megatron:pp=5",
        "pp=5",
        "num_hidden_layers=32",
        "first=", code=2,
    ),
    case(
        "first too large",
        PLAN + "--from hf --to megatron:pp=2,first=40",
        "first=40",
        "num_hidden_layers=32", code=2,
    ),
    case(
        "ep of a dense model", PLAN + "--from hf --to megatron:ep=2,etp=1,dp=2", "ep=2", "experts", code=2
    ),
    case("ep of experts", MOE + "--from hf --to megatron:ep=5,dp=5", "ep=5", "num_experts=32", code=2),
    case(
        "etp and ep of a stage",
        MOE + "--from hf --to megatron:tp=2,ep=4,dp=2",
        "etp*ep=8",
        "tp*cp*dp=4", code=2,
    ),
    case("vllm ep", MOE + "--from hf --to vllm:tp=2,ep=3", "ep=3", "tp", code=2),
    case(
        "unknown norms",
        PLAN + "--from hf --to megatron:norms=both",
        "norms=both",
        "fused, separate", code=2,
    ),
    case(
        "unknown order",
        PLAN + "--from hf --to megatron:order=pp-tp",
        "order=pp-tp",
        "tp-cp-ep-dp-pp", code=2,
    ),
    case("too many ranks", PLAN + "--from hf --to megatron:dp=1048577", "dp=1048577", "1048576", code=2),
    case("more ranks than are planned for", PLAN + "--from fsdp:shard=131073 --to vllm:tp=2",
         "131073 ranks together", "at most 131072"),
    case("rank in neither layout", PLAN + "--from hf --to vllm:tp=8 --rank 8", "rank 8", "{0-7}", code=2),
    case(
        "rank not in layout", "inspect llama-3.1-8b --layout vllm:tp=8 --rank 9", "rank 9", "{0-7}", code=2
    ),
    case(
        "rank of two layouts",
        "inspect llama-3.1-8b --rank 1 --layout vllm:tp=2 --layout vllm:tp=4",
        "--rank 1",
        "one --layout", code=2,
    ),
    case("rank of no layout", "inspect llama-3.1-8b --rank 1", "--layout", code=2),
    case(
        "unknown tensor to ignore",
        PLAN + "--from hf --to hf --ignore lm_hed.weight",
        "'lm_hed.weight'",
        "matches no tensor",
        "did you mean 'lm_head.weight'?",
    ),
    case(
        "unknown tensor to leave unquantised",
        PLAN + "--from hf --to vllm:tp=2,quant=fp8_block,quant_skip=lm_head+o_porj",
        "quant_skip=o_porj",
        "no tensor of the model",
        "did you mean 'o_proj'?",
    ),
    case(
        "more memory than there is",
        "run --model llama-3.1-405b --from hf --to vllm:tp=8,replicas=64",
        "are needed",
        "are available",
        "--layers",
    ),
    case(
        "message path, too many ranks",
        "run --model {hf}/config.json --from hf --to vllm:tp=2,replicas=300 --path message",
        "600 ranks",
        "512",
    ),
]

CONFIGS = [
    case("unknown model", "inspect llama-4", "'llama-4'", "no example", "llama-3.1-8b"),
    case(
        "config is not JSON",
        "inspect {d}/config.json",
        "config.json",
        "not JSON",
        "byte",
        prepare=text_file("config.json", '{"hidden_size": 64,'),
    ),
    case(
        "config is a list",
        "inspect {d}/config.json",
        "config.json",
        "object",
        prepare=text_file("config.json", "[]"),
    ),
    case(
        "config is empty",
        "inspect {d}/config.json",
        "config.json",
        "empty",
        prepare=text_file("config.json", ""),
    ),
    case(
        "no hidden size",
        "inspect {d}/config.json",
        "config.json",
        "hidden_size",
        "missing",
        prepare=config_file(hidden_size=None),
    ),
    case(
        "negative hidden size",
        "inspect {d}/config.json",
        "hidden_size",
        "-64",
        prepare=config_file(hidden_size=-64),
    ),
    case(
        "size as text",
        "inspect {d}/config.json",
        "vocab_size",
        "96",
        prepare=config_file(vocab_size="96"),
    ),
    case(
        "absurd size",
        "inspect {d}/config.json",
        "vocab_size",
        "9000000000000000000",
        prepare=config_file(vocab_size=9_000_000_000_000_000_000),
    ),
    case(
        "heads and kv heads",
        "inspect {d}/config.json",
        "num_key_value_heads",
        "4 with 3",
        prepare=config_file(num_key_value_heads=3),
    ),
    case(
        "unknown architecture",
        "inspect {d}/config.json",
        "MambaForCausalLM",
        "LlamaForCausalLM",
        "of any other, hf, fsdp, dtensor:FILE and rules:FILE take a checkpoint",
        prepare=config_file(architectures=["MambaForCausalLM"], model_type="mamba"),
    ),
    case(
        "unknown dtype of a config",
        "inspect {d}/config.json",
        "dtype",
        "bfloat17",
        prepare=config_file(torch_dtype="bfloat17"),
    ),
]

RULE_FILES = [
    case("no rules file", RULES, "rules.json", "does not exist"),
    case(
        "rules are not JSON", RULES, "rules.json", "not JSON", prepare=text_file("rules.json", "{")
    ),
    case("no rules", RULES, "rules.json", "rules is missing or empty", prepare=rules_file()),
    case(
        "unknown key in a rule",
        RULES,
        "rule 1",
        '"matches"',
        "match, shared, shape, apart, take, dims, each, pad, cuts, with, name, dtype",
        prepare=rules_file({"matches": "*"}),
    ),
    case(
        "unknown key in the file",
        RULES,
        "unknown key",
        "mesh",
        "axes, keys, require, dtype, rules",
        prepare=rules_file({"match": "*"}, mesh=[]),
    ),
    case(
        "unknown axis",
        RULES,
        "rule 1, cut 1",
        "ep",
        "(tp)",
        prepare=rules_file({"match": "*", "cuts": [{"dim": 0, "axes": ["ep"]}]}),
    ),
    case(
        "an axis twice",
        RULES,
        "rule 1, cut 2",
        "tp",
        "twice",
        prepare=rules_file(
            {"match": "*", "cuts": [{"dim": 0, "axes": ["tp"]}, {"dim": 1, "axes": ["tp"]}]}
        ),
    ),
    case(
        "too many wildcards",
        RULES,
        "rule 1",
        "5 of * and #",
        "4",
        prepare=rules_file({"match": "*.*.*.*.*"}),
    ),
    case(
        "dim out of range",
        RULES,
        "rule 1, cut 1",
        "dim",
        "-8 to 7",
        prepare=rules_file({"match": "*", "cuts": [{"dim": 9, "axes": ["tp"]}]}),
    ),
    case(
        "unknown cut rule",
        RULES,
        "rule 1, cut 1",
        "balanced, ceil, spread",
        prepare=rules_file({"match": "*", "cuts": [{"dim": 0, "axes": ["tp"], "rule": "even"}]}),
    ),
    case(
        "where without a number",
        RULES,
        "rule 1, where 1",
        "either at or number",
        prepare=rules_file({"match": "*", "where": [{"axis": "tp"}]}),
    ),
    case(
        "name of a group that there is not",
        RULES,
        "rule 1",
        "$2",
        "1 of * and #",
        prepare=rules_file({"match": "*", "name": "x.$2"}),
    ),
    case(
        "a tensor without a rule",
        RULES,
        "model.embed_tokens.weight",
        "no rule",
        "*",
        prepare=rules_file({"match": "model.layers.*"}),
    ),
    case(
        "a dimension that a tensor lacks",
        RULES,
        "tensor",
        "dimension 1",
        "has 1",
        code=2, prepare=rules_file({"match": "*", "cuts": [{"dim": 1, "axes": ["tp"]}]}),
    ),
    case(
        "a place outside an axis",
        RULES,
        "pp=5",
        "size 2",
        code=2, prepare=rules_file(
            {"match": "*", "where": [{"axis": "pp", "at": 5}]}, axes=({"name": "pp", "size": 2},)
        ),
    ),
    case(
        "two tensors of one name",
        RULES,
        "'x'",
        "two tensors",
        code=2, prepare=rules_file({"match": "*", "name": "x"}),
    ),
]

CASES = USAGE + PLACES + LAYOUTS + CONFIGS + RULE_FILES
