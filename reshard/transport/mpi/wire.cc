// SPDX-License-Identifier: Apache-2.0
// Frames are MPI messages with one tag, received with MPI_Improbe because their number is unknown.
// Bulks are synchronous sends in pieces: a piece that no peer received stays incomplete, so close()
// knows whether the channels are clean. The pieces of a bulk share a tag, because MPI keeps the
// order of messages with one tag; few are in flight at a time, which bounds what may be left when a
// group ends. With a GPU it is the current one in calls that may touch bulks; the library finds out
// by itself which memory is where.
#include "reshard/transport/mpi/wire.h"

#include <fmt/format.h>
#include <sched.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <limits>

#include "reshard/transport/gpu_pointer_query.h"
#include "reshard/transport/mpi/channels.h"
#include "reshard/transport/mpi/runtime.h"

namespace reshard::mpi {
namespace {

constexpr std::size_t kMaxFrame = 16 * 1024;
constexpr std::size_t kPieceBytes = std::size_t{16} << 20;
constexpr int kPiecesAtOnce = 4;
constexpr int kFrameTag = 0;
constexpr int kFramesAPoll = 64;
constexpr std::size_t kHeader = 3 * sizeof(std::uint64_t);
constexpr std::size_t kSpareFrames = 64;
constexpr std::chrono::milliseconds kCloseTimeout{1000};

/// The header of a frame.
struct Header {
  std::uint64_t group = 0;  ///< the number of its group; identifies stale frames.
  /// The number of bulks that the sender of this frame had received from its receiver. MPI may
  /// report the end of such a bulk after this frame, which is then held back until that.
  std::uint64_t bulks_here = 0;
  std::uint64_t bye = 0;  ///< not 0: the sender receives no more bulks.
};

struct OutFrame {
  MPI_Request request;
  std::vector<std::byte> bytes;
};

/// A frame that is being received.
struct InFrame {
  MPI_Request request;
  std::vector<std::byte> bytes;
};

/// The state of a peer.
struct Peer {
  std::deque<InFrame> incoming;  ///< delivered in order.
  std::uint64_t sent = 0;        ///< bulks to it that were started.
  std::uint64_t sent_ended = 0;  ///< of these, the ones that have ended.
  std::uint64_t received = 0;    ///< bulks from it that are complete.
  bool bye = false;
};

struct Bulk {
  messages::BulkId id;
  bool sending;
  int peer;
  int tag;
  std::byte* next;   ///< where the next piece begins.
  std::size_t left;  ///< bytes that are in no piece yet.
  int in_flight = 0;
  Result<> outcome;
};

Result<> with_peer(int code, std::string_view what, int peer) {
  return to_result(code, fmt::format("{} rank {}", what, peer));
}

class MpiWire final : public messages::Wire {
 public:
  /// `gpu`: of a library that takes GPU memory, else null.
  MpiWire(ControlPlane& control, Channels channels, int tags, std::unique_ptr<GpuPointerQuery> gpu)
      : control_(control),
        gpu_(std::move(gpu)),
        rank_(control.rank()),
        size_(control.size()),
        channels_(std::move(channels)),
        tags_(tags),
        peers_(static_cast<std::size_t>(size_)) {}
  ~MpiWire() override { close(); }

  std::string_view name() const override { return "mpi"; }
  Rank rank() const override { return rank_; }
  int size() const override { return size_; }
  Capabilities capabilities() const override {
    return {.message = true, .gpu_messages = gpu_ != nullptr};
  }
  bool on_gpu(std::span<const std::byte> bytes) const override {
    return gpu_ && gpu_->contains(bytes.data());
  }
  std::size_t max_frame() const override { return kMaxFrame; }

  Result<> send_frame(Rank to, std::span<const std::byte> frame) override;
  Result<> send_bulk(Rank to, std::uint64_t tag, std::span<const std::byte> bytes,
                     messages::BulkId id) override {
    // One function serves both directions; a send only reads.
    return start(true, to, tag, const_cast<std::byte*>(bytes.data()), bytes.size(), id);
  }
  Result<> recv_bulk(Rank from, std::uint64_t tag, std::span<std::byte> bytes,
                     messages::BulkId id) override {
    return start(false, from, tag, bytes.data(), bytes.size(), id);
  }
  Result<bool> poll(messages::WireSink& sink) override;
  void idle(Deadline until) override;
  void close() override;

