// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "reshard/transport/control.h"

namespace reshard {

/// Forwards all calls to another control plane, which must outlive it. Tests override single calls.
class ForwardingControl : public ControlPlane {
 public:
  explicit ForwardingControl(ControlPlane& inner) : inner_(inner) {}

  Rank rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  Result<std::vector<std::vector<std::byte>>> all_gather(std::span<const std::byte> mine,
                                                         Deadline deadline) override {
    return inner_.all_gather(mine, deadline);
  }
  Result<> all_gather_into(std::span<const std::byte> mine, std::span<std::byte> all,
                           Deadline deadline) override {
    return inner_.all_gather_into(mine, all, deadline);
  }
  Result<> barrier(Deadline deadline) override { return inner_.barrier(deadline); }
  void abort(std::string_view reason) override { inner_.abort(reason); }
  Result<> status() const override { return inner_.status(); }
  std::vector<Rank> lost() const override { return inner_.lost(); }
  void report(std::int64_t amount) override { inner_.report(amount); }
  std::int64_t reported() const override { return inner_.reported(); }
  Result<> quiesce(Deadline deadline) override { return inner_.quiesce(deadline); }
  void close() override { inner_.close(); }

 private:
  ControlPlane& inner_;
};

}  // namespace reshard
