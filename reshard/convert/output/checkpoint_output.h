// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>

#include "reshard/convert/hooks.h"
#include "reshard/convert/output/file_fingerprint.h"
#include "reshard/convert/output/output_files.h"
#include "reshard/io/checkpoint/tensor_file_writer.h"
#include "reshard/io/files/output_dir.h"

namespace reshard::output {

/// Writes a checkpoint folder file by file. OutputDir says what a failure leaves behind.
class CheckpointOutput {
 public:
  /// Writes the tensors of one file. `progress` takes the file's bytes and reports them as part of
  /// all files'.
  using WriteFile = std::function<Result<>(const OutputFile& file, TensorFileWriter& writer,
                                           const Progress& progress)>;

  /// Fails if an input changed since the resume key was computed.
  using CheckInputs = std::function<Result<>()>;

  /// Errors: those of OutputDir::create(); less free disk space than the unfinished files need.
  static Result<CheckpointOutput> create(const std::string& target, const std::string& resume_key,
                                         OutputFiles files, ConvertHook hook,
                                         CheckInputs inputs = {});

  const OutputFiles& files() const { return files_; }
  OutputDir& folder() { return folder_; }
  /// Files that an earlier run had finished, and their tensor bytes.
  Index kept_files() const { return kept_files_; }
  Index kept_bytes() const { return kept_bytes_; }

  /// Calls `write` for each unfinished file, in order, and finishes it. An error says what a later
  /// run can resume from; if an input changed, that is the error, and nothing is kept.
  Result<> write(const Progress& progress, const WriteFile& write);
  /// Makes every file again, without writing it, and compares it with what was written. The error
  /// says that the input changed meanwhile; nothing is kept then.
  Result<> look_again(const Progress& progress, const WriteFile& write);
  /// Appends to the error what a later run can resume from.
  Error with_what_is_kept(Error error) const;

  /// Gives the folder its name; with `sync`, once all data is on the disk. Errors: those of
  /// OutputDir::commit(); an input that changed.
  Result<> commit(bool sync);

 private:
  CheckpointOutput(OutputDir folder, OutputFiles files, ConvertHook hook, CheckInputs inputs);
  Result<> check_inputs();
  Result<> check_free_space() const;
  Result<> write_file(const OutputFile& file, const WriteFile& write, const Progress& progress);
  Result<> write_tensors(const OutputFile& file, const std::string& path, const WriteFile& write,
                         const Progress& progress, FileFingerprint& fingerprint) const;
  bool finished(const OutputFile& file) const;

  OutputDir folder_;
  OutputFiles files_;
  ConvertHook hook_;
  CheckInputs inputs_;
  Index kept_files_ = 0, kept_bytes_ = 0;
};

}  // namespace reshard::output