 private:
  Peer& peer(int rank) { return peers_[static_cast<std::size_t>(rank)]; }
  Result<> post_frame(int to, bool bye, std::span<const std::byte> frame);
  Result<> start(bool sending, Rank peer, std::uint64_t tag, std::byte* bytes, std::size_t size,
                 messages::BulkId id);
  Result<> start_pieces(std::size_t bulk);
  Result<bool> take_frames(messages::WireSink& sink);
  Result<bool> take_frame(messages::WireSink& sink, MPI_Message message, const MPI_Status& status);
  Result<bool> deliver(messages::WireSink& sink, int from);
  Result<> release_sent_frames();
  Result<bool> take_pieces(messages::WireSink* sink);
  void cancel_receives();
  bool drain(Deadline deadline);
  bool all_settled() const;

  ControlPlane& control_;
  const std::unique_ptr<GpuPointerQuery> gpu_;
  const Rank rank_;
  const int size_;
  Channels channels_;
  const int tags_;  ///< bulk tags are 1 to tags_.
  bool closed_ = false;
  bool clean_ = true;
  int idle_rounds_ = 0;
  std::deque<OutFrame> outgoing_;
  std::vector<Peer> peers_;  ///< by rank.
  std::size_t num_incoming_ = 0;
  std::vector<std::vector<std::byte>> spare_;  ///< memory of frames that were sent.
  std::vector<std::byte> room_;                ///< memory for the next received frame.
  // Requests are kept apart from their bulks, because MPI needs them in one array.
  std::vector<MPI_Request> requests_;
  std::vector<std::size_t> bulk_of_;
  std::vector<int> done_;
  std::vector<MPI_Status> statuses_;
  std::vector<std::size_t> over_;  ///< bulks that ended in this poll.
  std::vector<Bulk> bulks_;
  std::vector<std::size_t> free_;
};

Result<> MpiWire::send_frame(Rank to, std::span<const std::byte> frame) {
  if (closed_) return fail(Code::aborted, "mpi: used after close()");
  return post_frame(to.value(), false, frame);
}

Result<> MpiWire::post_frame(int to, bool bye, std::span<const std::byte> frame) {
  std::vector<std::byte> bytes;
  if (!spare_.empty()) {
    bytes = std::move(spare_.back());
    spare_.pop_back();
  }
  bytes.resize(kHeader + frame.size());
  const Header header{channels_.group, peer(to).received, bye ? 1U : 0U};
  std::memcpy(bytes.data(), &header, kHeader);
  std::ranges::copy(frame, bytes.begin() + kHeader);
  OutFrame out{MPI_REQUEST_NULL, std::move(bytes)};
  RESHARD_TRY(to_result(MPI_Isend(out.bytes.data(), static_cast<int>(out.bytes.size()), MPI_BYTE,
                                  to, kFrameTag, channels_.frames, &out.request),
                        "MPI_Isend of a frame"));
  outgoing_.push_back(std::move(out));
  return {};
}

Result<> MpiWire::start(bool sending, Rank peer, std::uint64_t tag, std::byte* bytes,
                        std::size_t size, messages::BulkId id) {
  if (closed_) return fail(Code::aborted, "mpi: used after close()");
  const GpuPointerQuery::Current current(gpu_.get());
  const int mpi_tag = 1 + static_cast<int>(tag % static_cast<std::uint64_t>(tags_));
  std::size_t at = bulks_.size();
  if (free_.empty()) {
    bulks_.emplace_back();
  } else {
    at = free_.back();
    free_.pop_back();
  }
  bulks_[at] = {id, sending, peer.value(), mpi_tag, bytes, size, 0, {}};
  Result<> started = start_pieces(at);
  if (sending) ++this->peer(peer.value()).sent;
  // With pieces in flight, poll() reports its end, like that of any other bulk.
  if (!started && bulks_[at].in_flight == 0) {
    free_.push_back(at);
    return started;
  }
  return {};
}

Result<> MpiWire::start_pieces(std::size_t at) {
  Bulk& bulk = bulks_[at];
  while (bulk.left > 0 && bulk.in_flight < kPiecesAtOnce && bulk.outcome) {
    const std::size_t bytes = std::min(bulk.left, kPieceBytes);
    const int count = static_cast<int>(bytes);
    MPI_Request request = MPI_REQUEST_NULL;
    const int code =
        bulk.sending
            ? MPI_Issend(bulk.next, count, MPI_BYTE, bulk.peer, bulk.tag, channels_.bulks, &request)
            : MPI_Irecv(bulk.next, count, MPI_BYTE, bulk.peer, bulk.tag, channels_.bulks, &request);
    if (code != MPI_SUCCESS) {
      clean_ = false;
      bulk.outcome = with_peer(code, bulk.sending ? "MPI_Issend to" : "MPI_Irecv from", bulk.peer);
      return bulk.outcome;
    }
    bulk.next += bytes;
    bulk.left -= bytes;
    ++bulk.in_flight;
    requests_.push_back(request);
    bulk_of_.push_back(at);
  }
  return {};
}

Result<bool> MpiWire::poll(messages::WireSink& sink) {
  if (closed_) return fail(Code::aborted, "mpi: used after close()");
  const GpuPointerQuery::Current current(gpu_.get());
  bool moved = RESHARD_TRY(take_frames(sink));
  if (RESHARD_TRY(take_pieces(&sink))) moved = true;
  RESHARD_TRY(release_sent_frames());
  if (moved) idle_rounds_ = 0;
  return moved;
}

Result<bool> MpiWire::take_frames(messages::WireSink& sink) {
  bool moved = false;
  for (int i = 0; i < kFramesAPoll; ++i) {
    int found = 0;
    MPI_Message message = MPI_MESSAGE_NULL;
    MPI_Status status;
    RESHARD_TRY(to_result(
        MPI_Improbe(MPI_ANY_SOURCE, kFrameTag, channels_.frames, &found, &message, &status),
        "MPI_Improbe"));
    if (found == 0) break;
    RESHARD_TRY(take_frame(sink, message, status));
    moved = true;
  }
  for (int from = 0; num_incoming_ > 0 && from < size_; ++from)
    if (!peer(from).incoming.empty() && RESHARD_TRY(deliver(sink, from))) moved = true;
  return moved;
}

Result<bool> MpiWire::take_frame(messages::WireSink& sink, MPI_Message message,
                                 const MPI_Status& status) {
  int bytes = 0;
  const int from = status.MPI_SOURCE;
  RESHARD_TRY(to_result(MPI_Get_count(&status, MPI_BYTE, &bytes), "MPI_Get_count"));
  const auto size = static_cast<std::size_t>(std::max(bytes, 0));
  if (from < 0 || from >= size_ || bytes < 0 || size < kHeader || size > kHeader + kMaxFrame) {
    return fail(Code::corrupt,
                fmt::format("mpi: a frame of {} bytes from rank {}: must have {} to {}", bytes,
                            from, kHeader, kHeader + kMaxFrame));
  }
  std::deque<InFrame>& queue = peer(from).incoming;
  InFrame in{MPI_REQUEST_NULL, std::move(room_)};
  in.bytes.resize(size);
  RESHARD_TRY(
      to_result(MPI_Imrecv(in.bytes.data(), bytes, MPI_BYTE, &message, &in.request), "MPI_Imrecv"));
  queue.push_back(std::move(in));
  ++num_incoming_;
  return deliver(sink, from);
}

Result<bool> MpiWire::deliver(messages::WireSink& sink, int from) {
  std::deque<InFrame>& queue = peer(from).incoming;
  bool moved = false;
  while (!queue.empty()) {
    int done = 0;
    const int code = MPI_Test(&queue.front().request, &done, MPI_STATUS_IGNORE);
    if (code != MPI_SUCCESS) RESHARD_TRY(with_peer(code, "a frame from", from));
    if (done == 0) break;
    Header header;
    std::memcpy(&header, queue.front().bytes.data(), kHeader);
    // A stale frame: a rank of an earlier group in these channels sent it to one that had left.
    const bool ours = header.group == channels_.group;
    if (ours && header.bulks_here > peer(from).sent) {
      return fail(Code::corrupt, fmt::format("mpi: rank {} reports {} bulks, but {} were sent",
                                             from, header.bulks_here, peer(from).sent));
    }
    if (ours && header.bulks_here > peer(from).sent_ended && header.bye == 0) break;
    std::vector<std::byte> bytes = std::move(queue.front().bytes);
    queue.pop_front();
    --num_incoming_;
    if (ours && header.bye != 0) peer(from).bye = true;
    if (ours && header.bye == 0) sink.on_frame(Rank{from}, std::span(bytes).subspan(kHeader));
    room_ = std::move(bytes);
    moved = true;
  }
  return moved;
}

Result<> MpiWire::release_sent_frames() {
  while (!outgoing_.empty()) {
    int done = 0;
    RESHARD_TRY(to_result(MPI_Test(&outgoing_.front().request, &done, MPI_STATUS_IGNORE),
                          "a frame in flight"));
    if (done == 0) break;
    if (spare_.size() < kSpareFrames) spare_.push_back(std::move(outgoing_.front().bytes));
    outgoing_.pop_front();
  }
  return {};
}

Result<bool> MpiWire::take_pieces(messages::WireSink* sink) {
  if (requests_.empty()) return false;
  done_.resize(requests_.size());
  statuses_.resize(requests_.size());
  int count = 0;
  const int code = MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &count,
                                done_.data(), statuses_.data());
  if (code != MPI_SUCCESS && code != MPI_ERR_IN_STATUS) {
    clean_ = false;
    RESHARD_TRY(to_result(code, "MPI_Testsome"));
  }
  if (count == MPI_UNDEFINED || count <= 0) return false;
  const auto finished = std::span(done_).first(static_cast<std::size_t>(count));
  over_.clear();
  for (std::size_t i = 0; i < finished.size(); ++i) {
    const std::size_t at = bulk_of_[static_cast<std::size_t>(finished[i])];
    Bulk& bulk = bulks_[at];
    --bulk.in_flight;
    if (code == MPI_ERR_IN_STATUS && bulk.outcome)
      bulk.outcome =
          with_peer(statuses_[i].MPI_ERROR, bulk.sending ? "a bulk to" : "a bulk from", bulk.peer);
    if (!bulk.outcome) clean_ = false;
    if (!closed_) (void)start_pieces(at);
    if (bulk.in_flight == 0 && (bulk.left == 0 || !bulk.outcome || closed_)) over_.push_back(at);
  }
  // start_pieces() may have appended requests; finished ones are MPI_REQUEST_NULL now.
  std::size_t kept = 0;
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    if (requests_[i] == MPI_REQUEST_NULL) continue;
    requests_[kept] = requests_[i];
    bulk_of_[kept++] = bulk_of_[i];
  }
  requests_.resize(kept);
  bulk_of_.resize(kept);
  for (const std::size_t at : over_) {
    const messages::BulkId id = bulks_[at].id;
    Peer& with = peer(bulks_[at].peer);
    if (bulks_[at].sending) ++with.sent_ended;
    if (!bulks_[at].sending && bulks_[at].outcome && bulks_[at].left == 0 && !closed_)
      ++with.received;
    Result<> outcome = std::move(bulks_[at].outcome);
    free_.push_back(at);
    if (sink != nullptr) sink->on_bulk(id, std::move(outcome));
  }
  return true;
}

