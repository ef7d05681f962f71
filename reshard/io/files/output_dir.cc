// SPDX-License-Identifier: Apache-2.0
#include "reshard/io/files/output_dir.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <optional>

#include "reshard/base/check.h"
#include "reshard/io/files/disk.h"
#include "reshard/io/files/json.h"
#include "reshard/io/files/posix_error.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kJournal = ".reshard-resume";
constexpr std::size_t kMaxJournalBytes = std::size_t{256} << 20;

tl::unexpected<Error> target_exists(const std::string& target) {
  return fail(
      Code::invalid_argument,
      fmt::format("{}: exists and is not overwritten; remove it or choose another output", target));
}

/// True also for a dangling link.
bool exists(const std::string& path) {
  struct stat status{};
  return ::lstat(path.c_str(), &status) == 0;
}

std::string without_trailing_slashes(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

std::string parent_of(const std::string& path) {
  const auto parent = fs::path(path).parent_path();
  return parent.empty() ? "." : parent.string();
}

/// `kind`: what the output is, a file or a folder.
Result<> check_target(const std::string& target, std::string_view kind) {
  const auto name = fs::path(target).filename().string();
  if (auto ok = files::check_file_name(name + ".partial");
      name.empty() || name == "." || name == ".." || !ok)
    return fail(Code::invalid_argument,
                fmt::format("output {} must end in the name of a new {}", in_quotes(target), kind));
  if (exists(target)) return target_exists(target);
  struct stat status{};
  const auto parent = parent_of(target);
  if (::stat(parent.c_str(), &status) != 0 && errno == ENOENT)
    return fail(
        Code::not_found,
        fmt::format("{}: its parent folder {} does not exist; create that first", target, parent));
  return {};
}

/// True if `fd` is still the folder at `path`: its last owner may have renamed or removed it.
bool is_still(int fd, const std::string& path) {
  struct stat ours{}, there{};
  return ::fstat(fd, &ours) == 0 && ::lstat(path.c_str(), &there) == 0 &&
         ours.st_ino == there.st_ino && ours.st_dev == there.st_dev;
}

tl::unexpected<Error> of_another_user(const std::string& path, uid_t user) {
  return fail(Code::invalid_argument,
              fmt::format("{}: belongs to another user (id {}), whose files are not taken over; "
                          "choose another output",
                          path, user));
}

/// True for a regular file of this user. Links, and files of other users, are not this job's.
bool is_own_file(const std::string& path) {
  struct stat status{};
  return ::lstat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode) &&
         status.st_uid == ::geteuid();
}

/// Renames without replacing an existing target, even if the file system cannot guarantee that.
int rename_to_new(const std::string& from, const std::string& to) {
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) return 0;
  if (errno != EINVAL && errno != ENOSYS) return errno;
  if (exists(to)) return EEXIST;
  return std::rename(from.c_str(), to.c_str()) == 0 ? 0 : errno;
}

Result<> sync_files(const std::string& folder) {
  std::error_code error;
  for (fs::recursive_directory_iterator it(folder, error), end; !error && it != end;
       it.increment(error)) {
    const auto path = it->path().string();
    FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
    if (!fd || ::fsync(fd.get()) != 0)
      return files::posix_fail(path, "flush the file to the disk", errno);
  }
  if (error) return files::posix_fail(folder, "list the folder", error.value());
  return files::sync_folder(folder);
}

}  // namespace

std::string OutputDir::path_of(std::string_view name) const {
  RESHARD_CHECK(files::check_file_name(name).has_value());
  return partial_ + "/" + std::string(name);
}

std::string OutputDir::journal_path() const { return path_of(kJournal); }

Result<OutputDir> OutputDir::create(const std::string& target, const std::string& resume_key,
                                    Fingerprinter fingerprint_of) {
  const auto path = without_trailing_slashes(target);
  RESHARD_TRY(check_target(path, "folder"));
  auto output = RESHARD_TRY(lock(path));
  output.fingerprint_of_ = std::move(fingerprint_of);
  if (auto taken = output.take_over(resume_key); !taken) {
    output.lock_ = FileDescriptor();  // not ours: the destructor must leave it alone
    return tl::unexpected(std::move(taken).error());
  }
  return output;
}

