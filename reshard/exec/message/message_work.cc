// SPDX-License-Identifier: Apache-2.0
#include "reshard/exec/message/message_work.h"

#include <algorithm>

namespace reshard::message {
namespace {

/// For each chunk, the items that it reads (sends) or writes (receives); empty for other chunks.
ItemLists of_chunks(const RangeWork* work, const MessageSchedule& schedule, bool sends) {
  ItemLists out;
  if (work == nullptr) return out;
  const ItemFinder finder(*work);
  for (const ChunkOp& op : schedule.ops) {
    if (op.is_send == sends && op.in_place != nullptr) {
      sends ? finder.find_read(op.in_place, op.bytes, out.all())
            : finder.find_written(op.in_place, op.bytes, out.all());
    } else if (op.is_send == sends) {
      for (std::size_t t = op.first_task; t < op.end_task; ++t)
        sends ? finder.find_read(schedule.tasks[t], out.all())
              : finder.find_written(schedule.tasks[t], out.all());
    }
    out.close();
  }
  return out;
}

ItemLists of_units(const RangeWork* work, const direct::CopyUnits& units, bool reads) {
  ItemLists out;
  if (work == nullptr) return out;
  const ItemFinder finder(*work);
  for (std::size_t u = 0; u < units.size(); ++u) {
    for (const CopyTask& task : units.tasks_of(u))
      reads ? finder.find_read(task, out.all()) : finder.find_written(task, out.all());
    out.close();
  }
  return out;
}

}  // namespace

MessageWork::MessageWork(RangeWork* before, RangeWork* after, const MessageSchedule& schedule,
                         const direct::CopyUnits& locals, const direct::CopyUnits& repeats)
    : before_(before),
      after_(after),
      sent_(of_chunks(before, schedule, true)),
      read_locally_(of_units(before, locals, true)),
      received_(of_chunks(after, schedule, false)),
      written_locally_(of_units(after, locals, false)),
      repeated_(of_units(after, repeats, false)) {
  if (after_ != nullptr) due_.resize(after_->size());
  for (ItemLists* lists : {&received_, &written_locally_, &repeated_})
    for (const ItemBytes& item : lists->all()) due_[item.item] += item.bytes;
  left_ = due_;
  std::size_t most = due_.size();
  for (ItemLists* lists : {&sent_, &read_locally_}) most = std::max(most, lists->all().size());
  items_.reserve(most);
}

void MessageWork::restart() { std::ranges::copy(due_, left_.begin()); }

void MessageWork::run(RangeWork& work) {
  if (!items_.empty()) work.run(items_);
  items_.clear();
}

void MessageWork::need(std::span<const ItemBytes> items) {
  for (const ItemBytes& item : items) items_.push_back(item.item);
}

void MessageWork::arrived(std::span<const ItemBytes> items) {
  for (const ItemBytes& item : items) {
    left_[item.item] -= item.bytes;
    if (left_[item.item] == 0) items_.push_back(item.item);
  }
}

void MessageWork::before_sends(std::size_t first, std::size_t end) {
  if (before_ == nullptr) return;
  for (std::size_t o = first; o < end; ++o) need(sent_[o]);
  run(*before_);
}

void MessageWork::after_receives(std::size_t first, std::size_t end) {
  if (after_ == nullptr) return;
  for (std::size_t o = first; o < end; ++o) arrived(received_[o]);
  run(*after_);
}

void MessageWork::before_local(std::size_t unit) {
  if (before_ == nullptr) return;
  need(read_locally_[unit]);
  run(*before_);
}

void MessageWork::after_local(std::size_t unit) {
  if (after_ == nullptr) return;
  arrived(written_locally_[unit]);
  run(*after_);
}

void MessageWork::after_repeat(std::size_t unit) {
  if (after_ == nullptr) return;
  arrived(repeated_[unit]);
  run(*after_);
}

void MessageWork::finish() {
  if (after_ == nullptr) return;
  for (std::size_t i = 0; i < due_.size(); ++i)
    if (due_[i] == 0) items_.push_back(i);
  run(*after_);
}

}  // namespace reshard::message
