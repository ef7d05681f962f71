// SPDX-License-Identifier: Apache-2.0
#include "reshard/gpu_transport/nccl/nccl_model_testutil.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "reshard/base/hash.h"
#include "reshard/cuda/driver.h"
#include "reshard/cuda/emulated_gpu_testutil.h"

namespace reshard::nccl {
namespace {

constexpr int kRemoteError = 6;
constexpr int kRoundsPerBatch = 8;

/// A message of a group, of one rank.
struct Op {
  bool sending = false, done = false, posted = false;
  int peer = 0, epoch = 0, round = 0;
  std::byte* bytes = nullptr;
  std::size_t size = 0;
  auto batch() const { return std::pair(epoch, round / kRoundsPerBatch); }
};

struct Member;

/// The ranks that have one unique id.
struct World {
  int ranks = 0, joined = 0;
  std::set<Member*> running;  ///< those that run a group.
  /// The operations that are posted and not matched, by (sender, receiver).
  std::map<std::pair<int, int>, std::deque<Op*>> sends, recvs;
  std::set<std::pair<int, int>> arrived_sends, arrived_recvs;  ///< at connecting.
};

/// The sends and receives of a rank between ncclGroupStart and ncclGroupEnd.
struct OpGroup {
  std::vector<Op> ops;
  cuda::StreamHandle stream = nullptr;
};

struct Member {
  std::shared_ptr<World> world;
  int rank = 0, polls = 0;
  bool joining = true, finalized = false, aborted = false;
  std::shared_ptr<OpGroup> waiting;  ///< given, not accepted.
  OpGroup* running = nullptr;        ///< at the front of its stream.
  int status = kSuccess;
};

struct State {
  std::mutex mutex;  ///< taken after that of the emulated GPU, never held while calling it.
  NcclModel model;
  std::uint64_t last_id = 0, draws = 0;
  std::map<std::uint64_t, std::shared_ptr<World>> worlds;
  int open = 0;
};

State& state() {
  static State all;
  return all;
}

}  // namespace
}  // namespace reshard::nccl

struct ncclComm {
  std::shared_ptr<reshard::nccl::Member> member;
};

