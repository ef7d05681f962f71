// SPDX-License-Identifier: Apache-2.0
// Protects: a refit writes only memory that it may write. Random walks over what callers do with
// memory between refits (swap, free, alias, freeze, update) are compared with a plain model.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <random>

#include "reshard/model/explicit_slots.h"
#include "reshard/refit/session/session_testutil.h"
#include "reshard/transport/inproc/inproc.h"

namespace reshard {
namespace {

using Block = std::shared_ptr<std::byte[]>;

/// Memory of one local tensor, as the caller knows it.
struct Cell {
  Block block;
  std::byte* at = nullptr;
  std::size_t bytes = 0;
  bool read_only = false;
  bool overlaps(const Cell& other) const {
    return at < other.at + other.bytes && other.at < at + bytes;
  }
};

/// "w" and "v" are stored as they are, "x" is rounded to BF16, "empty" has no elements.
std::shared_ptr<const ModelLayout> layout_with(std::shared_ptr<const ModelSpec> model, int ranks,
                                               bool rounds) {
  LayoutBuilder builder(rounds ? "to" : "from", model);
  ExplicitSlots slots(builder);
  for (const CanonicalTensor& t : model->tensors()) {
    ExplicitTensor local{.name = t.name, .dtype = t.dtype, .shape = t.shape};
    if (rounds && t.name == "x") {
      local.dtype = DType::bf16;
      local.casts = true;
    }
    Section section = whole_tensor(*model, *model->find(t.name));
    local.parts = section.parts;
    slots.add(RankSet::range(0, ranks), std::move(local));
  }
  slots.finish();
  return std::make_shared<const ModelLayout>(*std::move(builder).finish());
}

SessionLayouts small_job(int ranks) {
  ModelSpec model;
  for (const auto& [name, shape, dtype] :
       {std::tuple("w", Dims{4, 6}, DType::u8), std::tuple("v", Dims{7}, DType::bf16),
        std::tuple("empty", Dims{0, 3}, DType::f32), std::tuple("x", Dims{5}, DType::f32)})
    EXPECT_TRUE(model.add(name, shape, dtype));
  const auto shared = std::make_shared<const ModelSpec>(std::move(model));
  return {layout_with(shared, ranks, false), layout_with(shared, ranks, true), ranks};
}

/// The random actions of one rank's caller, and the outcomes that they must have.
class Walk {
 public:
  enum Side : std::size_t { source, target, back };

  Walk(const SessionLayouts& job, RankEnds& ends, SessionOptions options, unsigned seed)
      : job_(job),
        ends_(ends),
        options_(std::move(options)),
        shared_(seed),
        own_(seed * 2 + static_cast<unsigned>(ends.rank().value())) {
    for (const Side side : {source, target, back})
      for (const SlotId slot : layout(side).slots_of(me())) {
        cells_[side].emplace_back();
        place(cells_[side].back(), size(side, slot));
      }
    begin_session();
  }

  void step() {
    // What all ranks do; each to memory of its own choice.
    switch (shared_() % 12) {
      case 0:
      case 1: place(any_cell(), 0); break;
      case 2: alias(any_cell(), any_cell()); break;
      case 3: join(any_cell(), any_cell()); break;
      case 4: any_cell().read_only ^= true; break;
      case 5: separate(); break;
      case 6:
        separate();
        replace_buffers();
        break;
      case 7: replace_buffers(); break;
      case 8: spoil_version(); break;
      case 9: verify(); return;
      default: break;
    }
    if (pick(3) == 0) replace_buffers();
    bind_all();
    refit();
    if (pick(8) == 0) separate();
  }
  /// The numbers of refits that were expected to succeed, and of those that were not.
  int successes = 0, refusals = 0;

 private:
  struct Verdict {
    bool trouble = false, moved = false, content = true;
  };

