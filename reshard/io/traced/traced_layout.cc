// SPDX-License-Identifier: Apache-2.0
#include "reshard/io/traced/traced_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <utility>

#include "reshard/base/closest_name.h"
#include "reshard/io/checkpoint/model_storage.h"
#include "reshard/io/files/disk.h"
#include "reshard/io/files/json.h"
#include "reshard/io/layout_file.h"
#include "reshard/io/traced/child_process.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr std::array<std::string_view, 3> kEngines = {"sglang", "transformers", "vllm"};
constexpr const char* kFile = "explicit.json";
constexpr double kSeconds = 1800;
constexpr std::size_t kMaxNotation = 4096, kMaxError = 1 << 16, kMaxConfig = 16 << 20;

struct Python {
  std::mutex mutex;
  std::string program = "python3";
};

Python& default_python() {
  static Python python;
  return python;
}

std::string tracing_python() {
  if (const char* said = std::getenv("RESHARD_PYTHON"); said != nullptr && *said != 0) return said;
  Python& python = default_python();
  const std::lock_guard lock(python.mutex);
  return python.program;
}

Result<double> tracing_seconds() {
  const char* said = std::getenv("RESHARD_TRACING_SECONDS");
  if (said == nullptr || *said == 0) return kSeconds;
  char* end = nullptr;
  const double seconds = std::strtod(said, &end);
  if (*end == 0 && std::isfinite(seconds) && seconds > 0) return seconds;
  return fail(Code::invalid_argument,
              fmt::format("RESHARD_TRACING_SECONDS={} must be a number of seconds above 0", said));
}

