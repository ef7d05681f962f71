// SPDX-License-Identifier: Apache-2.0
#include "reshard/gpu_transport/nvshmem/nvshmem_model_testutil.h"

#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "reshard/base/check.h"
#include "reshard/base/hash.h"
#include "reshard/cuda/driver.h"
#include "reshard/cuda/emulated_machine_testutil.h"
#include "reshard/cuda/gpu_testutil.h"
#include "reshard/cuda/memory.h"

namespace reshard::nvshmem {
namespace {

/// Bytes on their way.
struct Write {
  std::uint64_t number = 0;
  std::uint64_t after = 0;  ///< must arrive after this one, if that is still on its way.
  int from = 0;
  cuda::StreamHandle stream = nullptr;
  std::byte* to = nullptr;
  std::vector<std::byte> bytes;
};

std::vector<std::byte> bytes_of(std::uint64_t value) {
  std::vector<std::byte> out(sizeof value);
  std::memcpy(out.data(), &value, sizeof value);
  return out;
}

}  // namespace

/// Locked after the emulated machine, if both are.
struct NvshmemModel::State {
  explicit State(const Options& all) : options(all), heaps(static_cast<std::size_t>(all.pes)) {
    for (int pe = 0; all.is_started && pe < all.pes; ++pe) started.insert(pe);
  }

  const Options options;
  mutable std::mutex mutex;
  std::condition_variable changed;
  bool closing = false;
  std::vector<cuda::Buffer> heaps;  ///< by PE.
  std::set<int> started;
  std::uint64_t arrivals = 0;  ///< at the barriers of collective calls.
  std::vector<Write> writes;
  std::uint64_t last_number = 0;
  int puts = 0, direct_puts = 0, unmet_waits = 0, forbidden_waits = 0;

  /// Waits for all PEs. False if the model goes away.
  bool barrier(std::unique_lock<std::mutex>& lock) {
    const auto pes = static_cast<std::uint64_t>(options.pes);
    const std::uint64_t round = arrivals++ / pes;
    changed.notify_all();
    changed.wait(lock, [&] { return closing || arrivals >= (round + 1) * pes; });
    return !closing;
  }

  std::byte* heap(int pe) const { return heaps[static_cast<std::size_t>(pe)].data(); }
  bool in_heap(int pe, const void* at, std::size_t bytes) const {
    const auto first = reinterpret_cast<std::uintptr_t>(at);
    const auto base = reinterpret_cast<std::uintptr_t>(heap(pe));
    const auto size = static_cast<std::size_t>(heaps[static_cast<std::size_t>(pe)].size());
    return first >= base && bytes <= size && first - base <= size - bytes;
  }
  /// The place in the heap of `pe` that an address in that of `me` means.
  std::byte* symmetric(int me, const void* at, std::size_t bytes, int pe) const {
    RESHARD_CHECK(pe >= 0 && pe < options.pes && in_heap(me, at, bytes));
    return heap(pe) + (static_cast<const std::byte*>(at) - heap(me));
  }