namespace reshard::nccl {
namespace {

thread_local int depth = 0;
thread_local Comm group_comm = nullptr;
thread_local std::shared_ptr<OpGroup> group;

/// Counts a call. Returns the fault that was asked for, or success.
int called(const char* name, int rank) {
  NcclModel& model = state().model;
  ++model.calls[name];
  const auto fault = model.faults.find({rank, name});
  if (fault == model.faults.end()) return kSuccess;
  const int status = fault->second;
  model.faults.erase(fault);
  return status;
}

int polls_to_accept() {
  State& s = state();
  if (s.model.seed == 0) return s.model.polls_to_accept;
  return static_cast<int>(mix64(s.model.seed + ++s.draws) % 4);
}

bool is_on_gpu(const void* at) {
  unsigned type = 0;
  const auto address = reinterpret_cast<cuda::DevicePtr>(at);
  const int status =
      cuda::emulated_driver().cuPointerGetAttribute(&type, cuda::kMemoryType, address);
  return status == cuda::kSuccess && type == cuda::kDeviceMemory;
}

/// Moves what has matched between two ranks. Different sizes never do.
void match(World& world, int from, int to) {
  auto& sends = world.sends[{from, to}];
  auto& recvs = world.recvs[{from, to}];
  while (!sends.empty() && !recvs.empty() && sends.front()->size == recvs.front()->size) {
    std::memcpy(recvs.front()->bytes, sends.front()->bytes, sends.front()->size);
    sends.front()->done = recvs.front()->done = true;
    sends.pop_front();
    recvs.pop_front();
  }
}

void post(Member& me, Op& op) {
  World& world = *me.world;
  op.posted = true;
  if (op.sending) {
    world.sends[{me.rank, op.peer}].push_back(&op);
    match(world, me.rank, op.peer);
  } else {
    world.recvs[{op.peer, me.rank}].push_back(&op);
    match(world, op.peer, me.rank);
  }
}

/// The round of messages from one rank to another (ncclP2pSchedule): by the distance of the hosts,
/// in the order 0, 1, 3, 6, 10, ... modulo a power of two, then by that of the ranks in their
/// hosts.
int round_of(int from, int to, int ranks) {
  const int local = state().model.ranks_per_host > 0 ? state().model.ranks_per_host : ranks;
  const int hosts = ranks / local;
  const int host_distance = (to / local - from / local + hosts) % hosts;
  const int distance = (to % local - from % local + local) % local;
  const auto power = static_cast<int>(std::bit_ceil(static_cast<unsigned>(hosts)));
  int before = 0;
  for (int step = 1, at = 0; at != host_distance; at = (at + step++) & (power - 1))
    before += at < hosts ? 1 : 0;
  return before * local + distance;
}

/// Posts what may run now: of the ops, which are sorted by batch, those of the first batch that is
/// not over. True if it posted any.
bool post_next(Member& me, OpGroup& ops) {
  const auto first = std::ranges::find(ops.ops, false, &Op::done);
  bool moved = false;
  for (auto op = first; op != ops.ops.end() && op->batch() == first->batch(); ++op) {
    if (op->posted) continue;
    post(me, *op);
    moved = true;
  }
  return moved;
}

/// The work of a group on its stream. True once it is over.
bool run(Member& me, OpGroup& ops) {
  const std::lock_guard lock(state().mutex);
  if (me.aborted) return true;
  if (const auto error = state().model.async_errors.find(me.rank);
      error != state().model.async_errors.end()) {
    me.status = error->second;
    state().model.async_errors.erase(error);
  }
  if (me.status != kSuccess) {  // A kernel that fails stays, and does nothing.
    me.world->running.erase(&me);
    return false;
  }
  me.running = &ops;
  me.world->running.insert(&me);
  // The kernels of peers that run go on by themselves.
  for (bool moved = true; moved;) {
    moved = false;
    for (Member* const member : me.world->running) moved |= post_next(*member, *member->running);
  }
  if (!std::ranges::all_of(ops.ops, &Op::done)) return false;
  me.world->running.erase(&me);
  return true;
}

/// True once all new peers of the group have arrived at theirs.
bool connect(Member& me, const OpGroup& ops) {
  World& world = *me.world;
  bool all = true;
  for (const Op& op : ops.ops) {
    const auto pair = op.sending ? std::pair(me.rank, op.peer) : std::pair(op.peer, me.rank);
    (op.sending ? world.arrived_sends : world.arrived_recvs).insert(pair);
    all &= (op.sending ? world.arrived_recvs : world.arrived_sends).contains(pair);
  }
  return all;
}

int get_async_error(Comm comm, int* status) {
  std::shared_ptr<Member> me = comm->member;
  std::shared_ptr<OpGroup> accepted;
  {
    const std::lock_guard lock(state().mutex);
    if (const int fault = called("ncclCommGetAsyncError", me->rank); fault != kSuccess)
      return fault;
    *status = me->status;
    if (me->status != kSuccess) return kSuccess;
    *status = kInProgress;
    if (me->joining || me->waiting) {
      if (me->polls > 0) {
        --me->polls;
        return kSuccess;
      }
      if (me->joining && me->world->joined < me->world->ranks) return kSuccess;
      me->joining = false;
      if (me->waiting && !connect(*me, *me->waiting)) return kSuccess;
      accepted = std::move(me->waiting);
    }
    *status = kSuccess;
  }
  if (accepted)
    cuda::give_emulated_work(accepted->stream, [me, accepted] { return run(*me, *accepted); });
  return kSuccess;
}

int init(Comm* comm, int ranks, UniqueId id, int rank, Config* config) {
  const std::lock_guard lock(state().mutex);
  if (const int fault = called("ncclCommInitRankConfig", rank); fault != kSuccess) return fault;
  if (config->size != 48 || config->magic != 0xcafebeef || config->version != 21800 ||
      config->blocking != 0)
    return kInvalidArgument;
  std::uint64_t number = 0;
  std::memcpy(&number, id.internal, sizeof number);
  auto& world = state().worlds[number];
  if (world == nullptr) world = std::make_shared<World>();
  world->ranks = ranks;
  ++world->joined;
  auto member = std::make_shared<Member>();
  member->world = world;
  member->rank = rank;
  member->polls = state().model.polls_to_join;
  *comm = new ncclComm{std::move(member)};
  ++state().open;
  return kInProgress;
}

int add_op(const char* name, const Op& op, Comm comm, cuda::StreamHandle stream) {
  const bool on_gpu = is_on_gpu(op.bytes);
  const std::lock_guard lock(state().mutex);
  const Member& me = *comm->member;
  if (const int fault = called(name, me.rank); fault != kSuccess) return fault;
  if (depth == 0 || !on_gpu || op.peer == me.rank || me.joining || me.waiting != nullptr)
    return kInvalidUsage;
  group->ops.push_back(op);
  group->ops.back().epoch =
      static_cast<int>(std::ranges::count_if(
          group->ops, [&](const Op& o) { return o.peer == op.peer && o.sending == op.sending; })) -
      1;
  group->stream = stream;
  group_comm = comm;
  state().model.largest_message = std::max(state().model.largest_message, op.size);
  return kSuccess;
}

int end_group() {
  const std::lock_guard lock(state().mutex);
  if (--depth > 0 || group_comm == nullptr) return kSuccess;
  Member& me = *group_comm->member;
  group_comm = nullptr;
  if (const int fault = called("ncclGroupEnd", me.rank); fault != kSuccess) return fault;
  for (Op& op : group->ops) {
    const int from = op.sending ? me.rank : op.peer;
    op.round = round_of(from, op.sending ? op.peer : me.rank, me.world->ranks);
  }
  std::ranges::stable_sort(group->ops, {},
                           [](const Op& op) { return std::pair(op.epoch, op.round); });
  NcclModel& model = state().model;
  model.largest_group = std::max(model.largest_group, static_cast<int>(group->ops.size()));
  me.waiting = std::move(group);
  me.polls = polls_to_accept();
  return kInProgress;
}

/// Takes back what a rank posted.
void withdraw(Member& me) {
  for (auto* posted : {&me.world->sends, &me.world->recvs}) {
    const bool sends = posted == &me.world->sends;
    std::erase_if(*posted, [&](const auto& entry) {
      return (sends ? entry.first.first : entry.first.second) == me.rank;
    });
  }
}

int leave(const char* name, Comm comm, bool abort) {
  const std::lock_guard lock(state().mutex);
  Member& me = *comm->member;
  if (const int fault = called(name, me.rank); fault != kSuccess) return fault;
  if (!abort && !me.finalized) return kInvalidUsage;
  me.aborted = true;
  withdraw(me);
  me.world->running.erase(&me);
  me.waiting.reset();
  --state().open;
  delete comm;
  return kSuccess;
}

void set_groups(Nccl& n) {
  n.ncclGroupStart = [] {
    if (depth++ == 0) group = std::make_shared<OpGroup>();
    return static_cast<int>(kSuccess);
  };
  n.ncclGroupEnd = end_group;
  n.ncclSend = [](const void* at, std::size_t count, int, int peer, Comm comm,
                  cuda::StreamHandle stream) {
    Op op{.sending = true, .peer = peer, .size = count};
    op.bytes = static_cast<std::byte*>(const_cast<void*>(at));
    return add_op("ncclSend", op, comm, stream);
  };
  n.ncclRecv = [](void* at, std::size_t count, int, int peer, Comm comm,
                  cuda::StreamHandle stream) {
    Op op{.sending = false, .peer = peer, .size = count};
    op.bytes = static_cast<std::byte*>(at);
    return add_op("ncclRecv", op, comm, stream);
  };
}

void set_communicators(Nccl& n) {
  n.ncclGetUniqueId = [](UniqueId* id) {
    const std::lock_guard lock(state().mutex);
    std::memcpy(id->internal, &++state().last_id, sizeof state().last_id);
    return called("ncclGetUniqueId", 0);
  };
  n.ncclCommInitRankConfig = init;
  n.ncclCommFinalize = [](Comm comm) {
    const std::lock_guard lock(state().mutex);
    comm->member->finalized = true;
    const int fault = called("ncclCommFinalize", comm->member->rank);
    return fault == kSuccess ? static_cast<int>(kInProgress) : fault;
  };
  n.ncclCommDestroy = [](Comm comm) { return leave("ncclCommDestroy", comm, false); };
  n.ncclCommAbort = [](Comm comm) { return leave("ncclCommAbort", comm, true); };
  n.ncclCommGetAsyncError = get_async_error;
}

}  // namespace

void NcclModel::reset() { *this = NcclModel(); }

int NcclModel::num_open() const { return state().open; }

NcclModel& nccl_model() { return state().model; }

const Nccl& model_nccl() {
  static const Nccl nccl = [] {
    Nccl n;
    n.version = 22703;
    n.path = "model";
    n.ncclGetVersion = [](int* version) {
      *version = 22703;
      return static_cast<int>(kSuccess);
    };
    n.ncclGetErrorString = [](int status) {
      return status == kRemoteError ? "remote process exited" : "modelled error";
    };
    n.ncclGetLastError = [](Comm) { return ""; };
    set_communicators(n);
    set_groups(n);
    return n;
  }();
  return nccl;
}

}  // namespace reshard::nccl