Result<OutputDir> OutputDir::lock(const std::string& target) {
  OutputDir output;
  output.target_ = target;
  output.partial_ = target + ".partial";
  const auto& partial = output.partial_;
  const bool made = ::mkdir(partial.c_str(), 0777) == 0;
  if (!made && errno != EEXIST) return files::posix_fail(partial, "create the folder", errno);
  struct stat status{};
  if (!made && ::lstat(partial.c_str(), &status) == 0 && status.st_uid != ::geteuid())
    return of_another_user(partial, status.st_uid);
  FileDescriptor fd(::open(partial.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!fd) return files::posix_fail(partial, "open the folder", errno);
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return files::posix_fail(partial, "lock the folder", errno);
    return fail(Code::io,
                fmt::format("{}: another process is writing it; wait for that or choose another "
                            "output",
                            partial));
  }
  // Some file systems change the owner of new files; a folder created here is this job's.
  if (!made && ::fstat(fd.get(), &status) == 0 && status.st_uid != ::geteuid())
    return of_another_user(partial, status.st_uid);
  if (!is_still(fd.get(), partial))
    return fail(Code::io,
                fmt::format("{}: another process finished or removed it just now", partial));
  if (exists(target)) {
    // Another process committed between our first check and the lock; an empty folder is the one
    // created here.
    ::rmdir(partial.c_str());
    return target_exists(target);
  }
  output.lock_ = std::move(fd);
  return output;
}

Result<> OutputDir::take_over(const std::string& resume_key) {
  ResumeRecord record{resume_key, boot_identity(), {}};
  if (exists(journal_path())) {
    if (!is_own_file(journal_path()))
      return fail(Code::invalid_argument,
                  fmt::format("{}: is not a file of this user; remove {} or choose another output",
                              journal_path(), partial_));
    const auto text = RESHARD_TRY(read_text_file(journal_path(), kMaxJournalBytes));
    auto old = parse_resume_record(text);
    if (!old) return tl::unexpected(std::move(old).error().in(journal_path()));
    if (old->key != resume_key || resume_key.empty())
      return fail(
          Code::invalid_argument,
          fmt::format("{}: was left by an interrupted job {}; remove it (rm -r {}) or choose "
                      "another output",
                      partial_, old->key.empty() ? "that cannot be resumed" : "other than this one",
                      partial_));
    const bool same_boot = !record.boot.empty() && old->boot == record.boot;
    RESHARD_TRY(keep_finished(same_boot ? old->finished : record.finished));
    record.finished = finished_;
  } else {
    ::unlink((journal_path() + ".new").c_str());
    std::error_code error;
    const bool empty = fs::is_empty(partial_, error);
    if (error) return files::posix_fail(partial_, "list the folder", error.value());
    if (!empty)
      return fail(
          Code::invalid_argument,
          fmt::format("{}: holds files that no interrupted job left there; remove it or choose "
                      "another output",
                      partial_));
  }
  key_ = resume_key;
  auto journal = ResumeJournal::create(journal_path(), record);
  if (!journal) {
    ::rmdir(partial_.c_str());  // succeeds only when this call made it
    return tl::unexpected(std::move(journal).error());
  }
  journal_ = *std::move(journal);
  return {};
}

Result<> OutputDir::keep_finished(const FinishedFiles& recorded) {
  std::error_code error;
  for (fs::directory_iterator it(partial_, error), end; !error && it != end; it.increment(error)) {
    const auto name = it->path().filename().string();
    const auto found = recorded.find(name);
    if (name == kJournal) continue;
    if (found != recorded.end() && is_own_file(it->path().string())) {
      const FileStamp stamp = RESHARD_TRY(FileStamp::of(it->path().string()));
      if (RESHARD_TRY(is_as_recorded(it->path().string(), found->second))) {
        finished_.insert(*found);
        stamps_.emplace(name, stamp);
        continue;
      }
    }
    std::error_code removed;
    fs::remove_all(it->path(), removed);
    if (removed)
      return files::posix_fail(it->path().string(), "remove the unfinished file", removed.value());
  }
  if (error) return files::posix_fail(partial_, "list the folder", error.value());
  return {};
}

