// SPDX-License-Identifier: Apache-2.0
#include "reshard/io/files/resume_journal.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <fstream>

#include "reshard/io/files/disk.h"
#include "reshard/io/files/json.h"
#include "reshard/io/files/posix_error.h"

namespace reshard {
namespace {

constexpr std::string_view kNoFingerprint = "-";
constexpr std::string_view kFirstLine = "reshard-resume 2";

tl::unexpected<Error> corrupt(std::string_view what) {
  return fail(Code::corrupt, fmt::format("not a resume record that this program wrote: {}", what));
}

/// Removes the next complete line from the front of `text`; false if there is none.
bool next_line(std::string_view& text, std::string_view& line) {
  const auto end = text.find('\n');
  if (end == text.npos) return false;
  line = text.substr(0, end);
  text.remove_prefix(end + 1);
  return true;
}

Result<std::string> parse_string(std::string_view text) {
  const auto json = RESHARD_TRY(parse_json(text));
  if (json.string() == nullptr) return corrupt("a string is missing");
  return *json.string();
}

std::string finished_line(const std::string& name, const FinishedFile& file) {
  return fmt::format("{} {} {}\n", file.bytes,
                     file.fingerprint.empty() ? kNoFingerprint : std::string_view(file.fingerprint),
                     json_quote(name));
}

/// Parses the line of one file.
Result<> take_finished(std::string_view line, FinishedFiles& files) {
  FinishedFile file{-1, ""};
  const auto number = std::from_chars(line.data(), line.data() + line.size(), file.bytes);
  line.remove_prefix(static_cast<std::size_t>(number.ptr - line.data()));
  if (number.ec != std::errc() || file.bytes < 0 || !line.starts_with(' '))
    return corrupt("a line does not begin with a number of bytes");
  line.remove_prefix(1);
  const auto space = line.find(' ');
  if (space == 0 || space == line.npos) return corrupt("a line has no fingerprint");
  if (line.substr(0, space) != kNoFingerprint) file.fingerprint = line.substr(0, space);
  auto name = RESHARD_TRY(parse_string(line.substr(space + 1)));
  RESHARD_TRY(files::check_file_name(name));
  files[std::move(name)] = std::move(file);
  return {};
}

}  // namespace

Result<ResumeRecord> parse_resume_record(std::string_view text) {
  ResumeRecord record;
  std::string_view line;
  if (!next_line(text, line) || line != kFirstLine) return corrupt("its first line is wrong");
  if (!next_line(text, line)) return corrupt("the key is missing");
  record.key = RESHARD_TRY(parse_string(line));
  if (!next_line(text, line)) return corrupt("the boot identity is missing");
  record.boot = RESHARD_TRY(parse_string(line));
  while (next_line(text, line)) RESHARD_TRY(take_finished(line, record.finished));
  return record;
}

std::string boot_identity() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id;
}

Result<ResumeJournal> ResumeJournal::create(const std::string& path, const ResumeRecord& record) {
  std::string text =
      fmt::format("{}\n{}\n{}\n", kFirstLine, json_quote(record.key), json_quote(record.boot));
  for (const auto& [name, file] : record.finished) text += finished_line(name, file);
  const auto fresh = path + ".new";
  ::unlink(fresh.c_str());
  RESHARD_TRY(files::write_text_file(fresh, text));
  if (std::rename(fresh.c_str(), path.c_str()) != 0)
    return files::posix_fail(path, "put the resume record in place", errno);
  ResumeJournal journal;
  journal.path_ = path;
  journal.fd_ = FileDescriptor(::open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC));
  if (!journal.fd_) return files::posix_fail(path, "open the resume record", errno);
  return journal;
}

Result<> ResumeJournal::append(const std::string& name, const FinishedFile& file) {
  const auto line = finished_line(name, file);
  const auto written = ::write(fd_.get(), line.data(), line.size());
  if (written == static_cast<ssize_t>(line.size())) return {};
  return files::posix_fail(path_, "add to the resume record", written < 0 ? errno : ENOSPC);
}

}  // namespace reshard
