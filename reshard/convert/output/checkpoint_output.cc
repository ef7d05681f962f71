// SPDX-License-Identifier: Apache-2.0
#include "reshard/convert/output/checkpoint_output.h"

#include <fmt/format.h>
#include <sys/statvfs.h>

#include "reshard/base/number_text.h"
#include "reshard/convert/output/file_fingerprint.h"
#include "reshard/io/checkpoint/safetensors_writer.h"
#include "reshard/io/dcp/dcp_writer.h"

namespace reshard::output {

CheckpointOutput::CheckpointOutput(OutputDir folder, OutputFiles files, ConvertHook hook,
                                   CheckInputs inputs)
    : folder_(std::move(folder)),
      files_(std::move(files)),
      hook_(std::move(hook)),
      inputs_(std::move(inputs)) {
  for (const OutputFile& file : files_.files) {
    if (!finished(file)) continue;
    ++kept_files_;
    kept_bytes_ += file.tensor_bytes;
  }
}

Result<CheckpointOutput> CheckpointOutput::create(const std::string& target,
                                                  const std::string& resume_key, OutputFiles files,
                                                  ConvertHook hook, CheckInputs inputs) {
  CheckpointOutput output(RESHARD_TRY(OutputDir::create(target, resume_key, fingerprint_of_file)),
                          std::move(files), std::move(hook), std::move(inputs));
  RESHARD_TRY(output.check_free_space());
  return output;
}

bool CheckpointOutput::finished(const OutputFile& file) const {
  const auto at = folder_.finished().find(file.name);
  return at != folder_.finished().end() && at->second.bytes == file.file_bytes;
}

Result<> CheckpointOutput::check_free_space() const {
  struct statvfs disk{};
  if (::statvfs(folder_.partial().c_str(), &disk) != 0) return {};  // the writes will tell
  Index needed = 0, free = 0;
  for (const OutputFile& file : files_.files)
    if (!finished(file)) needed += file.file_bytes;
  const bool huge = __builtin_mul_overflow(disk.f_bavail, disk.f_frsize, &free);
  if (huge || needed <= free) return {};
  return fail(Code::io,
              fmt::format("{}: the disk is full: {} ({} bytes) are needed, {} ({} bytes) are free",
                          folder_.target(), human_bytes(needed), needed, human_bytes(free), free));
}

Result<> CheckpointOutput::write(const Progress& progress, const WriteFile& write) {
  const Index whole = files_.tensor_bytes();
  Index before = kept_bytes_;
  Progress part;
  if (progress)
    part = [&](std::string_view phase, Index done, Index) {
      return progress(phase, before + done, whole);
    };
  for (const OutputFile& file : files_.files) {
    if (!finished(file)) {
      if (auto written = write_file(file, write, part); !written) {
        // An input that changed is the cause, not what it made fail.
        RESHARD_TRY(check_inputs());
        Error error = std::move(written).error();
        if (error.code == Code::aborted) error.message = "cancelled";
        return tl::unexpected(with_what_is_kept(std::move(error)));
      }
      before += file.tensor_bytes;
    }
  }
  return {};
}

Result<> CheckpointOutput::look_again(const Progress& progress, const WriteFile& write) {
  Index before = 0;
  Progress part;
  if (progress)
    part = [&](std::string_view, Index done, Index) {
      return progress("look again", before + done, files_.tensor_bytes());
    };
  for (const OutputFile& file : files_.files) {
    FileFingerprint fingerprint(file.file_bytes);
    RESHARD_TRY(write_tensors(file, "", write, part, fingerprint));
    before += file.tensor_bytes;
    if (fingerprint.text() == folder_.finished().at(file.name).fingerprint) continue;
    folder_.give_up();
    return fail(Code::io,
                fmt::format("the input changed while it was read, through a file that is open for "
                            "writing: {} would be another file now; run the command again once "
                            "nothing changes it any more",
                            file.name));
  }
  return {};
}

Error CheckpointOutput::with_what_is_kept(Error error) const {
  if (!folder_.finished().empty())
    error.message +=
        fmt::format("; {} of {} files are kept in {}, the same command goes on from there",
                    folder_.finished().size(), files_.files.size(), folder_.partial());
  return error;
}

/// `path`: the file to write; empty: none, `fingerprint` sees the bytes alone.
Result<> CheckpointOutput::write_tensors(const OutputFile& file, const std::string& path,
                                         const WriteFile& write, const Progress& progress,
                                         FileFingerprint& fingerprint) const {
  const auto watch = [&](std::int64_t at, std::span<const std::byte> bytes) {
    fingerprint.add(at, bytes);
  };
  if (files_.dcp) {
    auto writer = RESHARD_TRY(path.empty() ? DcpWriter::rehearse(file.tensors, watch)
                                           : DcpWriter::create(path, file.tensors, watch));
    RESHARD_TRY(write(file, writer, progress));
    return writer.finish(false);
  }
  auto writer = RESHARD_TRY(
      path.empty() ? SafetensorsWriter::rehearse(file.tensors, file.metadata, watch)
                   : SafetensorsWriter::create(path, file.tensors, file.metadata, watch));
  RESHARD_TRY(write(file, writer, progress));
  for (std::size_t i = 0; i < file.packed_shapes.size(); ++i)
    RESHARD_TRY(
        writer.write_at(file.slots.size() + i, 0, std::as_bytes(std::span(file.packed_shapes[i]))));
  return writer.finish();
}

Result<> CheckpointOutput::write_file(const OutputFile& file, const WriteFile& write,
                                      const Progress& progress) {
  FileFingerprint fingerprint(file.file_bytes);
  RESHARD_TRY(write_tensors(file, folder_.path_of(file.name), write, progress, fingerprint));
  RESHARD_TRY(check_inputs());
  RESHARD_TRY(folder_.mark_finished(file.name, fingerprint.text()));
  if (hook_) hook_("file");
  return {};
}

/// A changed input changes the resume key, so no later run could use what is written.
Result<> CheckpointOutput::check_inputs() {
  if (!inputs_) return {};
  auto same = inputs_();
  if (!same) folder_.give_up();
  return same;
}

Result<> CheckpointOutput::commit(bool sync) {
  if (hook_) hook_("end");
  RESHARD_TRY(check_inputs());
  return folder_.commit(sync);
}

}  // namespace reshard::output
