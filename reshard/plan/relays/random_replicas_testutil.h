// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <rapidcheck.h>

#include <memory>
#include <string>

#include "reshard/model/configs_testutil.h"
#include "reshard/plan/relays/relays.h"

namespace reshard {

/// Ranks of random hosts, each with up to three interfaces; replicas always relay. For use in a
/// rapidcheck property.
inline std::shared_ptr<const RelayOptions> random_relays(int ranks) {
  RelayOptions options;
  options.least_gain = 0;
  const int nics = *rc::gen::element(1, 2, 3), per_host = *rc::gen::element(1, 1, 2, 3, 4);
  const bool shuffled = *rc::gen::arbitrary<bool>();
  for (int r = 0; r < ranks; ++r) {
    const int host = shuffled ? *rc::gen::element(0, 1, 2, 3, 4, 5, 6, 7) : r / per_host;
    options.places.domain.push_back(host);
    options.places.nic.push_back(host * nics + r % nics);
  }
  return std::make_shared<const RelayOptions>(std::move(options));
}

/// A trainer and an engine of several replicas, of a small model. For use in a rapidcheck property.
struct RandomReplicas {
  std::shared_ptr<const ModelSpec> model;
  std::shared_ptr<const ModelLayout> source, target;
  RandomReplicas() {
    const ModelConfig config = *rc::gen::arbitrary<bool>() ? tiny_dense() : tiny_moe();
    model = model_of(config);
    const int tp = *rc::gen::element(1, 2, 4), pp = *rc::gen::element(1, 2);
    source =
        layout_of("megatron:tp=" + std::to_string(tp) + ",pp=" + std::to_string(pp), model, config);
    const int apart = *rc::gen::element(0, tp * pp, tp * pp);
    target = layout_of("megatron:tp=" + std::to_string(*rc::gen::element(1, 2, 4)) +
                           ",dp=" + std::to_string(*rc::gen::element(2, 3, 4, 5)) +
                           ",offset=" + std::to_string(apart),
                       model, config);
  }
};

}  // namespace reshard