void MpiWire::idle(Deadline until) {
  // MPI has no wait with a timeout: yield a few times, then sleep briefly. Sleeps are shorter with
  // bulks in flight, which need this process to make progress.
  constexpr int kYields = 20;
  if (++idle_rounds_ <= kYields) {
    sched_yield();
    return;
  }
  const std::int64_t longest = requests_.empty() ? 500'000 : 50'000;
  const std::int64_t wish = std::min<std::int64_t>(longest, 5'000 * (idle_rounds_ - kYields));
  std::int64_t left = std::numeric_limits<std::int64_t>::max();
  if (!until.is_never())
    left = (until.time() - Deadline::Clock::now()) / std::chrono::nanoseconds(1);
  const timespec time{0, static_cast<long>(std::clamp<std::int64_t>(left, 0, wish))};
  nanosleep(&time, nullptr);
}

void MpiWire::cancel_receives() {
  std::vector<bool> cancelled(static_cast<std::size_t>(size_), false);
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    const Bulk& bulk = bulks_[bulk_of_[i]];
    clean_ = false;
    if (bulk.sending) continue;
    MPI_Cancel(&requests_[i]);
    cancelled[static_cast<std::size_t>(bulk.peer)] = true;
  }
  // Receives that are matched already must complete: wait for them before telling the peer that its
  // memory is not read any more.
  const Deadline deadline = Deadline::after(kCloseTimeout);
  const auto receiving = [&] {
    return std::ranges::any_of(bulk_of_, [&](std::size_t at) { return !bulks_[at].sending; });
  };
  while (receiving() && !deadline.expired()) {
    const Result<bool> moved = take_pieces(nullptr);
    if (!moved) break;
    if (!*moved) idle(deadline);
  }
  for (int r = 0; r < size_; ++r)
    if (cancelled[static_cast<std::size_t>(r)]) (void)post_frame(r, true, {});
}

