# SPDX-License-Identifier: Apache-2.0
"""The files beside the weights: convert copies those that belong to the model, and names every other one."""

import os
import pathlib
import shutil
import tempfile
import unittest

import program

BELONGS = [
    "LICENSE",
    "README.md",
    "additional_chat_templates/tool_use.jinja",
    "chat_template.jinja",
    "configuration_tiny.py",
    "generation_config.json",
    "merges.txt",
    "modeling_tiny.py",
    "processor_config.json",
    "preprocessor_config.json",
    "special_tokens_map.json",
    "spiece.model",
    "tekken.json",
    "tiny.tiktoken",
    "tokenization_tiny.py",
    "tokenizer.json",
    "tokenizer_config.json",
    "video_preprocessor_config.json",
    "vocab.bpe",
]
OTHERS = {
    "other weights, or the state of a training": [
        "adapter_model.safetensors",
        "consolidated.00.pth",
        "model.gguf",
        "optimizer.pt",
        "params.json",
        "pytorch_model-00001-of-00002.bin",
        "pytorch_model.bin.index.json",
        "training_args.bin",
    ],
    "folders; copy what belongs to the model": ["onnx/"],
    "describes weights in another form": ["quantize_config.json"],
    "larger than 64 MiB": ["tokenizer.large.json"],
    "not known to belong to a model": ["credentials.json", "notes.md", "run.log"],
    "no regular files": ["tokenizer.pipe"],
}


def files_below(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


class ModelFiles(unittest.TestCase):
    def setUp(self):
        self.d = pathlib.Path(tempfile.mkdtemp(prefix="reshard-model-files-"))
        self.addCleanup(shutil.rmtree, self.d)

    def checkpoint(self):
        program.done("synth", program.write_json(self.d / "in.json", program.LLAMA), self.d / "in")
        return self.d / "in"

    def convert(self, source, name, *arguments):
        program.done("convert", source, self.d / name, *arguments)
        return self.d / name

    def filled(self):
        """A checkpoint with all kinds of files beside its weights."""
        source = self.checkpoint()
        for name in BELONGS + [name for names in OTHERS.values() for name in names]:
            path = source / name
            path.parent.mkdir(exist_ok=True)
            if name.endswith("/"):
                path.mkdir()
                (path / "config.json").write_text("of another form")
            elif name.endswith(".pipe"):
                os.mkfifo(path)
            else:
                path.write_text(name)
        os.truncate(source / "tokenizer.large.json", (64 << 20) + 1)
        (source / ".gitattributes").write_text("of the repository")
        return source

    def test_what_belongs_to_a_model_is_copied_and_the_rest_is_named(self):
        source = self.filled()
        weights = {
            "hf": {"model.safetensors"},
            "vllm:tp=2": {"rank-00000.safetensors", "rank-00001.safetensors", "reshard.json"},
        }
        for to, written in weights.items():
            with self.subTest(to):
                out = self.d / to
                report = program.done("convert", source, out, "--to", to, "--sync")
                self.assertEqual(files_below(out), {*BELONGS, *written, "config.json"})
                for name in BELONGS:
                    self.assertEqual((out / name).read_text(), name)
                lines = [line for line in report.splitlines() if line.startswith("left out ")]
                self.assertEqual(len(lines), len(OTHERS), report)
                for why, names in OTHERS.items():
                    named = "left out " + ", ".join(sorted(names)) + ": " + why
                    self.assertTrue(any(line.startswith(named) for line in lines), report)

    def test_files_of_a_layout_are_not_the_models(self):
        source = self.checkpoint()
        rules = {"axes": [{"name": "tp", "size": 2}], "rules": [{"match": "*"}]}
        cut = program.write_json(self.d / "cut.json", rules)
        ranks = self.convert(source, "ranks", "--to", f"rules:{cut}")
        report = program.done("convert", ranks, self.d / "back", "--to", "hf")
        self.assertNotIn("left out", report)
        self.assertEqual(files_below(self.d / "back"), files_below(source))

    def test_files_of_others_are_not_copied_through_links(self):
        source = self.checkpoint()
        (self.d / "secret").write_text("password")
        (self.d / "folder").mkdir()
        (self.d / "folder" / "tokenizer.json").write_text("password")
        (source / "merges.txt").write_text("merges")
        (source / "vocab.txt").symlink_to("merges.txt")
        (source / "secrets.txt").symlink_to("../secret")
        (source / "tokenizer.model").symlink_to(self.d / "secret")
        (source / "away").symlink_to("../folder")
        (source / "tokenizer.json").symlink_to("away/tokenizer.json")
        (source / "additional_chat_templates").mkdir()
        (source / "additional_chat_templates" / "a.jinja").symlink_to("../../secret")
        report = program.done("convert", source, self.d / "out", "--to", "vllm:tp=2")
        out = program.files_of(self.d / "out")
        self.assertEqual((out["merges.txt"], out["vocab.txt"]), (b"merges", b"merges"))
        self.assertFalse(any(path.is_symlink() for path in (self.d / "out").iterdir()))
        self.assertFalse(any(b"password" in data for data in out.values()))
        self.assertIn("left out additional_chat_templates/a.jinja, away, secrets.txt, tokenizer.json, tokenizer.model: links to", report)

    def test_a_config_of_others_is_not_copied_through_a_link_quantised_or_not(self):
        source = self.checkpoint()
        (source / "config.json").rename(self.d / "config.json")
        (source / "config.json").symlink_to("../config.json")
        for to in ("hf", "hf:quant=fp8_channel"):
            report = program.done("convert", source, self.d / to, "--to", to)
            self.assertIn("left out config.json", report)
            self.assertNotIn("config.json", program.files_of(self.d / to))

    def test_a_snapshot_in_the_cache_of_hugging_face_is_copied_whole(self):
        source = self.checkpoint()
        (source / "tokenizer.json").write_text("{}")
        (source / "tokenizer_x.py").write_text("")
        snapshot = self.d / "models--a--b" / "snapshots" / "0123"
        blobs = self.d / "models--a--b" / "blobs"
        snapshot.mkdir(parents=True)
        blobs.mkdir()
        for number, path in enumerate(sorted(source.iterdir())):
            shutil.copy(path, blobs / str(number))
            (snapshot / path.name).symlink_to(f"../../blobs/{number}")
        (self.d / "models--a--b" / "refs").write_text("password")
        (snapshot / "merges.txt").symlink_to("../../refs")
        report = program.done("convert", snapshot, self.d / "out", "--to", "hf")
        self.assertIn("left out merges.txt", report)
        self.assertEqual(program.files_of(self.d / "out"), program.files_of(source))


if __name__ == "__main__":
    unittest.main()
