#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the program and its tests with kernels for GPUs, and bundles what a machine with a GPU, but without network and
# packages, needs to run them: <folder>/gpu-bundle, which tests/gpu/test.sh and tests/gpu/bench.sh run in.
#
#   tools/gpu_build.sh <folder> <folder of nvcc's environment> <jobs> [-DNAME=VALUE ...]
#
#   GPU_PYTHON   the Python for which the package is built, by default this machine's; it must have nanobind
set -euo pipefail
folder=$1
venv=$2
jobs=$3
shift 3

nvcc=$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null || true)
if [ -z "$nvcc" ]; then
  tools/python_env.sh "$venv" tests/gpu/requirements.txt
  nvcc=$(ls "$PWD/$venv"/lib/python3*/site-packages/nvidia/cu*/bin/nvcc)
fi
tools/python_env.sh "$venv-ptxas" tests/gpu/requirements-ptxas.txt
ptxas=$(ls "$PWD/$venv-ptxas"/lib/python3*/site-packages/nvidia/cuda_nvcc/bin/ptxas)
programs="reshard reshard_cuda_tests reshard_exec_tests reshard_refit_tests reshard_dtensor_tests reshard_cli_tests
  reshard_nccl_gpu_tests gpu_kernels_bench gpu_peers_bench"
modules="nccl nvshmem"
if [ -e /usr/include/ucp/api/ucp.h ]; then
  programs+=" reshard_ucx_gpu_tests reshard_ucx_gpu_refit_tests"
  modules+=" ucx"
fi
for name in $programs; do
  tools/build.sh "$folder" "$jobs" "bin/$name" "$@" -DRESHARD_DEV=ON -DRESHARD_WITH_CUDA=ON \
    "-DRESHARD_NVCC=$nvcc" "-DRESHARD_PTXAS=$ptxas"
done

# The package for this machine's Python, if it can build one.
python=
for found in ${GPU_PYTHON:+"$GPU_PYTHON"} "$(dirname "$venv")/venv/bin/python" python3; do
  if "$found" -m nanobind --cmake_dir >/dev/null 2>&1; then python=$(command -v "$found") && break; fi
done
if [ -n "${GPU_PYTHON:-}" ] && [ "$python" != "$(command -v "$GPU_PYTHON")" ]; then
  echo "gpu: GPU_PYTHON=$GPU_PYTHON has no nanobind" >&2
  exit 1
fi
if [ -n "$python" ]; then
  tools/build.sh "$folder" "$jobs" reshard_python "-DRESHARD_PYTHON=ON" "-DPython_EXECUTABLE=$(realpath -s "$python")"
else
  echo "gpu: without the Python package: nanobind is not installed (make python-env)"
fi

bundle=$folder/gpu-bundle
rm -rf "$bundle"
mkdir -p "$bundle/bin" "$bundle/lib" "$bundle/bench" "$bundle/examples"
for name in $programs; do
  strip -o "$bundle/bin/$name" "$folder/bin/$name"
  # The loader and the C library are the machine's own.
  ldd "$folder/bin/$name" | awk '$3 ~ /^\// {print $3}' | grep -vE '/(libc|libm|libdl|libpthread|librt)\.so'
done | sort -u | xargs -I{} cp -L {} "$bundle/lib/"
for library in $modules; do
  tools/build.sh "$folder" "$jobs" reshard_transport_$library
  strip -o "$bundle/bin/reshard_transport_$library.so" "$folder/bin/reshard_transport_$library.so"
done
cp "$folder/generated/portable_kernels.fatbin" "$bundle/"
cp bench/*.py "$bundle/bench/"
cp -r examples/configs "$bundle/examples/"
# Where the program looks for models by name.
mkdir -p "$bundle/share/reshard"
ln -s ../../examples/configs "$bundle/share/reshard/configs"
git rev-parse --short=12 HEAD >"$bundle/COMMIT"
cp tests/gpu/*.sh tests/gpu/*.py "$bundle/"
if [ -n "$python" ]; then
  mkdir -p "$bundle/python/tests"
  cp -r python/reshard "$bundle/python/"
  cp -r examples/configs "$bundle/python/reshard/"
  strip -o "$bundle/python/reshard/$(basename "$folder"/python/reshard/_core*.so)" "$folder"/python/reshard/_core*.so
  ln -s ../../bin/reshard_transport_nccl.so ../../bin/reshard_transport_nvshmem.so "$bundle/python/reshard/"
  ldd "$folder"/python/reshard/_core*.so | awk '$3 ~ /^\// {print $3}' | grep -vE '/(libc|libm|libdl|libpthread|librt)\.so' |
    xargs -I{} cp -L {} "$bundle/lib/"
  cp python/tests/*.py "$bundle/python/tests/"
  mkdir -p "$bundle/tests/megatron" "$bundle/docs"
  cp tests/megatron/*.py "$bundle/tests/megatron/"
  cp docs/megatron.md "$bundle/docs/"
  mkdir "$bundle/bench/python" && cp bench/python/{gpu_peers,lora_merge}.py "$bundle/bench/python/"
fi
# With -9 the window of xz spans several programs, which contain the same kernels.
XZ_OPT=-9 tar -C "$folder" --exclude=__pycache__ -cJf "$bundle.tar.xz" gpu-bundle
du -h "$bundle.tar.xz" | awk '{print "gpu: " $2 " has " $1}'