bool MpiWire::all_settled() const {
  return outgoing_.empty() && std::ranges::all_of(bulk_of_, [&](std::size_t at) {
           return peers_[static_cast<std::size_t>(bulks_[at].peer)].bye;
         });
}

/// Makes progress until all sends have completed or their receivers have cancelled them.
bool MpiWire::drain(Deadline deadline) {
  struct NullSink final : messages::WireSink {
    void on_frame(Rank, std::span<const std::byte>) override {}
    void on_bulk(messages::BulkId, Result<>) override {}
    void on_gone(Rank, Error) override {}
  } null_sink;
  idle_rounds_ = 0;
  while (!all_settled()) {
    const Result<bool> frames = take_frames(null_sink);
    const Result<bool> pieces = take_pieces(nullptr);
    if (!frames || !pieces || !release_sent_frames()) return false;
    if (deadline.expired()) return false;
    if (!*frames && !*pieces) idle(deadline);
  }
  return true;
}

void MpiWire::close() {
  if (closed_) return;
  closed_ = true;
  const GpuPointerQuery::Current current(gpu_.get());
  cancel_receives();
  if (!drain(Deadline::after(kCloseTimeout))) clean_ = false;
  // The library keeps frames to a rank that is gone, from a copy that is never freed. Bulks that
  // nobody receives stay behind in channels that are not reused.
  for (OutFrame& frame : outgoing_) keep_until_sent(frame.request, std::move(frame.bytes));
  outgoing_.clear();
  if (!requests_.empty() || num_incoming_ > 0) clean_ = false;
  group_ended(clean_ && control_.status(), channels_.whole_world);
  if (clean_) give_back_channels(std::move(channels_));
}

}  // namespace

Result<std::unique_ptr<messages::Wire>> make_wire(ControlPlane& control,
                                                  const TransportOptions& options) {
  Result<std::unique_ptr<GpuPointerQuery>> gpu = GpuPointerQuery::open_if_any(options.gpu);
  Result<Channels> channels = [&] {
    // A library that starts now looks for the current GPU.
    const GpuPointerQuery::Current current(gpu ? gpu->get() : nullptr);
    return take_channels(control, options.deadline);
  }();
  if (!channels) return tl::unexpected(std::move(channels).error());
  if (!gpu) return tl::unexpected(std::move(gpu).error());
  if (*gpu && !host_memory_reason().empty()) gpu->reset();
  const int tags = largest_tag(channels->bulks);
  return std::unique_ptr<messages::Wire>(
      std::make_unique<MpiWire>(control, *std::move(channels), tags, *std::move(gpu)));
}

}  // namespace reshard::mpi
