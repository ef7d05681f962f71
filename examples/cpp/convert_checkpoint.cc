// SPDX-License-Identifier: Apache-2.0
// Checkpoints at rest: writes a small one, converts it to the files of four vLLM ranks and back,
// and compares the two ends.
//
//   convert_checkpoint FOLDER      an existing folder, to which three checkpoints are written
#include <reshard/reshard.h>

#include <cstdio>
#include <string>

namespace {

reshard::Result<> run(const std::string& folder) {
  const std::string plain = folder + "/plain", ranks = folder + "/ranks", back = folder + "/back";
  RESHARD_TRY(reshard::synthesize_checkpoint({.config = "demo-moe", .output = plain}));

  const reshard::ConvertReport there = RESHARD_TRY(
      reshard::convert_checkpoint({.input = plain, .output = ranks, .to = "vllm:tp=4"}));
  std::printf("%lld bytes for %lld ranks in %lld files\n", static_cast<long long>(there.bytes),
              static_cast<long long>(there.ranks), static_cast<long long>(there.files));
  RESHARD_TRY(reshard::convert_checkpoint({.input = ranks, .output = back, .to = "hf"}));

  const reshard::VerifyReport report =
      RESHARD_TRY(reshard::verify_checkpoints({.a = plain, .b = back}));
  std::printf("%lld tensors agree in every bit, %zu differ\n", static_cast<long long>(report.same),
              report.differing.size());
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: convert_checkpoint FOLDER\n");
    return 2;
  }
  const auto done = run(argv[1]);
  if (!done) std::fprintf(stderr, "convert_checkpoint: %s\n", done.error().message.c_str());
  return done ? 0 : 1;
}
