# SPDX-License-Identifier: Apache-2.0
"""reshard run --device: refits on a GPU where there is one, says why not elsewhere, and refuses what needs a session. The
command of docs/gpu.md is one. With a stand-in for the driver it refits on an emulated GPU."""

import json
import os
import pathlib
import re
import struct
import tempfile
import unittest

import program

DOC = (pathlib.Path(__file__).parents[2] / "docs" / "gpu.md").read_text()
RUN = ("run", "--model", "qwen3-4b", "--layers", "1", "--from", "megatron:tp=2", "--to", "vllm:tp=2")
EMULATED = os.environ.get("RESHARD_EMULATED_GPU", str(pathlib.Path(program.BINARY).parents[1] / "lib/emulated_gpu"))
NO_GPU = re.compile(r"reshard: (no NVIDIA driver: .*|no GPU: .*|this build of reshard has no code for GPUs: .*)\n")


class Device(unittest.TestCase):
    def on_gpu(self, *command):
        """The report of a run on a GPU, or None if there is no GPU, which it must say in one line."""
        done = program.run(*command, "--json")
        if done.returncode == 0:
            return json.loads(done.stdout)
        self.assertRegex(done.stderr, NO_GPU)
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        return None

    def test_the_command_of_the_page(self):
        (command,) = re.findall(r"^```\nreshard (run .*)\n```", DOC, re.M)
        command = command.replace("qwen3-30b-a3b --layers 20", "demo-moe --layers 1")  # small
        report = json.loads(program.done(*command.replace("cuda", "cpu").split(), "--json"))
        self.assertEqual((report["device"], report["verified"]), ("cpu", True))
        on_gpu = self.on_gpu(*command.split())
        if on_gpu:
            self.assertTrue(on_gpu["verified"])
            self.assertNotEqual(on_gpu["device"], "cpu")
            self.assertEqual(on_gpu["bytes_total"], report["bytes_total"])

    def test_a_gpu_by_its_number(self):
        self.on_gpu(*RUN, "--device", "cuda:0")
        done = program.run(*RUN, "--device", "cuda:1000")
        self.assertEqual(done.returncode, 1)
        self.assertNotIn("Traceback", done.stderr)

    def test_what_is_refused(self):
        for options, said in (
            (("--device", "gpu"), "'gpu' must be cpu, cuda or cuda:N"),
            (("--device", "cuda:-1"), "--device"),
            (("--device", "cuda", "--trace", "t.json"), "--trace"),
            (("--device", "cuda", "--path", "message"), "--path"),
            (("--device", "cuda", "--buffering", "doubled"), "--buffering"),
            (("--transport", "nccl", "--spawn"), "add --device cuda"),
        ):
            with self.subTest(options):
                done = program.run(*RUN, *options)
                self.assertNotEqual(done.returncode, 0)
                self.assertEqual(done.stdout, "")
                self.assertIn(said, done.stderr)
                self.assertEqual(done.stderr.count("\n"), 1, done.stderr)


class OnAnEmulatedGpu(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.image = pathlib.Path(folder.name) / "kernels.fatbin"
        self.image.write_bytes(struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 0))

    def run_on(self, gpu, *options, env={}):
        """The layouts may be among the options."""
        layouts = () if "--from" in options else ("--from", "megatron:ep=2", "--to", "vllm:tp=2")
        libraries = [EMULATED] + os.environ.get("LD_LIBRARY_PATH", "").split(":")
        return program.run(
            *("run", "--model", "demo-moe", "--layers", "1", *layouts, "--device", gpu, *options),
            env={"LD_LIBRARY_PATH": ":".join(filter(None, libraries)), "RESHARD_CUDA_IMAGE": str(self.image)} | env,
        )

    def test_it_refits_and_verifies(self):
        done = self.run_on("cuda", "--verify", "--json")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        report = json.loads(done.stdout)
        self.assertEqual((report["device"], report["verified"]), ("emulated GPU", True))
        self.assertNotIn("check_seconds", report)
        done = self.run_on("cuda", "--verify")
        self.assertIn(" on emulated GPU", done.stdout)

    def test_fingerprints_of_what_is_quantised_are_refused(self):
        done = self.run_on("cuda", "--from", "hf", "--to", "vllm:tp=2,quant=mxfp8", "--verify=fingerprints")
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertRegex(done.stderr, "^reshard: --verify=fingerprints: .*use --verify=bytes\n$")

    def test_it_compares_fingerprints_on_the_gpu(self):
        done = self.run_on("cuda", "--verify=fingerprints", "--json")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertGreater(json.loads(done.stdout)["check_seconds"], 0)
        done = self.run_on("cuda", "--verify=fingerprints")
        self.assertIn("fingerprints of both sides agree after each run", done.stdout)

    def test_it_quantises_and_dequantises(self):
        for source, target in (("megatron:ep=2", "vllm:tp=2,quant=mxfp8"), ("hf:quant=fp8_block", "vllm:tp=2")):
            with self.subTest(source):
                done = self.run_on("cuda", "--from", source, "--to", target, "--verify", "--json")
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                report = json.loads(done.stdout)
                self.assertEqual((report["device"], report["verified"]), ("emulated GPU", True))
                self.assertTrue(report["routes"])

    def test_processes_refit_between_gpus_and_on_one(self):
        # "cuda" gives the two ranks GPUs 0 and 1.
        for gpu, options in (
            ("cuda", ()),
            ("cuda:1", ()),
            ("cuda", ("--path", "message", "--verify=fingerprints", "--buffering", "doubled")),
            ("cuda", ("--from", "megatron:ep=2", "--to", "vllm:tp=2,quant=mxfp8")),
        ):
            with self.subTest(gpu=gpu, options=options):
                done = self.run_on(gpu, "--transport", "shm", "--spawn", "--verify", "--json", *options)
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                report = json.loads(done.stdout)
                self.assertEqual((report["device"], report["verified"]), ("emulated GPU", True))
                self.assertEqual(report["transport"], "shm")
        done = self.run_on("cuda", "--transport", "shm", "--spawn", "--verify")
        self.assertIn("between 2 ranks on emulated GPU over shm", done.stdout)

    def test_processes_without_nccl_say_what_is_missing(self):
        for library, said in (("/nowhere/libnccl.so.2", "/nowhere/libnccl.so.2"), ("libm.so.6", "too old: .* lacks ncclGetVersion")):
            with self.subTest(library):
                done = self.run_on("cuda", "--transport", "nccl", "--spawn", env={"RESHARD_NCCL_LIBRARY": library})
                self.assertEqual((done.returncode, done.stdout), (1, ""))
                self.assertRegex(done.stderr, f"^reshard: .*transport nccl: .*{said}.*\\n$")

    def test_a_gpu_that_is_not_there(self):
        done = self.run_on("cuda:2", "--transport", "shm", "--spawn")
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("GPU 2: CUDA sees 2, counted from 0", done.stderr)
        done = self.run_on("cuda:2")
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertEqual(done.stderr, "reshard: GPU 2: CUDA sees 2, counted from 0\n")

    def test_a_file_without_kernels(self):
        for content, said in ((b"\x7fELF" + bytes(60), "is not what nvcc -fatbin writes"), (None, "cannot read")):
            with self.subTest(said):
                self.image.unlink()
                if content:
                    self.image.write_bytes(content)
                done = self.run_on("cuda")
                self.assertEqual((done.returncode, done.stdout), (1, ""))
                self.assertRegex(done.stderr, f"^reshard: RESHARD_CUDA_IMAGE: .*{said}.*\\n$")


if __name__ == "__main__":
    unittest.main()
