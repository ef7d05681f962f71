// SPDX-License-Identifier: Apache-2.0
// A stand-in for NVSHMEM's host library on the emulated GPU: PEs are threads of one process, or
// take turns in one thread. Each has a symmetric heap of its own. Puts and signals run on emulated
// streams, but arrive later, in any order that NVSHMEM permits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>

#include "reshard/gpu_transport/nvshmem/library.h"

namespace reshard::nvshmem {

class NvshmemModel {
 public:
  /// The writes that arrive in order.
  enum class Order {
    any,     ///< the signal of a put after its bytes; as over a network.
    stream,  ///< what one stream did; as between GPUs that map each other's memory.
  };
  struct Options {
    int pes = 2;
    Order order = Order::any;
    /// PEs reach each other's memory, so that puts may start from any memory.
    bool mapped = true;
    /// False: a thread delivers, in an order drawn with `seed`. True: only deliver() does.
    bool by_hand = false;
    std::uint64_t seed = 1;
    std::size_t heap_bytes = std::size_t{64} << 20;
    int started_status = 2;   ///< nvshmemx_init_status() after the start.
    int init_result = 0;      ///< of nvshmemx_hostlib_init_attr().
    bool is_started = false;  ///< somebody else has started NVSHMEM in all these processes.
  };

  explicit NvshmemModel(const Options& options);
  /// Calls that wait for other PEs return errors.
  ~NvshmemModel();
  NvshmemModel(const NvshmemModel&) = delete;
  NvshmemModel& operator=(const NvshmemModel&) = delete;

  /// The functions, which are those of the PE that the calling thread is.
  static const Library& library();

  /// The calling thread is this PE while the object lives.
  class As {
   public:
    As(const NvshmemModel& model, int pe);
    ~As();
    As(const As&) = delete;
    As& operator=(const As&) = delete;
  };

  /// Writes that may arrive next, and the arrival of the i-th. By hand only.
  std::size_t num_deliverable() const;
  void deliver(std::size_t i);
  void deliver_all();

  /// Counts over all PEs: puts; those that did not start from the symmetric heap; waits of streams
  /// for a signal that had not come, which would have blocked the stream; and waits that limited
  /// sharing does not permit.
  int num_puts() const;
  int num_direct_puts() const;
  int num_unmet_waits() const;
  int num_forbidden_waits() const;

  struct State;

 private:
  std::shared_ptr<State> state_;
  std::jthread network_;
};

}  // namespace reshard::nvshmem