/// Compares the content if there is a fingerprint: a file that another process wrote to may have
/// the right size.
Result<bool> OutputDir::is_as_recorded(const std::string& path, const FinishedFile& file) const {
  if (RESHARD_TRY(FileStamp::of(path)).bytes != file.bytes) return false;
  if (!fingerprint_of_) return file.fingerprint.empty();
  return RESHARD_TRY(fingerprint_of_(path)) == file.fingerprint;
}

/// A file that was finished long ago may have been changed since.
Result<> OutputDir::check_finished() const {
  for (const auto& [name, file] : finished_) {
    const auto path = path_of(name);
    const auto now = is_own_file(path) ? FileStamp::of(path) : fail(Code::io, "");
    if (now && *now == stamps_.at(name)) continue;
    const bool same = now && now->bytes == file.bytes && fingerprint_of_ &&
                      RESHARD_TRY(is_as_recorded(path, file));
    if (!same)
      return fail(Code::io, fmt::format("{}: changed after it was finished; nothing else may write "
                                        "there; the same command writes it again",
                                        path));
  }
  return {};
}

OutputDir::OutputDir(OutputDir&&) noexcept = default;
OutputDir& OutputDir::operator=(OutputDir&& other) noexcept {
  std::swap(target_, other.target_);
  std::swap(partial_, other.partial_);
  std::swap(key_, other.key_);
  std::swap(lock_, other.lock_);
  std::swap(journal_, other.journal_);
  std::swap(fingerprint_of_, other.fingerprint_of_);
  std::swap(finished_, other.finished_);
  std::swap(stamps_, other.stamps_);
  return *this;
}

OutputDir::~OutputDir() {
  if (!lock_ || (!key_.empty() && !finished_.empty())) return;
  std::error_code ignored;
  fs::remove_all(partial_, ignored);
}

Result<> OutputDir::mark_finished(const std::string& name, const std::string& fingerprint) {
  const FileStamp stamp = RESHARD_TRY(FileStamp::of(path_of(name)));
  const FinishedFile file{stamp.bytes, fingerprint};
  RESHARD_TRY(journal_.append(name, file));
  finished_[name] = file;
  stamps_[name] = stamp;
  return {};
}

Result<> OutputDir::write_text(std::string_view name, std::string_view text) {
  return files::write_text_file(path_of(name), text);
}

Result<> OutputDir::commit(bool sync) {
  RESHARD_CHECK(static_cast<bool>(lock_));
  if (sync) RESHARD_TRY(sync_files(partial_));
  RESHARD_TRY(check_finished());
  if (!is_still(lock_.get(), partial_))
    return fail(Code::io, fmt::format("{}: another process moved or removed it", partial_));
  if (const int error = rename_to_new(partial_, target_); error != 0) {
    if (error == EEXIST) return target_exists(target_);
    return files::posix_fail(target_, "give the finished folder its name", error);
  }
  // Only after the rename: without its record the partial folder could not be resumed.
  ::unlink((target_ + "/" + std::string(kJournal)).c_str());
  lock_ = FileDescriptor();
  return files::sync_folder(parent_of(target_));
}

Result<OutputFile> OutputFile::create(const std::string& target) {
  RESHARD_TRY(check_target(target, "file"));
  OutputFile output(target);
  if (::unlink(output.partial_.c_str()) == 0 || errno == ENOENT) return output;
  const int error = errno;
  output.partial_.clear();
  return files::posix_fail(target + ".partial", "remove the unfinished file", error);
}

OutputFile::~OutputFile() {
  if (!partial_.empty()) ::unlink(partial_.c_str());
}

Result<> OutputFile::commit() {
  RESHARD_CHECK(!partial_.empty());
  if (const int error = rename_to_new(partial_, target_); error != 0) {
    if (error == EEXIST) return target_exists(target_);
    return files::posix_fail(target_, "give the finished file its name", error);
  }
  partial_.clear();
  return files::sync_folder(parent_of(target_));
}

}  // namespace reshard