/// A folder for the two processes, removed at the end.
class ExchangeFolder {
 public:
  static Result<ExchangeFolder> make() {
    std::error_code error;
    std::string path = (fs::temp_directory_path(error) / "reshard-traced-XXXXXX").string();
    if (error || ::mkdtemp(path.data()) == nullptr)
      return fail(Code::io, fmt::format("{}: cannot make a folder for the traced layout", path));
    return ExchangeFolder(std::move(path));
  }
  ExchangeFolder(ExchangeFolder&& other) noexcept : path_(std::exchange(other.path_, "")) {}
  ExchangeFolder& operator=(ExchangeFolder&&) = delete;
  ~ExchangeFolder() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove_all(path_, ignored);
  }
  std::string operator/(const char* name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  explicit ExchangeFolder(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

Result<> check_engine(const LayoutSpec& spec) {
  if (std::ranges::find(kEngines, spec.engine) != kEngines.end()) return {};
  const std::string known = fmt::format("{}", fmt::join(kEngines, ", "));
  if (spec.engine.empty())
    return fail(Code::invalid_argument,
                fmt::format("a traced layout names its engine first: traced:vllm,tp=4; known are "
                            "{}",
                            known));
  return fail(Code::invalid_argument,
              fmt::format("engine '{}' is unknown{}; known are {}", spec.engine,
                          did_you_mean(spec.engine, kEngines), known));
}

/// The plain tensors that the loader is given, as the other process reads them. A quantised
/// checkpoint's data and scales are what its files hold: the process opens it.
Result<> write_weights(const Model& model, const ExchangeFolder& folder) {
  if (!model.storage->decoded.empty())
    return fail(
        Code::unsupported,
        fmt::format("{}: is stored as {}, which is read only, and the engine would hold it so; "
                    "trace plain weights (reshard convert ... --to hf)",
                    model.name, model.storage->decoded_from));
  if (model.stored) return {};
  std::string text = "{", sign = "";
  for (const CanonicalTensor& t : model.tensors->tensors()) {
    text += fmt::format("{}{}: [[{}], \"{}\"]", sign, json_quote(t.name),
                        fmt::join(t.stored_shape(), ", "), name(t.dtype));
    sign = ",\n";
  }
  return files::write_text_file(folder / "weights.json", text + "}\n");
}

/// A folder with the model's config.json: its own, or for a config of another name the exchange
/// folder, with a copy.
Result<std::string> folder_with_config(const Model& model, const ExchangeFolder& folder) {
  constexpr const char* kConfig = "config.json";
  const fs::path config = fs::absolute(model.config_path);
  if (config.filename() == kConfig) return config.parent_path().string();
  const auto text = RESHARD_TRY(read_text_file(model.config_path, kMaxConfig));
  RESHARD_TRY(files::write_text_file(folder / kConfig, text));
  return folder.path();
}

/// The error of a failed process: a timeout, or the process's own message.
Error failure(const ExchangeFolder& folder, const std::string& python, double seconds,
              const traced::ChildEnd& end) {
  if (end.timed_out)
    return {Code::deadline,
            fmt::format("tracing took more than {} s (RESHARD_TRACING_SECONDS)", seconds)};
  if (const auto said = read_text_file(folder / "error", kMaxError)) {
    const std::size_t line = said->find('\n');
    const std::string code = said->substr(0, line);
    for (const Code c : {Code::corrupt, Code::invalid_argument, Code::io, Code::not_found})
      if (line != said->npos && code == name(c)) return {c, said->substr(line + 1)};
    return {Code::unsupported, line == said->npos ? *said : said->substr(line + 1)};
  }
  const std::size_t last = end.said.rfind('\n');
  const std::string said = last == end.said.npos ? end.said : end.said.substr(last + 1);
  if (said.find("No module named") != said.npos)
    return {Code::unsupported,
            fmt::format("{} has no package reshard ({}); RESHARD_PYTHON names the Python that has "
                        "reshard and the engine",
                        python, said)};
  return {Code::unsupported,
          fmt::format("the process of {} that traces ended with exit code {}{}{}", python,
                      end.exit_code, said.empty() ? "" : ": ", said)};
}

Result<LayoutSpec> notation_in(const ExchangeFolder& folder) {
  const auto text = RESHARD_TRY(read_text_file(folder / "notation", kMaxNotation));
  auto spec = RESHARD_TRY(parse_layout(text));
  if (spec.family != "explicit" || spec.file != kFile || spec.keys.contains("offset"))
    return fail(Code::corrupt, fmt::format("'{}' is no notation of a traced layout", text));
  return spec;
}

}  // namespace

void set_tracing_python(std::string program) {
  Python& python = default_python();
  const std::lock_guard lock(python.mutex);
  python.program = std::move(program);
}

std::string traced_instead_of(const LayoutSpec& spec) {
  if (spec.family != "vllm" && spec.family != "sglang") return "";
  LayoutSpec traced{"traced", "", {}, spec.family};
  for (const char* key : {"tp", "pp", "dp", "ep", "offset"})
    if (const auto said = spec.keys.find(key); said != spec.keys.end()) traced.keys.insert(*said);
  return to_string(traced);
}

Result<TracedLayout> trace_layout(const LayoutSpec& spec, const Model& model) {
  RESHARD_TRY(check_engine(spec));
  if (model.config_path.empty())
    return fail(Code::unsupported,
                fmt::format("{} has no config.json, which {} builds the model from", model.name,
                            spec.engine));
  const double seconds = RESHARD_TRY(tracing_seconds());
  const std::string python = tracing_python();
  const ExchangeFolder folder = RESHARD_TRY(ExchangeFolder::make());
  RESHARD_TRY(write_weights(model, folder));
  const std::string config_folder = RESHARD_TRY(folder_with_config(model, folder));
  // -P: imports nothing from the working folder, which may be a downloaded one.
  std::vector<std::string> arguments = {python,      "-P",          "-m",         "reshard._trace",
                                        spec.engine, config_folder, folder.path()};
  for (const auto& [key, value] : spec.keys)
    if (key != "offset") arguments.push_back(key + "=" + value);
  const auto end = RESHARD_TRY(traced::run_child(arguments, seconds));
  if (end.exit_code != 0 || end.timed_out)
    return tl::unexpected(failure(folder, python, seconds, end));
  LayoutSpec notation = RESHARD_TRY(notation_in(folder));
  if (const auto offset = spec.keys.find("offset"); offset != spec.keys.end())
    notation.keys.insert(*offset);
  auto text = RESHARD_TRY(read_text_file(folder / kFile, kMaxLayoutFile));
  ExplicitLayout layout = RESHARD_TRY(parse_layout_file(text));
  layout.name = to_string(spec);
  return TracedLayout{std::move(notation), std::move(text), std::move(layout)};
}

}  // namespace reshard