  Rank me() const { return ends_.rank(); }
  const ModelLayout& layout(std::size_t side) const {
    return side == source ? *job_.from : *job_.to;
  }
  std::size_t size(std::size_t side, SlotId slot) const {
    return static_cast<std::size_t>(bytes_of_local(layout(side), me(), slot));
  }
  std::size_t pick(std::size_t below) { return own_() % below; }
  Cell& any_cell() {
    auto& side = cells_[pick(3)];
    return side[pick(side.size())];
  }

  /// New memory at any alignment that ends where its block ends; the old is freed. Keeps values.
  void place(Cell& cell, std::size_t bytes) {
    const Cell old = cell;
    cell.bytes = bytes > 0 ? bytes : cell.bytes;
    const std::size_t before = pick(9);
    cell.block = std::make_shared<std::byte[]>(before + cell.bytes);
    cell.at = cell.block.get() + before;
    cell.read_only = false;
    if (old.at != nullptr) std::memcpy(cell.at, old.at, cell.bytes);
  }
  bool is_source(const Cell& cell) const {
    return &cell >= cells_[source].data() && &cell < cells_[source].data() + cells_[source].size();
  }
  /// Makes one cell a part of another. Sources may share memory; those of "x" would then hold what
  /// is no number, and those of two ranks would differ.
  void alias(Cell& cell, const Cell& other) {
    if (&cell == &other || cell.bytes > other.bytes) return;
    const bool has_x = &cell == &cells_[source].back() || &other == &cells_[source].back();
    if (is_source(cell) && is_source(other) && (has_x || ends_.size() > 1)) return;
    cell.block = other.block;
    cell.at = other.at + pick(other.bytes - cell.bytes + 1);
  }
  /// Makes two cells neighbours in one block, which is fine.
  void join(Cell& a, Cell& b) {
    if (&a == &b) return;
    const Cell first = a, second = b;
    const Block block = std::make_shared<std::byte[]>(a.bytes + b.bytes);
    std::memcpy(block.get(), first.at, a.bytes);
    std::memcpy(block.get() + a.bytes, second.at, b.bytes);
    a.block = b.block = block;
    a.at = block.get();
    b.at = block.get() + a.bytes;
  }
  void separate() {
    for (auto& side : cells_)
      for (Cell& cell : side) place(cell, 0);
  }
  void spoil_version() { spoiled_ = true; }

  void bind(Side side) {
    const auto slots = layout(side).slots_of(me());
    for (std::size_t i = 0; i < slots.size(); ++i) {
      const Cell& cell = cells_[side][i];
      const std::span bytes(cell.at, cell.bytes);
      EXPECT_EQ(outcome(cell.read_only ? buffers_[side]->bind_read_only(me(), slots[i], bytes)
                                       : buffers_[side]->bind(me(), slots[i], bytes)),
                "");
    }
  }
  void bind_all() {
    for (const Side side : {source, target, back}) bind(side);
  }
  void replace_buffers() {
    for (const Side side : {source, target, back})
      buffers_[side] = std::make_shared<RankBuffers>(side == source ? job_.from : job_.to);
    bind_all();
    if (session_) session_->update(source_side(), target_side());
  }
  SessionSide source_side() const {
    return {.layout = job_.from, .buffers = buffers_[source].get()};
  }
  SessionSide target_side() {
    return {.layout = job_.to,
            .buffers = buffers_[target].get(),
            .back = doubled() ? buffers_[back].get() : nullptr,
            .published = &published_};
  }
  bool doubled() const { return options_.buffering == Buffering::doubled; }

  void begin_session() {
    replace_buffers();
    auto made =
        Session::prepare(*ends_.transport, *ends_.control, source_side(), target_side(), options_);
    ASSERT_EQ(outcome(made), "");
    session_.emplace(*std::move(made));
    note_plan();
  }
  void note_plan() {
    planned_ = addresses();
    planned_buffers_ = buffers_;
  }
  std::vector<const std::byte*> addresses() const {
    std::vector<const std::byte*> out;
    for (const Side side : {source, target, back})
      for (const Cell& cell : cells_[side])
        if (side != back || doubled()) out.push_back(cell.bytes > 0 ? cell.at : nullptr);
    return out;
  }

