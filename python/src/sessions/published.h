// SPDX-License-Identifier: Apache-2.0
// reshard.PublishedVersion: where a session says which version its target has.
#pragma once

#include "python/src/support.h"
#include "python/src/tensors/tensors.h"
#include "reshard/refit/version.h"

namespace reshard::python {

/// The class reshard.PublishedVersion: in memory of its own, or of an object with a buffer.
class PublishedWord {
 public:
  PublishedWord() : version_(&own_) {}
  /// Memory of 8 bytes or more, aligned to 8. Zeros mean empty. Errors: too short, unaligned, or
  /// read-only.
  explicit PublishedWord(nb::handle buffer);

  PublishedVersion& version() const { return *version_; }

  int traverse(visitproc visit, void* arg) const {
    return memory_ ? memory_->traverse(visit, arg) : 0;
  }
  void clear() {}

 private:
  PublishedVersion own_;
  std::optional<PinnedTensor> memory_;
  PublishedVersion* version_;
};

std::string text_of(const TargetVersion& version);

}  // namespace reshard::python
