// SPDX-License-Identifier: Apache-2.0
#include "reshard/exec/direct/copy_units.h"

#include <algorithm>

#include "reshard/layout/clip.h"

namespace reshard::direct {

namespace {

class Builder {
 public:
  explicit Builder(Index unit_bytes) : unit_bytes_(unit_bytes) { out_.first.push_back(0); }

  void add(const CopyTask& task) {
    const Index n = task.copy.bytes();
    if (n == 0) return;
    out_.tasks.push_back(task);
    filled_ += n;
  }
  void close() {
    if (filled_ == 0) return;
    out_.first.push_back(out_.tasks.size());
    out_.bytes.push_back(filled_);
    filled_ = 0;
  }
  bool full() const { return filled_ >= unit_bytes_; }
  CopyUnits take() {
    close();
    return std::move(out_);
  }

 private:
  Index unit_bytes_, filled_ = 0;
  CopyUnits out_;
};

}  // namespace

CopyUnits make_units(const std::vector<CopyTask>& tasks, const std::vector<std::size_t>& groups,
                     Index unit_bytes) {
  Builder out(unit_bytes);
  for (std::size_t i = 0; i < tasks.size();) {
    std::size_t end = i;
    Index bytes = 0;
    for (; end < tasks.size() && groups[end] == groups[i]; ++end) bytes += tasks[end].copy.bytes();
    const Index parts = std::max<Index>(1, (bytes + unit_bytes / 2) / unit_bytes);
    if (parts > 1) out.close();
    for (Index p = 0; p < parts; ++p) {
      for (std::size_t t = i; t < end; ++t)
        out.add({part_of_copy(tasks[t].copy, p, parts), tasks[t].src, tasks[t].dst,
                 tasks[t].conversion});
      if (parts > 1 || out.full()) out.close();
    }
    i = end;
  }
  return out.take();
}

}  // namespace reshard::direct