  /// The model: every pair of cells is looked at.
  bool in_trouble() const {
    std::vector<std::pair<Side, const Cell*>> all;
    for (const Side side : {source, target, back})
      for (const Cell& cell : cells_[side])
        if (cell.bytes > 0 && (side != back || doubled())) all.emplace_back(side, &cell);
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (all[i].first != source && all[i].second->read_only) return true;
      for (std::size_t k = 0; k < i; ++k)
        if ((all[i].first != source || all[k].first != source) &&
            all[i].second->overlaps(*all[k].second))
          return true;
    }
    return spoiled_;
  }

  /// The verdict that all ranks expect: the findings of all of them together.
  Verdict agreed(const Verdict& mine) const {
    const std::array sent{
        static_cast<std::byte>(mine.trouble | mine.moved << 1 | !mine.content << 2)};
    Verdict out;
    const auto all = ends_.control->all_gather(sent, patient());
    EXPECT_EQ(outcome(all), "");
    for (const auto& said : *all) {
      const int bits = std::to_integer<int>(said[0]);
      out.trouble |= (bits & 1) != 0;
      out.moved |= (bits & 2) != 0;
      out.content &= (bits & 4) == 0;
    }
    return out;
  }

  bool is_x(std::size_t i) const { return i + 1 == cells_[source].size(); }
  /// Gives the sources new values. Those of "x" survive being rounded to BF16.
  void fill() {
    for (std::size_t i = 0; i < cells_[source].size(); ++i) {
      const Cell& cell = cells_[source][i];
      for (std::size_t k = 0; k < cell.bytes; ++k) {
        const auto value = static_cast<std::byte>(
            (version_ * 7 + static_cast<std::int64_t>(i * 31 + (is_x(i) ? k / 4 : k) * 3)) & 0x7f);
        if (!is_x(i)) cell.at[k] = value;
        if (is_x(i)) cell.at[k] = k % 4 == 3 ? std::byte{0x40} : k % 4 == 2 ? value : std::byte{0};
      }
    }
  }
  using Values = std::vector<std::vector<std::byte>>;
  /// The values that the target must hold after a refit of the sources as they are.
  Values implied() const {
    Values out;
    for (std::size_t i = 0; i < cells_[source].size(); ++i) {
      const Cell& cell = cells_[source][i];
      out.emplace_back();
      for (std::size_t k = 0; k < cell.bytes; ++k)
        if (!is_x(i) || k % 4 >= 2) out.back().push_back(cell.at[k]);
    }
    return out;
  }
  bool holds(const TargetVersion& version, const Values& values) const {
    const auto& copy = cells_[version.buffer == 0 ? target : back];
    for (std::size_t i = 0; i < copy.size(); ++i)
      if (!std::equal(values[i].begin(), values[i].end(), copy[i].at, copy[i].at + copy[i].bytes))
        return false;
    return true;
  }
  std::vector<std::byte> all_bytes() const {
    std::vector<std::byte> out;
    for (const auto& side : cells_)
      for (const Cell& cell : side) out.insert(out.end(), cell.at, cell.at + cell.bytes);
    return out;
  }

  /// Runs a call while the published version is what somebody else wrote, if that was picked.
  template <class Call>
  auto with_version(Call&& call) {
    std::array<std::byte, sizeof(published_)> saved;
    void* const word = &published_;
    std::memcpy(saved.data(), word, saved.size());
    if (spoiled_) std::memset(word, 0xff, saved.size());
    auto done = call();
    if (spoiled_) std::memcpy(word, saved.data(), saved.size());
    spoiled_ = false;
    return done;
  }

