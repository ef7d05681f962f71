// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <array>
#include <fstream>

#include "cli/doctor/checks.h"
#include "reshard/base/number_text.h"
#include "reshard/cuda/driver.h"
#include "reshard/cuda/kernel_image.h"

namespace reshard::cli::doctor {
namespace {

using State = Finding::State;

Result<GpuFacts::Gpu> describe_gpu(const cuda::Driver& driver, int ordinal) {
  int device = 0, major = 0, minor = 0;
  std::array<char, 256> name{};
  RESHARD_TRY(check(driver, driver.cuDeviceGet(&device, ordinal), "cuDeviceGet"));
  RESHARD_TRY(check(driver, driver.cuDeviceGetName(name.data(), name.size() - 1, device),
                    "cuDeviceGetName"));
  RESHARD_TRY(check(driver, driver.cuDeviceGetAttribute(&major, cuda::kCapabilityMajor, device),
                    "cuDeviceGetAttribute"));
  RESHARD_TRY(check(driver, driver.cuDeviceGetAttribute(&minor, cuda::kCapabilityMinor, device),
                    "cuDeviceGetAttribute"));
  return GpuFacts::Gpu{name.data(), 10 * major + minor};
}

Result<std::vector<GpuFacts::Gpu>> list_gpus(const cuda::Driver& driver) {
  int count = 0;
  RESHARD_TRY(check(driver, driver.cuDeviceGetCount(&count), "cuDeviceGetCount"));
  std::vector<GpuFacts::Gpu> out;
  for (int i = 0; i < count; ++i) out.push_back(RESHARD_TRY(describe_gpu(driver, i)));
  return out;
}

/// "2 x NVIDIA H200 (9.0)", for each kind.
std::string gpus_text(const std::vector<GpuFacts::Gpu>& gpus) {
  std::string out;
  for (std::size_t i = 0; i < gpus.size();) {
    std::size_t same = i;
    while (same < gpus.size() && gpus[same].name == gpus[i].name) ++same;
    out += fmt::format("{}{} x {} ({}.{})", out.empty() ? "" : ", ", same - i, gpus[i].name,
                       gpus[i].capability / 10, gpus[i].capability % 10);
    i = same;
  }
  return out;
}

}  // namespace

GpuFacts read_gpus() {
  GpuFacts out;
  std::ifstream("/sys/module/nvidia/version") >> out.driver;
  const auto driver = cuda::load_driver();
  if (!driver) {
    out.why_none = driver.error().message;
    return out;
  }
  if ((*driver)->cuDriverGetVersion(&out.cuda) != cuda::kSuccess) out.cuda = 0;
  auto gpus = list_gpus(**driver);
  if (!gpus) {
    out.why_none = gpus.error().message;
    return out;
  }
  out.gpus = *std::move(gpus);
  const auto images = cuda::chosen_kernel_images();
  if (!images)
    out.no_kernels = images.error().message;
  else if (images->main.empty() && images->portable.empty())
    out.no_kernels = "this build of reshard has no code for GPUs";
  return out;
}

Finding judge(const GpuFacts& f) {
  Json::Array gpus;
  for (const auto& gpu : f.gpus)
    gpus.emplace_back(
        Json::Object{{"name", Json(gpu.name)}, {"capability", Json(Index{gpu.capability})}});
  Finding out{.name = "GPUs",
              .figures = {{"gpus", Json(std::move(gpus))},
                          {"driver", Json(f.driver)},
                          {"cuda", Json(Index{f.cuda})},
                          {"kernels", Json(f.why_none.empty() && f.no_kernels.empty())}}};
  if (!f.why_none.empty()) {
    // A driver in the kernel that a container does not see is a mistake, no GPU at all is not.
    out.state = f.driver.empty() ? State::absent : State::note;
    out.value = f.why_none;
    if (!f.driver.empty()) {
      out.effect =
          fmt::format("the host has NVIDIA's driver {}, but this process cannot use it", f.driver);
      out.remedy = "docker run --gpus all; CUDA_VISIBLE_DEVICES must not be empty";
    }
    return out;
  }
  out.value =
      fmt::format("{}; driver {}, CUDA {}.{}", gpus_text(f.gpus),
                  f.driver.empty() ? "unknown" : f.driver, f.cuda / 1000, f.cuda % 1000 / 10);
  if (!f.no_kernels.empty()) {
    out.state = State::note;
    out.effect = "the memory of these GPUs cannot be used: " + f.no_kernels;
    out.remedy = "build with RESHARD_WITH_CUDA=ON, or set RESHARD_CUDA_IMAGE";
  }
  return out;
}

Finding judge(const TransportStatus& t) {
  Finding out{.name = std::string(t.name),
              .figures = {{"built", Json(t.built)},
                          {"available", Json(t.available)},
                          {"version", Json(t.version)},
                          {"gpu_messages", Json(t.gpu_reason.empty())}}};
  // "1" of a transport without a library says nothing.
  const bool names_library = t.version.find(' ') != t.version.npos;
  out.value = (names_library ? t.version + "; " : "") + std::string(t.purpose);
  if (t.available) return out;
  out.value = t.reason;
  // These two need nothing but the kernel.
  const bool needed = t.name == "inproc" || t.name == "shm";
  out.state = needed ? State::problem : State::absent;
  if (needed) out.effect = "ranks of one host cannot reach each other";
  return out;
}

}  // namespace reshard::cli::doctor
