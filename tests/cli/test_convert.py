# SPDX-License-Identifier: Apache-2.0
"""What convert promises besides right bytes: whole or nothing, resumable, with a model's files."""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import unittest

import program


class Convert(unittest.TestCase):
    def setUp(self):
        self.d = pathlib.Path(tempfile.mkdtemp(prefix="reshard-convert-"))
        self.addCleanup(shutil.rmtree, self.d)

    def checkpoint(self, config, name="in", **more):
        path = program.write_json(self.d / f"{name}.json", config | more)
        program.done("synth", path, self.d / name)
        return self.d / name

    def convert(self, source, name, *arguments):
        program.done("convert", source, self.d / name, *arguments)
        return self.d / name

    def test_there_and_back_through_ranks(self):
        source = self.checkpoint(program.MOE)
        trainer = self.convert(source, "trainer", "--to", "megatron:tp=2,pp=2,ep=2,etp=1")
        engine = self.convert(
            trainer, "engine", "--from", "megatron:etp=1,ep=2,pp=2,tp=2", "--to", "vllm:tp=4"
        )
        back = self.convert(engine, "back", "--to", "hf")
        self.assertEqual(program.files_of(back), program.files_of(source))
        program.done("verify", source, engine)
        program.done("verify", trainer, engine)

    def test_a_prefix_chooses_the_names_of_a_distributed_checkpoint(self):
        source = self.checkpoint(program.LLAMA)
        for name, to in (("dcp", "dcp:shard=2"), ("pieces", "dcp:shard=2,format=safetensors")):
            dcp = self.convert(source, name, "--to", to)
            (dcp / "config.json").unlink()
            program.done("verify", source, dcp)
            layer = ("--prefix", "model.layers.0.")
            shown = json.loads(program.done("inspect", dcp, "--json", *layer))
            self.assertEqual(shown["tensors"], 9)
            out = self.convert(dcp, name + "-layer", "--to", "hf", *layer)
            left = program.read_safetensors(out / "model.safetensors")
            whole = program.read_safetensors(source / "model.safetensors")
            begin = layer[1]
            of_layer = {n[len(begin) :]: t for n, t in whole.items() if n.startswith(begin)}
            self.assertEqual(left, of_layer)
            program.done("verify", dcp, out, *layer)
        result = program.run("inspect", source, *layer)
        self.assertEqual(result.returncode, 2)
        self.assertIn("torch.distributed.checkpoint only", result.stderr)

    def test_quantised_weights_are_not_written_as_distributed_checkpoints(self):
        source = self.checkpoint(program.LLAMA)
        for to in ("dcp:shard=2,quant=fp8_channel", "torch_dist:quant=fp8_channel"):
            result = program.run("convert", source, self.d / "out", "--to", to)
            self.assertEqual(result.returncode, 2, to)
            self.assertIn("quant is a key of hf, megatron, vllm, sglang and explicit", result.stderr)
            self.assertFalse((self.d / "out").exists())

    def test_the_index_of_ranks(self):
        out = self.convert(self.checkpoint(program.LLAMA), "out", "--to", "megatron:tp=2,dp=2")
        index = json.loads((out / "reshard.json").read_text())
        self.assertEqual(index["format"], "reshard-checkpoint")
        self.assertEqual(index["version"], 1)
        self.assertEqual(index["layout"], "megatron:dp=2,tp=2")
        self.assertEqual(index["world_size"], 4)
        files = [entry["file"] for entry in index["ranks"]]
        self.assertEqual([entry["rank"] for entry in index["ranks"]], [0, 1, 2, 3])
        self.assertEqual(files[0], files[2], "ranks that hold the same share a file")
        self.assertEqual(files[1], files[3], "ranks that hold the same share a file")
        self.assertNotEqual(files[0], files[1])
        self.assertEqual({path.name for path in out.glob("*.safetensors")}, set(files))
        self.assertEqual(len(index["tensors"]), 2 * 9 + 3)
        self.assertEqual(
            index["tensors"][0],
            {"name": "model.embed_tokens.weight", "dtype": "BF16", "shape": [96, 64]},
        )

    def test_shards_of_hf(self):
        source = self.checkpoint(program.LLAMA)
        whole = program.read_safetensors(source / "model.safetensors")
        total = sum(len(data) for _, _, data in whole.values())
        for arguments, most in (
            (("hf:shards=3",), None),
            (("hf", "--max-shard-bytes", "40kB"), 40_000),
        ):
            out = self.convert(source, f"out-{len(arguments)}", "--to", *arguments)
            index = json.loads((out / "model.safetensors.index.json").read_text())
            self.assertEqual(index["metadata"]["total_size"], total)
            files = sorted(path.name for path in out.glob("*.safetensors"))
            self.assertGreater(len(files), 2)
            self.assertEqual(files[0], f"model-00001-of-{len(files):05}.safetensors")
            together = {}
            for file in files:
                tensors = program.read_safetensors(out / file)
                self.assertEqual({index["weight_map"][name] for name in tensors}, {file})
                if most:
                    self.assertLessEqual(sum(len(data) for _, _, data in tensors.values()), most)
                together |= tensors
            self.assertEqual(together, whole)
            back = self.convert(out, f"back-{len(arguments)}", "--from", "hf", "--to", "hf")
            self.assertEqual(
                (back / "model.safetensors").read_bytes(),
                (source / "model.safetensors").read_bytes(),
            )

    def with_strays(self, source, name, strays, indexed=False):
        """A copy of a checkpoint with more tensors."""
        folder = shutil.copytree(source, self.d / name)
        tensors = program.read_safetensors(source / "model.safetensors")
        more = {stray: ("F32", [2], b"strays!!") for stray in strays}
        program.write_safetensors(folder / "model.safetensors", tensors | more)
        return folder

    def test_buffers_that_all_loaders_skip_do_not_make_a_checkpoint_unreadable(self):
        source = self.checkpoint(program.LLAMA)
        right = self.convert(source, "right", "--to", "vllm:tp=2")
        names = [f"model.layers.{i}.self_attn.rotary_emb.inv_freq" for i in range(2)]
        old = self.with_strays(source, "old", names)
        report = program.done("convert", old, self.d / "out", "--to", "vllm:tp=2")
        self.assertEqual(program.files_of(self.d / "out"), program.files_of(right))
        said = f"2 tensors of the checkpoint left out, such as '{names[0]}'"
        self.assertIn(said, report)
        plan = ("--model", old, "--from", "megatron:tp=2", "--to", "vllm:tp=2")
        self.assertIn(said, program.done("plan", *plan))
        self.assertIn(said, program.done("run", *plan, "--verify"))
        self.assertIn(said, program.done("inspect", old))
        self.assertIn("2 tensors not compared", program.done("verify", old, source))

    def test_what_a_config_does_not_name_is_left_out_when_it_is_to_be_ignored(self):
        source = self.checkpoint(program.LLAMA)
        strays = ["model.layers.0.extra.weight", "model.layers.1.extra.weight", "vision.tower"]
        more = self.with_strays(source, "more", strays)
        commands = [
            ("convert", more, self.d / "out", "--to", "hf"),
            ("plan", "--model", more, "--from", "hf", "--to", "vllm:tp=2"),
            ("run", "--model", more, "--from", "hf", "--to", "vllm:tp=2", "--verify"),
            ("verify", more, source),
        ]
        ignore = ("--ignore", "model.layers.#.extra.weight", "--ignore", "vision.*")
        for command in commands:
            result = program.run(*command)
            self.assertEqual(result.returncode, 1 if command[0] == "verify" else 2, command)
            shown = program.done(*command, *ignore)
            self.assertIn("3 tensors", shown, command)
        inspected = json.loads(program.done("inspect", more, "--json", *ignore))
        self.assertEqual(inspected["left_out"], sorted(strays))
        self.assertEqual(program.files_of(self.d / "out"), program.files_of(source))
        result = program.run(*commands[0], *ignore, "--ignore", "visoin.*")
        self.assertEqual(result.returncode, 1)
        self.assertIn("'visoin.*'", result.stderr)

    def test_what_is_ignored_of_an_unknown_architecture_is_left_out(self):
        source = self.checkpoint(program.LLAMA)
        (source / "config.json").unlink()
        out = self.d / "out"
        program.done("convert", source, out, "--to", "hf", "--ignore", "model.layers.1.*")
        left = program.read_safetensors(out / "model.safetensors")
        whole = program.read_safetensors(source / "model.safetensors")
        self.assertEqual(left, {n: t for n, t in whole.items() if ".layers.1." not in n})

    def with_cache_scales(self):
        source = self.checkpoint(program.LLAMA)
        tensors = program.read_safetensors(source / "model.safetensors")
        for layer in range(2):
            for scale in "kv":
                name = f"model.layers.{layer}.self_attn.{scale}_proj.{scale}_scale"
                tensors[name] = ("F32", [], b"\0\0\x80\x3f")
        program.write_safetensors(source / "model.safetensors", tensors)
        return source

    def test_an_engine_keeps_its_own_scales_of_kv_caches_where_a_trainer_has_none(self):
        source = self.with_cache_scales()
        plan = ("--model", source, "--from", "megatron:tp=2", "--to", "vllm:tp=2")
        for command in (("plan", *plan), ("run", *plan, "--verify")):
            report = program.done(*command)
            self.assertIn("keeps its own 4 scales of KV caches, which megatron:tp=2 does not", report)
        run = ("run", *plan, "--transport", "shm", "--spawn", "--verify")
        self.assertIn("keeps its own 4 scales", program.done(*run))

    def test_scales_of_kv_caches_that_a_layout_leaves_out_are_said_when_it_is_written(self):
        report = program.done(
            "convert", self.with_cache_scales(), self.d / "out", "--to", "megatron:tp=2"
        )
        self.assertIn("left out 4 tensors, which megatron:tp=2 does not hold", report)

    def test_a_tied_model_that_stores_its_head_too(self):
        source = self.checkpoint(program.LLAMA, tie_word_embeddings=True)
        path = source / "model.safetensors"
        plain = path.read_bytes()
        tensors = program.read_safetensors(path)
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
        program.write_safetensors(path, tensors)
        out = self.convert(source, "out", "--to", "hf")
        self.assertEqual((out / "model.safetensors").read_bytes(), plain)

    def test_rules_travel_with_the_checkpoint(self):
        source = self.checkpoint(program.LLAMA)
        rules = {
            "axes": [{"name": "tp", "size": 2}, {"name": "pp", "size": 2}],
            "rules": [
                {
                    "match": "model.layers.#.*_proj.weight",
                    "cuts": [{"dim": -1, "axes": ["tp"]}],
                    "where": [{"axis": "pp", "number": 1}],
                },
                {"match": "*"},
            ],
        }
        program.write_json(self.d / "cut.json", rules)
        ranks = self.convert(source, "ranks", "--to", f"rules:{self.d / 'cut.json'}")
        (self.d / "cut.json").unlink()
        back = self.convert(ranks, "back", "--to", "hf")
        self.assertEqual(program.files_of(back), program.files_of(source))

    def test_rules_serve_models_of_unknown_architecture(self):
        source = self.checkpoint(program.LLAMA)
        config = json.loads((source / "config.json").read_text())
        program.write_json(
            source / "config.json",
            config | {"architectures": ["NewForCausalLM"], "model_type": "new"},
        )
        rules = {
            "axes": [{"name": "tp", "size": 3}],
            "rules": [
                {"match": "*embed*", "cuts": [{"dim": 0, "axes": ["tp"], "rule": "ceil"}]},
                {"match": "*"},
            ],
        }
        program.write_json(self.d / "cut.json", rules)
        ranks = self.convert(source, "ranks", "--to", f"rules:{self.d / 'cut.json'}")
        back = self.convert(ranks, "back", "--to", "hf")
        self.assertEqual(
            program.files_of(back)["model.safetensors"],
            program.files_of(source)["model.safetensors"],
        )

    def renamed(self, source, decoder, head):
        """The checkpoint as a part of a larger model: another front for its decoder and its head."""
        path = source / "model.safetensors"
        tensors = program.read_safetensors(path)
        fronts = {"model.": decoder, "lm_head.": head + "lm_head."}
        program.write_safetensors(
            path,
            {
                next(new + name[len(old) :] for old, new in fronts.items() if name.startswith(old)): t
                for name, t in tensors.items()
            },
        )
        return source

    def test_a_decoder_inside_a_larger_model_is_read_by_its_prefix(self):
        plain = self.convert(self.checkpoint(program.MOE, "plain"), "whole", "--to", "vllm:tp=2")
        for number, fronts in enumerate(
            [("model.language_model.", ""), ("language_model.model.", "language_model.")]
        ):
            with self.subTest(fronts=fronts):
                source = self.renamed(self.checkpoint(program.MOE, f"in{number}"), *fronts)
                engine = self.convert(source, f"engine{number}", "--to", "vllm:tp=2")
                for name in ("rank-00000.safetensors", "rank-00001.safetensors"):
                    self.assertEqual(
                        program.read_safetensors(engine / name), program.read_safetensors(plain / name)
                    )
                named = self.convert(
                    source, f"named{number}", "--to", "vllm:tp=2,prefix=language_model"
                )
                held = program.read_safetensors(named / "rank-00000.safetensors")
                self.assertEqual({name.split(".")[0] for name in held}, {"language_model"})
                trainer = self.convert(named, f"trainer{number}", "--to", "megatron:tp=2,ep=2,etp=1")
                back = self.convert(trainer, f"back{number}", "--to", "hf")
                self.assertEqual(
                    program.read_safetensors(back / "model.safetensors"),
                    program.read_safetensors(source / "model.safetensors"),
                )

    def test_the_documented_index_of_ranks_is_read(self):
        page = (program.ROOT / "docs" / "checkpoints.md").read_text()
        (text,) = re.findall(r"```json\n(\{.*?\n\})\n```", page, re.DOTALL)
        index = json.loads(text)
        folder = self.d / "ranks"
        folder.mkdir()
        (folder / "reshard.json").write_text(text)
        (tensor,) = index["tensors"]
        rows, columns = tensor["shape"]
        data, each = bytes(range(2 * rows * columns)), 2 * columns * rows // index["world_size"]
        for entry in index["ranks"]:
            begin = entry["rank"] * each
            held = ("BF16", [rows // index["world_size"], columns], data[begin : begin + each])
            program.write_safetensors(folder / entry["file"], {tensor["name"]: held})
        back = self.convert(folder, "back", "--to", "hf")
        self.assertEqual(
            program.read_safetensors(back / "model.safetensors"),
            {tensor["name"]: ("BF16", [rows, columns], data)},
        )

    def stop(self, sign, *command):
        """Stops the program once it has finished some files; returns its exit code and last words.

        On a busy machine the run may be over before it is stopped; then it is done again.
        """
        out = command[2]
        journal = out.with_name(out.name + ".partial") / ".reshard-resume"
        for _ in range(20):
            process = subprocess.Popen(
                [program.BINARY, *map(str, command)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            while process.poll() is None:
                if journal.exists() and len(journal.read_text().splitlines()) > 3:
                    process.send_signal(sign)
                    break
            _, said = process.communicate()
            if process.returncode != 0:
                return process.returncode, said
            shutil.rmtree(out)
        self.fail("twenty runs ended before they could be stopped")

    def big_enough_to_be_stopped(self):
        return self.checkpoint(
            program.LLAMA, vocab_size=64_000, hidden_size=512, intermediate_size=1024
        )

    def stop_and_resume(self, sign):
        source = self.big_enough_to_be_stopped()
        command = (
            "convert",
            source,
            self.d / "out",
            "--to",
            "megatron:tp=4",
            "--buffer-bytes",
            "8kB",
        )
        whole = program.files_of(self.convert(source, "whole", *command[3:]))
        code, said = self.stop(sign, *command)
        self.assertFalse((self.d / "out").exists(), "half an output under its final name")
        kept = {
            path.name: path.stat() for path in (self.d / "out.partial").glob("rank-*.safetensors")
        }
        report = program.done(*command)
        self.assertIn("of an earlier run kept", report)
        self.assertEqual(program.files_of(self.d / "out"), whole)
        self.assertFalse((self.d / "out.partial").exists())
        first = (self.d / "out" / "rank-00000.safetensors").stat()
        self.assertEqual(
            (first.st_ino, first.st_mtime_ns),
            (kept["rank-00000.safetensors"].st_ino, kept["rank-00000.safetensors"].st_mtime_ns),
            "a finished file was written again",
        )
        return code, said

    def test_goes_on_after_kill_9(self):
        code, _ = self.stop_and_resume(signal.SIGKILL)
        self.assertEqual(code, -signal.SIGKILL)

    def test_goes_on_after_an_interrupt(self):
        code, said = self.stop_and_resume(signal.SIGINT)
        self.assertEqual(code, 130)
        self.assertRegex(
            said, r"^reshard: interrupted; \d of 4 files are kept in .*out.partial.*\n$"
        )

    def test_another_job_does_not_take_over(self):
        source = self.big_enough_to_be_stopped()
        out = self.d / "out"
        self.stop(
            signal.SIGKILL, "convert", source, out, "--to", "megatron:tp=4", "--buffer-bytes", "8kB"
        )
        before = program.files_of(self.d / "out.partial")
        result = program.run("convert", source, out, "--to", "megatron:tp=2")
        self.assertEqual(result.returncode, 2)
        self.assertIn("interrupted job", result.stderr)
        os.utime(source / "model.safetensors")
        result = program.run("convert", source, out, "--to", "megatron:tp=4")
        self.assertEqual(result.returncode, 2, "the input changed since")
        self.assertIn("interrupted job", result.stderr)
        self.assertEqual(program.files_of(self.d / "out.partial"), before)

    def test_says_what_a_plan_says(self):
        source = self.checkpoint(program.LLAMA)
        tensors = program.read_safetensors(source / "model.safetensors")
        wide = {n: ("F32", shape, bytes(2 * len(data))) for n, (_, shape, data) in tensors.items()}
        program.write_safetensors(source / "model.safetensors", wide)
        unknown = pathlib.Path(shutil.copytree(source, self.d / "unknown"))
        config = json.loads((unknown / "config.json").read_text())
        program.write_json(unknown / "config.json", config | {"architectures": ["NewForCausalLM"], "model_type": "new"})
        for model, to, words in (
            (source, "vllm:tp=2", "(loses precision)"),
            (unknown, "hf", 'config not understood: {}/config.json: architecture "NewForCausalLM"'),
        ):
            planned = program.done("plan", "--model", model, "--from", "hf", "--to", to)
            converted = program.done("convert", model, self.d / f"out-{to}", "--to", to)
            (note,) = [line for line in planned.splitlines() if words.format(model) in line]
            self.assertIn(note.strip(), converted.splitlines())
        quantised = program.done("convert", source, self.d / "fp8", "--to", "hf:quant=fp8_channel")
        self.assertIn("tensors quantised to fp8_channel (loses precision)", quantised)
        plain = program.done("convert", self.d / "fp8", self.d / "plain", "--to", "hf")
        self.assertIn("tensors dequantised from fp8_channel", plain)

    def test_never_advises_to_remove_the_input(self):
        source = self.checkpoint(program.LLAMA)
        before = program.files_of(source)
        for given in (source, source / "model.safetensors"):
            result = program.run("convert", given, f"{source}/", "--to", "hf")
            self.assertIn("is the input", result.stderr)
            self.assertNotIn("remove", result.stderr)
        self.assertEqual(program.files_of(source), before)

    def test_refuses_to_overwrite(self):
        source = self.checkpoint(program.LLAMA)
        out = self.convert(source, "out", "--to", "vllm:tp=2")
        before = program.files_of(out)
        result = program.run("convert", source, out, "--to", "hf")
        self.assertEqual(result.returncode, 2)
        self.assertIn("not overwritten", result.stderr)
        self.assertEqual(program.files_of(out), before)


if __name__ == "__main__":
    unittest.main()