  bool may_arrive(const Write& write) const {
    for (const Write& other : writes) {
      if (other.number == write.after) return false;
      const bool before = other.number < write.number && other.stream == write.stream;
      if (before && options.order == Order::stream) return false;
    }
    return true;
  }
  std::vector<std::size_t> deliverable() const {
    std::vector<std::size_t> out;
    for (std::size_t i = 0; i < writes.size(); ++i)
      if (may_arrive(writes[i])) out.push_back(i);
    return out;
  }
  void arrive(std::size_t i) {
    std::memcpy(writes[i].to, writes[i].bytes.data(), writes[i].bytes.size());
    writes.erase(writes.begin() + static_cast<std::ptrdiff_t>(i));
  }
  std::uint64_t issue(Write write) {
    write.number = ++last_number;
    writes.push_back(std::move(write));
    changed.notify_all();
    return last_number;
  }
};

namespace {

using State = NvshmemModel::State;

/// The PE that a thread is.
struct Identity {
  std::shared_ptr<State> state;
  int pe = -1;
};
Identity& identity() {
  thread_local Identity mine;
  return mine;
}

/// Models, by the number that their unique ids carry.
struct Registry {
  std::mutex mutex;
  std::map<std::uint64_t, std::weak_ptr<State>> models;
  std::uint64_t last = 0;
};
Registry& registry() {
  static Registry all;
  return all;
}

const Identity& me() {
  RESHARD_CHECK(identity().state != nullptr);
  return identity();
}

/// Gives work to an emulated stream; it runs with the emulated machine and the model locked.
template <class F>
void give(cuda::StreamHandle stream, F work) {
  const std::lock_guard lock(cuda::machine().mutex);
  const int status = cuda::give("nvshmem", stream, [state = me().state, work] {
    const std::lock_guard model(state->mutex);
    work(*state);
  });
  RESHARD_CHECK(status == cuda::kSuccess);
}

int get_unique_id(UniqueId* id) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  all.models[++all.last] = me().state;
  std::memcpy(id->internal, &all.last, sizeof all.last);
  return 0;
}

int set_arguments(int rank, int ranks, const UniqueId* id, InitAttributes* attributes) {
  attributes->arguments.id.id = id;
  attributes->arguments.id.rank = rank;
  attributes->arguments.id.ranks = ranks;
  return 0;
}

int init(unsigned flags, InitAttributes* attributes) {
  RESHARD_CHECK(flags == kInitWithUniqueId && !cuda::current().empty());
  RESHARD_CHECK(attributes->version == (1 << 16) + 144);
  const InitAttributes::IdArguments& arguments = attributes->arguments.id;
  std::uint64_t number = 0;
  std::memcpy(&number, arguments.id->internal, sizeof number);
  {
    const std::lock_guard lock(registry().mutex);
    identity() = {registry().models[number].lock(), arguments.rank};
  }
  const std::shared_ptr<State> state = identity().state;
  if (state == nullptr) return -1;
  std::unique_lock lock(state->mutex);
  if (!state->barrier(lock)) return -1;
  if (state->options.init_result == 0) state->started.insert(arguments.rank);
  return state->options.init_result;
}

int init_status() {
  const std::lock_guard lock(me().state->mutex);
  return me().state->started.contains(me().pe) ? me().state->options.started_status : 0;
}

void* symmetric_malloc(std::size_t bytes) {
  State& state = *me().state;
  cuda::Buffer heap;
  if (bytes <= state.options.heap_bytes) {
    auto made = cuda::Buffer::on_device(cuda::gpu_under_test(), static_cast<Index>(bytes));
    RESHARD_CHECK(made.has_value());
    heap = *std::move(made);
  }
  std::unique_lock lock(state.mutex);
  cuda::Buffer& mine = state.heaps[static_cast<std::size_t>(me().pe)];
  mine = std::move(heap);
  return state.barrier(lock) ? mine.data() : nullptr;
}

void* pointer(const void* at, int pe) {
  const State& state = *me().state;
  return state.options.mapped ? state.symmetric(me().pe, at, 1, pe) : nullptr;
}

void put_signal(void* to, const void* from, std::size_t bytes, std::uint64_t* signal,
                std::uint64_t value, int operation, int pe, cuda::StreamHandle stream) {
  RESHARD_CHECK(operation == kSignalSet);
  give(stream, [=, mine = me().pe](State& state) {
    RESHARD_CHECK(state.options.mapped || state.in_heap(mine, from, bytes));
    const auto* const first = static_cast<const std::byte*>(from);
    ++state.puts;
    state.direct_puts += !state.in_heap(mine, from, bytes);
    const std::uint64_t data = state.issue(
        {0, 0, mine, stream, state.symmetric(mine, to, bytes, pe), {first, first + bytes}});
    state.issue(
        {0, data, mine, stream, state.symmetric(mine, signal, sizeof value, pe), bytes_of(value)});
  });
}

void signal_op(std::uint64_t* signal, std::uint64_t value, int operation, int pe,
               cuda::StreamHandle stream) {
  RESHARD_CHECK(operation == kSignalSet);
  give(stream, [=, mine = me().pe](State& state) {
    state.issue(
        {0, 0, mine, stream, state.symmetric(mine, signal, sizeof value, pe), bytes_of(value)});
  });
}

void wait_until(std::uint64_t* signal, int comparison, std::uint64_t value,
                cuda::StreamHandle stream) {
  RESHARD_CHECK(comparison == kCompareEqual);
  give(stream, [=, mine = me().pe](State& state) {
    RESHARD_CHECK(state.in_heap(mine, signal, sizeof value));
    state.unmet_waits += *signal != value;
    state.forbidden_waits += state.options.started_status == kLimitedSharing;
  });
}

void quiet(cuda::StreamHandle stream) {
  give(stream, [=, mine = me().pe](State& state) {
    for (std::size_t i = 0; i < state.writes.size();) {
      const Write& write = state.writes[i];
      if (write.from == mine && write.stream == stream) {
        state.arrive(i);
      } else {
        ++i;
      }
    }
  });
}

}  // namespace

