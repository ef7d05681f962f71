// SPDX-License-Identifier: Apache-2.0
#include "python/src/tensors/gpus.h"

#include <fmt/format.h>
#include <unistd.h>

#include <charconv>
#include <mutex>

#include "python/src/tensors/tensors.h"
#include "reshard/cuda/memory.h"
#include "reshard/cuda/tiles/tiles.h"

namespace reshard::python {
namespace {

constexpr std::uint64_t kLegacy = 1, kPerThread = 2;  // handles with a meaning, of CUDA.

/// The GPUs that are open. Never destroyed, because the driver may end before static objects do.
struct Gpus {
  std::mutex mutex;
  std::map<int, std::shared_ptr<const cuda::Device>> open;
  pid_t process = 0;
};

Gpus& gpus() {
  static Gpus* const kAll = new Gpus;
  return *kAll;
}

std::uint64_t number_of(nb::handle number) {
  const std::uint64_t value = PyLong_AsUnsignedLongLong(number.ptr());
  if (PyErr_Occurred() == nullptr) return value;
  clear_ordinary();
  throw nb::type_error("stream: its handle must be an int from 0 on that fits 64 bits");
}

/// The handle in what `__cuda_stream__` is or returns: a protocol version and a number.
std::uint64_t number_of_protocol(nb::object said) {
  if (PyCallable_Check(said.ptr()) != 0) said = said();
  if (!nb::isinstance<nb::tuple>(said) || nb::len(said) < 2)
    throw nb::type_error("stream: its __cuda_stream__() must return a tuple (version, handle)");
  if (const std::uint64_t version = number_of(said[0]); version != 0)
    raise(Code::unsupported,
          fmt::format("stream: version {} of __cuda_stream__; reshard knows 0", version));
  return number_of(said[1]);
}

std::uint64_t number_of_stream(nb::handle stream) {
  if (PyLong_Check(stream.ptr()) != 0 && PyBool_Check(stream.ptr()) == 0) return number_of(stream);
  if (nb::hasattr(stream, "cuda_stream")) return number_of(stream.attr("cuda_stream"));
  if (nb::hasattr(stream, "__cuda_stream__"))
    return number_of_protocol(stream.attr("__cuda_stream__"));
  throw nb::type_error(
      fmt::format("stream must be a handle (int), a torch.cuda.Stream, an object with "
                  "__cuda_stream__ or None, not {}",
                  nb::type_name(stream.type()).c_str())
          .c_str());
}

}  // namespace

cuda::StreamHandle stream_of_number(std::uint64_t number) {
  if (number == kPerThread)
    raise(Code::invalid_argument,
          "stream: the default stream of each thread, which is another one in reshard's threads; "
          "make a stream and pass that");
  return number == kLegacy
             ? nullptr
             : reinterpret_cast<cuda::StreamHandle>(static_cast<std::uintptr_t>(number));
}

const std::shared_ptr<const cuda::Device>& gpu(int ordinal) {
  Gpus& all = gpus();
  const std::lock_guard lock(all.mutex);
  if (all.process != 0 && all.process != ::getpid())
    raise(Code::invalid_argument,
          fmt::format("{}: process {}, from which this one was forked, has opened a GPU, and CUDA "
                      "does not survive a fork; start processes with spawn",
                      gpu_text(ordinal), all.process));
  auto& found = all.open[ordinal];
  if (found == nullptr) {
    found = unwrap(cuda::Device::open(ordinal));
    all.process = ::getpid();
  }
  return found;
}

std::string why_no_gpu(int ordinal) {
  try {
    unwrap(gpu(ordinal)->kernel(cuda::kTileKernel));
    return "";
  } catch (const Raised& raised) {
    return raised.error().message;
  }
}

int gpu_of_address(const void* at) {
  const cuda::MemoryKind kind = unwrap(cuda::memory_kind(*gpu(0), at));
  if (!kind.on_device)
    raise(Code::invalid_argument,
          "its address is not in the memory of a GPU (freed, or the host's)");
  return kind.ordinal;
}

std::optional<int> gpu_argument(const nb::object& device) {
  if (device.is_none()) return std::nullopt;
  const auto text = nb::cast<std::string>(nb::str(device));
  if (text == "cpu") return std::nullopt;
  if (text == "cuda") return 0;
  int ordinal = -1;
  const std::string_view front = "cuda:";
  const char* const end = text.data() + text.size();
  if (text.starts_with(front)) {
    const auto [stop, error] = std::from_chars(text.data() + front.size(), end, ordinal);
    if (error == std::errc() && stop == end && ordinal >= 0) return ordinal;
  }
  raise(Code::invalid_argument,
        fmt::format("device '{}' must be cpu, cuda or cuda:N", text.substr(0, text.find('\n'))));
}

std::string gpu_text(int ordinal) { return fmt::format("cuda:{}", ordinal); }

cuda::StreamHandle stream_handle(nb::handle stream, int ordinal) {
  CUstream_st* const handle = stream_of_number(number_of_stream(stream));
  if (ordinal >= 0 && nb::hasattr(stream, "device_index")) {
    const nb::object index = stream.attr("device_index");
    if (int other = 0; nb::try_cast(index, other) && other != ordinal)
      raise(Code::invalid_argument, fmt::format("stream: is of {}, but the tensors are on {}",
                                                gpu_text(other), gpu_text(ordinal)));
  }
  return handle;
}

cuda::StreamHandle current_stream(nb::handle tensor, int ordinal) {
  if (const auto number = stream_by_table(tensor, ordinal)) return stream_of_number(*number);
  if (!is_of_torch(tensor)) return nullptr;
  const nb::object current =
      nb::module_::import_("torch").attr("cuda").attr("current_stream")(ordinal);
  return stream_handle(current, ordinal);
}

void StreamOrder::order(const std::shared_ptr<const cuda::Device>& device, cuda::StreamHandle first,
                        cuda::StreamHandle second) {
  if (first == second) return;
  auto found = events_.find(first);
  if (found == events_.end())
    found = events_.emplace(first, unwrap(cuda::Event::make(device))).first;
  unwrap(found->second.record(cuda::Stream::borrow(device, first)));
  unwrap(found->second.hold(cuda::Stream::borrow(device, second)));
}

}  // namespace reshard::python
