// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>

#include "reshard/convert/hooks.h"
#include "reshard/convert/output/output_files.h"
#include "reshard/io/checkpoint/safetensors_writer.h"
#include "reshard/io/files/output_dir.h"

namespace reshard::output {

/// A checkpoint folder that is being written, file by file; see OutputDir for what a failure
/// leaves.
class CheckpointOutput {
 public:
  /// Writes the tensors of one file. `progress` takes the file's bytes and reports them as part of
  /// all files'.
  using WriteFile = std::function<Result<>(const OutputFile& file, SafetensorsWriter& writer,
                                           const Progress& progress)>;

  /// Whether what the files are made of is still what it was when the job's key was made.
  using CheckInputs = std::function<Result<>()>;

  /// Errors: those of OutputDir::create; less free space on the disk than the unfinished files
  /// need.
  static Result<CheckpointOutput> create(const std::string& target, const std::string& resume_key,
                                         OutputFiles files, ConvertHook hook,
                                         CheckInputs inputs = {});

  const OutputFiles& files() const { return files_; }
  OutputDir& folder() { return folder_; }
  /// Files and their tensor bytes that an earlier run had finished.
  Index kept_files() const { return kept_files_; }
  Index kept_bytes() const { return kept_bytes_; }

  /// Calls `write` for each file that is not finished, in order, and finishes it. An error says
  /// what is kept; when inputs changed, that is the error, and nothing is.
  Result<> write(const Progress& progress, const WriteFile& write);
  /// The error, and what a later run finds finished.
  Error with_what_is_kept(Error error) const;

  /// Gives the folder its name; with `sync` only when all data is on the disk. Errors: those of
  /// OutputDir::commit and of the inputs.
  Result<> commit(bool sync);

 private:
  CheckpointOutput(OutputDir folder, OutputFiles files, ConvertHook hook, CheckInputs inputs);
  Result<> check_inputs();
  Result<> check_free_space() const;
  Result<> write_file(const OutputFile& file, const WriteFile& write, const Progress& progress);
  bool finished(const OutputFile& file) const;

  OutputDir folder_;
  OutputFiles files_;
  ConvertHook hook_;
  CheckInputs inputs_;
  Index kept_files_ = 0, kept_bytes_ = 0;
};

}  // namespace reshard::output