const Library& NvshmemModel::library() {
  static const Library functions{
      .nvshmemx_vendor_get_version_info =
          [](int* major, int* minor, int* patch) {
            *major = 3;
            *minor = *patch = 0;
          },
      .nvshmemx_init_status = init_status,
      .nvshmemx_get_uniqueid = get_unique_id,
      .nvshmemx_set_attr_uniqueid_args = set_arguments,
      .nvshmemx_hostlib_init_attr = init,
      .nvshmem_my_pe = [] { return me().pe; },
      .nvshmem_malloc = symmetric_malloc,
      .nvshmem_ptr = pointer,
      .nvshmemx_putmem_signal_on_stream = put_signal,
      .nvshmemx_signal_op_on_stream = signal_op,
      .nvshmemx_signal_wait_until_on_stream = wait_until,
      .nvshmemx_quiet_on_stream = quiet,
  };
  return functions;
}

NvshmemModel::NvshmemModel(const Options& options) : state_(std::make_shared<State>(options)) {
  if (options.by_hand) return;
  network_ = std::jthread([state = state_] {
    for (std::uint64_t draw = state->options.seed;; draw = mix64(draw)) {
      {
        std::unique_lock lock(state->mutex);
        state->changed.wait(lock, [&] { return state->closing || !state->writes.empty(); });
        if (state->closing) return;
      }
      const std::lock_guard machine(cuda::machine().mutex);
      const std::lock_guard lock(state->mutex);
      const auto ready = state->deliverable();
      if (!ready.empty()) state->arrive(ready[draw % ready.size()]);
    }
  });
}

NvshmemModel::~NvshmemModel() {
  std::vector<cuda::Buffer> heaps;
  const std::lock_guard lock(state_->mutex);
  state_->closing = true;
  state_->changed.notify_all();
  // Freed here, not by whatever work of a stream is the last to know the state.
  std::swap(heaps, state_->heaps);
}

NvshmemModel::As::As(const NvshmemModel& model, int pe) {
  RESHARD_CHECK(identity().state == nullptr);
  identity() = {model.state_, pe};
}
NvshmemModel::As::~As() { identity() = {}; }

std::size_t NvshmemModel::num_deliverable() const {
  const std::lock_guard lock(state_->mutex);
  return state_->deliverable().size();
}

void NvshmemModel::deliver(std::size_t i) {
  const std::lock_guard machine(cuda::machine().mutex);
  const std::lock_guard lock(state_->mutex);
  state_->arrive(state_->deliverable().at(i));
}

void NvshmemModel::deliver_all() {
  while (num_deliverable() != 0) deliver(0);
}

int NvshmemModel::num_puts() const {
  const std::lock_guard lock(state_->mutex);
  return state_->puts;
}
int NvshmemModel::num_direct_puts() const {
  const std::lock_guard lock(state_->mutex);
  return state_->direct_puts;
}
int NvshmemModel::num_unmet_waits() const {
  const std::lock_guard lock(state_->mutex);
  return state_->unmet_waits;
}
int NvshmemModel::num_forbidden_waits() const {
  const std::lock_guard lock(state_->mutex);
  return state_->forbidden_waits;
}

}  // namespace reshard::nvshmem