  void refit() {
    ++version_;
    fill();
    const Values values = implied();
    const Verdict all = agreed({in_trouble(), addresses() != planned_});
    const bool goes = !all.trouble && (!all.moved || options_.replan);
    const TargetVersion before = published_.target_version();
    const auto bytes = all_bytes();
    const auto done = with_version([&] { return session_->refit(version_); });
    (goes ? successes : refusals) += 1;
    if (!goes) {
      expect_error(done, Code::invalid_argument, {"failed at begin"});
      EXPECT_EQ(published_.target_version(), before);
      EXPECT_EQ(all_bytes(), bytes);
      return;
    }
    ASSERT_EQ(outcome(done), "");
    if (all.moved) note_plan();
    const TargetVersion now = published_.target_version();
    EXPECT_EQ(now.version, version_);
    EXPECT_TRUE(holds(now, values));
    EXPECT_EQ(implied(), values);
    recorded_ = values;
  }
  void verify() {
    bind_all();
    const TargetVersion now = published_.target_version();
    const bool whole = now.state == TargetState::whole;
    const bool recorded = options_.verify == VerifyMode::always;
    const bool same = whole && holds(now, recorded ? recorded_ : implied());
    const Verdict all = agreed({in_trouble(), addresses() != planned_, same});
    if (!all.trouble && !all.moved && !whole) return;
    const auto bytes = all_bytes();
    const auto done = with_version([&] { return session_->verify(); });
    EXPECT_EQ(all_bytes(), bytes);
    if (all.trouble || all.moved) {
      expect_error(done, Code::invalid_argument, {});
    } else {
      EXPECT_EQ(done.has_value(), all.content) << outcome(done);
    }
  }
  const SessionLayouts& job_;
  RankEnds& ends_;
  const SessionOptions options_;
  std::mt19937 shared_, own_;
  std::array<std::vector<Cell>, 3> cells_;
  using Buffers = std::array<std::shared_ptr<RankBuffers>, 3>;
  Buffers buffers_, planned_buffers_;
  std::vector<const std::byte*> planned_;
  PublishedVersion published_;
  Values recorded_;  ///< what was committed last.
  std::int64_t version_ = 0;
  bool spoiled_ = false;
  std::optional<Session> session_;
};

/// Steps in all; 100000 takes minutes.
int num_steps() {
  const char* const said = std::getenv("RESHARD_MEMORY_STEPS");
  return said == nullptr ? 2000 : std::atoi(said);
}

TEST(SessionMemory, is_written_only_where_a_plain_model_allows_it) {
  constexpr int kStepsOfOne = 100;
  int successes = 0, refusals = 0;
  for (int done = 0, seed = 1; done < num_steps(); done += kStepsOfOne, ++seed) {
    const int ranks = seed % 3 == 0 ? 2 : 1;
    const SessionLayouts job = small_job(ranks);
    SessionOptions options = session_options(
        seed % 2 == 0 ? Buffering::doubled : Buffering::in_place, RefitPath::automatic,
        seed % 5 < 2 ? VerifyMode::always : VerifyMode::never);
    options.replan = seed % 4 != 0;
    const auto ended = run_group_as_threads<InprocGroup>(ranks, [&](RankEnds& ends) {
      Walk walk(job, ends, options, static_cast<unsigned>(seed));
      for (int i = 0; i < kStepsOfOne && !testing::Test::HasFailure(); ++i) walk.step();
      EXPECT_EQ(outcome(ends.control->quiesce(patient())), "");
      if (ends.rank() == Rank(0)) {
        successes += walk.successes;
        refusals += walk.refusals;
      }
    });
    ASSERT_EQ(outcome(ended), "") << "seed " << seed;
    ASSERT_FALSE(testing::Test::HasFailure()) << "seed " << seed;
  }
  // Neither kind is rare.
  EXPECT_GT(successes, num_steps() / 20);
  EXPECT_GT(refusals, num_steps() / 20);
}

}  // namespace
}  // namespace reshard
