// SPDX-License-Identifier: Apache-2.0
#include "reshard/transport/ucx/wire.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include "reshard/transport/host_identity.h"

namespace reshard::ucx {
namespace {

/// Fits into one fragment of every UCX transport (their segments have 8 KiB).
constexpr std::size_t kMaxFrame = 8000;
/// Active message ids.
constexpr unsigned kPackets = 0, kBulks = 1;
/// How long close() waits for packets to leave.
constexpr std::chrono::milliseconds kCloseTimeout{200};
/// When a packet counts as sent although the flush after it has not ended. Over TCP a flush also
/// waits until peers have acknowledged bulks, which may take long.
constexpr std::chrono::milliseconds kFlush{20};
/// Most packets that may arrive out of order.
constexpr std::size_t kMaxEarly = 1024;
constexpr int kPasses = 8;

/// The content of an address from describe_target().
struct TargetAddress {
  std::uint32_t region = 0;
  std::uint32_t reserved = 0;
  std::uint64_t offset = 0;
};

/// Puts are fast if the network hardware writes memory; over TCP and shared memory the library
/// splits them into small pieces. RESHARD_UCX_PUT=on or off overrides the choice.
bool wants_puts() {
  if (const char* set = std::getenv("RESHARD_UCX_PUT"); set != nullptr && *set != '\0')
    return std::string_view(set) == "on";
  std::error_code none;
  return std::filesystem::directory_iterator("/sys/class/infiniband", none) !=
         std::filesystem::directory_iterator();
}

/// The objects of the library that a rank has.
struct Own {
  std::unique_ptr<GpuPointerQuery> gpu;  ///< null if the library takes host memory only.
  std::unique_ptr<Worker> worker;
};

Result<Own> start_library(bool one_host, const TransportOptions& options) {
  Own own{RESHARD_TRY(GpuPointerQuery::open_if_any(options.gpu)), nullptr};
  {
    const GpuPointerQuery::Current current(own.gpu.get());
    own.worker =
        RESHARD_TRY(one_host && options.interface.empty() ? Worker::make_on_host()
                                                          : Worker::make(options.interface));
  }
  if (!own.worker->takes_gpu_memory()) own.gpu.reset();
  return own;
}

}  // namespace

Result<> UcxWire::connect(std::span<const std::vector<std::byte>> addresses,
                          const ControlPlane& control, Deadline deadline) {
  const GpuPointerQuery::Current current(gpu_.get());
  const auto handle = [&](unsigned id, ucp_am_recv_callback_t callback) -> Result<> {
    ucp_am_handler_param_t param{};
    param.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                       UCP_AM_HANDLER_PARAM_FIELD_ARG;
    param.id = id;
    param.cb = callback;
    param.arg = this;
    const auto status = ucp_worker_set_am_recv_handler(worker_->handle(), &param);
    if (status != UCS_OK) return tl::unexpected(library_error("active messages", status));
    return {};
  };
  RESHARD_TRY(handle(kPackets, on_packet));
  RESHARD_TRY(handle(kBulks, on_bulk));
  for (std::size_t r = 0; r < peers_.size(); ++r)
    if (r != rank_.index() || gpu_)
      peers_[r].endpoint = RESHARD_TRY(worker_->connect(addresses[r], on_failed, &peers_[r]));
  const auto send_all = [&](Kind kind) -> Result<> {
    for (int r = 0; r < size(); ++r)
      if (Rank{r} != rank_) RESHARD_TRY(send_packet(Rank{r}, kind, {}));
    return {};
  };
  RESHARD_TRY(send_all(Kind::hello));
  RESHARD_TRY(await(&Peer::hello, control, deadline));
  RESHARD_TRY(send_all(Kind::ready));
  return await(&Peer::ready, control, deadline);
}

Result<> UcxWire::await(bool Peer::* greeting, const ControlPlane& control, Deadline deadline) {
  while (true) {
    std::string missing;
    for (int r = 0; r < size(); ++r) {
      const Peer& peer = peers_[Rank{r}.index()];
      if (Rank{r} == rank_ || (peer.*greeting && (peer.out == 0 || peer.failed))) continue;
      if (peer.failed && peer.goodbye_until.expired()) return tl::unexpected(gone(Rank{r}));
      if (broken_) return tl::unexpected(*broken_);
      missing += fmt::format("{}{}", missing.empty() ? "" : ", ", r);
    }
    if (missing.empty()) return {};
    // A peer that is ready may abort at once; then the group, which is complete, reports the abort.
    if (const Result<> status = control.status(); !status) {
      if (greeting == &Peer::ready) return {};
      return status;
    }
    if (deadline.expired()) {
      return fail(Code::deadline, fmt::format("ucx: rank {} could not connect to ranks {} in time",
                                              rank_.value(), missing));
    }
    if (!worker_->progress()) idle(deadline);
  }
}

std::size_t UcxWire::max_frame() const { return kMaxFrame; }

Error UcxWire::gone(Rank peer) const {
  const auto& failed = peers_[peer.index()].failed;
  return {Code::aborted, fmt::format("rank {}: {}", peer.value(),
                                     failed ? ucs_status_string(*failed) : "it has closed")};
}

Result<> UcxWire::reachable(Rank peer) const {
  if (!worker_) return fail(Code::aborted, "the wire is closed");
  if (broken_) return tl::unexpected(*broken_);
  if (peers_[peer.index()].failed) return tl::unexpected(gone(peer));
  return {};
}

Operation& UcxWire::begin(Operation::What what, int parts) {
  if (free_.empty()) free_.push_back(&operations_.emplace_back());
  Operation& out = *free_.back();
  free_.pop_back();
  out.owner = this;
  out.what = what;
  out.parts = parts;
  out.status = UCS_OK;
  return out;
}

void UcxWire::part_over(Operation& operation, ucs_status_t status) {
  if (operation.status == UCS_OK) operation.status = status;
  if (--operation.parts > 0) return;
  if (operation.what == Operation::What::packet) {
    --operation.to->out;
  } else if (operation.what == Operation::What::flush) {
    flushing_ = false;
  } else {
    Result<> result;
    if (operation.status != UCS_OK) {
      Error error = library_error("a bulk", operation.status);
      error.code = Code::aborted;
      result = tl::unexpected(std::move(error));
    }
    outcomes_.push_back({operation.id, std::move(result)});
  }
  operation.what = Operation::What::idle;
  free_.push_back(&operation);
}

/// Handles the result of a call that starts a part of an operation.
void UcxWire::posted(Operation& operation, ucs_status_ptr_t request) {
  if (!UCS_PTR_IS_PTR(request)) part_over(operation, UCS_PTR_STATUS(request));
}

void UcxWire::on_sent(void* request, ucs_status_t status, void* operation) {
  ucp_request_free(request);
  auto& over = *static_cast<Operation*>(operation);
  over.owner->part_over(over, status);
}

void UcxWire::on_received(void* request, ucs_status_t status, std::size_t, void* operation) {
  on_sent(request, status, operation);
}

void UcxWire::on_failed(void* peer, ucp_ep_h, ucs_status_t status) {
  static_cast<Peer*>(peer)->fail(status);
}

ucp_request_param_t UcxWire::completion(Operation& operation) const {
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.cb.send = on_sent;
  param.user_data = &operation;
  return param;
}

/// The library must be told: it notices only allocations that were made after it was loaded.
ucs_memory_type_t UcxWire::memory_type(const void* at) const {
  if (!gpu_ || !gpu_->contains(at)) return UCS_MEMORY_TYPE_HOST;
  return gpu_->is_managed(at) ? UCS_MEMORY_TYPE_CUDA_MANAGED : UCS_MEMORY_TYPE_CUDA;
}

/// completion() of an operation on this memory.
ucp_request_param_t UcxWire::completion(Operation& operation, const void* memory) const {
  ucp_request_param_t param = completion(operation);
  if (!gpu_) return param;
  param.op_attr_mask |= UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  param.memory_type = memory_type(memory);
  return param;
}

Result<> UcxWire::send_packet(Rank to, Kind kind, std::span<const std::byte> bytes) {
  RESHARD_TRY(reachable(to));
  Peer& peer = peers_[to.index()];
  Operation& operation = begin(Operation::What::packet, 1);
  operation.header = {static_cast<std::uint32_t>(rank_.value()), kind, peer.sent++};
  operation.packet.assign(bytes.begin(), bytes.end());
  operation.to = &peer;
  ++peer.out;
  unflushed_ = true;
  sent_by_ = Deadline::after(kFlush);
  ucp_request_param_t param = completion(operation);
  param.op_attr_mask |= UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_AM_SEND_FLAG_EAGER;
  posted(operation, ucp_am_send_nbx(peer.endpoint, kPackets, &operation.header, sizeof(Header),
                                    operation.packet.data(), operation.packet.size(), &param));
  return {};
}

ucs_status_t UcxWire::on_packet(void* self, const void* header, std::size_t header_bytes,
                                void* data, std::size_t bytes, const ucp_am_recv_param_t* param) {
  auto& wire = *static_cast<UcxWire*>(self);
  Header head;
  if (header_bytes != sizeof head || (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0)
    return UCS_OK;
  std::memcpy(&head, header, sizeof head);
  if (head.from < wire.peers_.size() && head.from != wire.rank_.index())
    wire.take_packets(Rank{static_cast<int>(head.from)}, head,
                      {static_cast<const std::byte*>(data), bytes});
  return UCS_OK;
}

/// Delivers a packet, then those that follow it and arrived earlier.
void UcxWire::take_packets(Rank from, Header header, std::span<const std::byte> bytes) {
  Peer& peer = peers_[from.index()];
  if (header.number != peer.received) {
    const bool known = header.number < peer.received || peer.early.contains(header.number);
    if (known || peer.early.size() >= kMaxEarly) {
      broken_ = Error{Code::corrupt, fmt::format("rank {} sent packet {} twice or far out of order",
                                                 from.value(), header.number)};
      return;
    }
    peer.early[header.number] = {header.kind, {bytes.begin(), bytes.end()}};
    return;
  }
  ++peer.received;
  take(from, header.kind, bytes);
  for (auto next = peer.early.begin(); next != peer.early.end() && next->first == peer.received;
       next = peer.early.erase(next)) {
    ++peer.received;
    take(from, next->second.first, next->second.second);
  }
}

void UcxWire::take(Rank from, Kind kind, std::span<const std::byte> bytes) {
  Peer& peer = peers_[from.index()];
  if (kind == Kind::hello) {
    peer.hello = true;
  } else if (kind == Kind::ready) {
    peer.ready = true;
  } else if (kind == Kind::bye) {
    peer.bye = true;
  } else if (kind == Kind::frame && sink_ == nullptr) {
    // The sender learned before this rank that all are connected; or this rank is closing.
    waiting_.emplace_back(from, std::vector<std::byte>(bytes.begin(), bytes.end()));
  } else if (kind == Kind::frame) {
    // Bulks that ended before the peer sent this frame are reported first.
    (void)deliver(*sink_);
    sink_->on_frame(from, bytes);
  } else if (const Result<> added = peer.memory.add(peer.endpoint, bytes); !added) {
    broken_ = Error(added.error()).in(fmt::format("rank {}", from.value()));
  }
}

Result<> UcxWire::send_bulk(Rank to, std::uint64_t tag, std::span<const std::byte> bytes,
                            BulkId id) {
  RESHARD_TRY(reachable(to));
  const GpuPointerQuery::Current current(gpu_.get());
  Operation& operation = begin(Operation::What::bulk, 1);
  operation.id = id;
  operation.header = {static_cast<std::uint32_t>(rank_.value()), Kind::frame, tag};
  ucp_request_param_t param = completion(operation, bytes.data());
  param.op_attr_mask |= UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_AM_SEND_FLAG_RNDV;
  posted(operation, ucp_am_send_nbx(peers_[to.index()].endpoint, kBulks, &operation.header,
                                    sizeof(Header), bytes.data(), bytes.size(), &param));
  return {};
}

Result<> UcxWire::recv_bulk(Rank from, std::uint64_t tag, std::span<std::byte> bytes, BulkId id) {
  RESHARD_TRY(reachable(from));
  const auto at = expected_.try_emplace({from, tag}).first;
  at->second.into = bytes;
  at->second.id = id;
  if (at->second.announced == nullptr) return {};
  const GpuPointerQuery::Current current(gpu_.get());
  const bool right = receive(at->second);
  expected_.erase(at);
  if (!right) return fail(Code::corrupt, "ucx: a bulk of another size than agreed");
  return {};
}

/// Starts to receive an announced bulk. False if its size is not the expected one.
bool UcxWire::receive(Expected& expected) {
  if (expected.bytes != expected.into.size()) return false;
  Operation& operation = begin(Operation::What::bulk, 1);
  operation.id = expected.id;
  ucp_request_param_t param = completion(operation, expected.into.data());
  param.cb.recv_am = on_received;
  posted(operation, ucp_am_recv_data_nbx(worker_->handle(), expected.announced,
                                         expected.into.data(), expected.into.size(), &param));
  return true;
}

ucs_status_t UcxWire::on_bulk(void* self, const void* header, std::size_t header_bytes, void* data,
                              std::size_t bytes, const ucp_am_recv_param_t* param) {
  auto& wire = *static_cast<UcxWire*>(self);
  Header head;
  if (header_bytes != sizeof head || (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) == 0)
    return UCS_ERR_CANCELED;
  std::memcpy(&head, header, sizeof head);
  // Those to this rank itself are announced as they are sent.
  if (wire.sink_ == nullptr && head.from != wire.rank_.index()) return UCS_ERR_CANCELED;
  if (head.from >= wire.peers_.size() || wire.peers_[head.from].endpoint == nullptr)
    return UCS_ERR_INVALID_PARAM;
  const auto key = std::pair(Rank{static_cast<int>(head.from)}, head.number);
  const auto [at, early] = wire.expected_.try_emplace(key);
  Expected& expected = at->second;
  if (expected.announced != nullptr) return UCS_ERR_INVALID_PARAM;
  expected.announced = data;
  expected.bytes = bytes;
  if (early) return UCS_INPROGRESS;
  const bool right = wire.receive(expected);
  if (!right) {
    wire.outcomes_.push_back(
        {expected.id, fail(Code::corrupt, "ucx: a bulk of another size than agreed")});
  }
  wire.expected_.erase(at);
  return right ? UCS_OK : UCS_ERR_INVALID_PARAM;
}

Result<RemoteKey> UcxWire::share(std::span<std::byte> memory) {
  if (!worker_) return fail(Code::invalid_argument, "share() after close()");
  if (!puts_) return messages::Wire::share(memory);
  const GpuPointerQuery::Current current(gpu_.get());
  const std::uint32_t number = RESHARD_TRY(memory_.add(memory, memory_type(memory.data()), size()));
  RemoteKey key(sizeof number);
  std::memcpy(key.data(), &number, sizeof number);
  return key;
}

messages::WireAddress UcxWire::describe_target(Rank from, std::span<std::byte> bytes) {
  const std::int64_t number = memory_.find(bytes);
  if (number < 0) return {};
  auto& region = memory_[static_cast<std::uint32_t>(number)];
  if (!region.sent_to[from.index()]) {
    if (region.packed.size() > kMaxFrame || !send_packet(from, Kind::memory, region.packed))
      return {};
    region.sent_to[from.index()] = true;
  }
  const TargetAddress address{static_cast<std::uint32_t>(number), 0,
                              static_cast<std::uint64_t>(bytes.data() - region.memory.data())};
  return messages::WireAddress::of(address);
}

Result<> UcxWire::put(Rank to, std::span<const std::byte> target, std::span<const std::byte> bytes,
                      BulkId id) {
  RESHARD_TRY(reachable(to));
  Peer& peer = peers_[to.index()];
  TargetAddress address;
  if (target.size() != sizeof address)
    return fail(Code::corrupt, "ucx: an address of the wrong size");
  std::memcpy(&address, target.data(), sizeof address);
  const auto there = RESHARD_TRY(peer.memory.find(address.region, address.offset, bytes.size()));
  const GpuPointerQuery::Current current(gpu_.get());
  Operation& operation = begin(Operation::What::put, 2);
  operation.id = id;
  const ucp_request_param_t moved = completion(operation, bytes.data());
  posted(operation,
         ucp_put_nbx(peer.endpoint, bytes.data(), bytes.size(), there.address, there.key, &moved));
  // The put completes when the bytes have left, the flush when they have arrived.
  const ucp_request_param_t arrived = completion(operation);
  posted(operation, ucp_ep_flush_nbx(peer.endpoint, &arrived));
  return {};
}

bool UcxWire::deliver(WireSink& sink) {
  const std::vector<Outcome> outcomes = std::exchange(outcomes_, {});
  for (const Outcome& outcome : outcomes) sink.on_bulk(outcome.id, outcome.result);
  return !outcomes.empty();
}

Result<bool> UcxWire::poll(WireSink& sink) {
  if (!worker_) return fail(Code::aborted, "the wire is closed");
  const GpuPointerQuery::Current current(gpu_.get());
  bool moved = false;
  sink_ = &sink;
  for (const auto& [from, frame] : std::exchange(waiting_, {})) sink.on_frame(from, frame);
  for (int pass = 0; pass < kPasses && worker_ && worker_->progress(); ++pass) moved = true;
  moved |= deliver(sink);
  sink_ = nullptr;
  flush_packets();
  if (broken_) return tl::unexpected(*broken_);
  for (std::size_t r = 0; r < peers_.size(); ++r)
    if (peers_[r].failed && !peers_[r].bye) return tl::unexpected(gone(Rank{static_cast<int>(r)}));
  return moved;
}

bool UcxWire::packets_out() const {
  return std::ranges::any_of(peers_, [](const Peer& p) { return p.out > 0 && !p.failed; });
}

bool UcxWire::drained() const {
  return !packets_out() && ((!unflushed_ && !flushing_) || sent_by_.expired());
}

void UcxWire::idle(Deadline until) {
  // Bounded, so that the caller sees aborts, which come over the control plane.
  constexpr std::chrono::nanoseconds kMaxSleep = std::chrono::milliseconds(5);
  const std::chrono::nanoseconds left = until.time() - Deadline::Clock::now();
  const GpuPointerQuery::Current current(gpu_.get());
  if (worker_) worker_->sleep(until.is_never() ? kMaxSleep : std::min(kMaxSleep, left));
}

/// Starts a flush if packets have been taken over since the last one began: they have left only
/// once the library's own buffers are empty. It flushes the worker, because over TCP the flush of
/// an endpoint puts zero bytes into the peer, and if the peer dies meanwhile, an assertion of UCX
/// 1.13 may end this process.
void UcxWire::flush_packets() {
  if (!unflushed_ || flushing_ || packets_out()) return;
  unflushed_ = false;
  flushing_ = true;
  Operation& operation = begin(Operation::What::flush, 1);
  const ucp_request_param_t param = completion(operation);
  posted(operation, ucp_worker_flush_nbx(worker_->handle(), &param));
}

void UcxWire::close() {
  if (!worker_) return;
  const GpuPointerQuery::Current current(gpu_.get());
  for (int r = 0; r < size(); ++r)
    if (Rank{r} != rank_) (void)send_packet(Rank{r}, Kind::bye, {});
  const Deadline parting = Deadline::after(kCloseTimeout);
  for (flush_packets(); packets_out() || unflushed_ || flushing_; flush_packets()) {
    if (parting.expired()) break;
    if (!worker_->progress()) idle(parting);
  }
  for (const auto& [key, expected] : expected_)
    if (expected.announced != nullptr) ucp_am_data_release(worker_->handle(), expected.announced);
  expected_.clear();
  for (Peer& peer : peers_) peer.memory.release();
  memory_.release();
  worker_.reset();
}

Result<std::unique_ptr<messages::Wire>> UcxWire::make(ControlPlane& control,
                                                      const TransportOptions& options) {
  const std::string host = host_identity();
  const auto hosts =
      RESHARD_TRY(control.all_gather(std::as_bytes(std::span(host)), options.deadline));
  const bool one_host = std::ranges::all_of(hosts, [&](const auto& h) { return h == hosts[0]; });
  // A rank that cannot take part tells all others, so that nobody waits for it.
  auto own = start_library(one_host, options);
  Result<std::vector<std::byte>> address =
      own ? own->worker->address() : tl::unexpected(own.error());
  std::vector<std::byte> mine{std::byte{address.has_value()}};
  const std::string text = address ? "" : address.error().message;
  const auto rest = address ? std::span<const std::byte>(*address) : std::as_bytes(std::span(text));
  mine.insert(mine.end(), rest.begin(), rest.end());
  auto all = RESHARD_TRY(control.all_gather(mine, options.deadline));
  if (!address) return tl::unexpected(address.error());
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (all[r].size() > 1 && all[r][0] == std::byte{1}) {
      all[r].erase(all[r].begin());
      continue;
    }
    const std::string why(reinterpret_cast<const char*>(all[r].data()), all[r].size());
    return fail(Code::aborted,
                fmt::format("rank {}: {}", r, why.empty() ? "no reason given" : why.substr(1)));
  }
  auto wire = std::make_unique<UcxWire>(std::move(own->worker), std::move(own->gpu), control.rank(),
                                        control.size(), wants_puts());
  RESHARD_TRY(wire->connect(all, control, options.deadline));
  return wire;
}

}  // namespace reshard::ucx
