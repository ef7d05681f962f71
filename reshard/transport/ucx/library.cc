// SPDX-License-Identifier: Apache-2.0
#include "reshard/transport/ucx/library.h"

#include <fmt/format.h>
#include <poll.h>
#include <ucs/debug/debug.h>
#include <ucs/debug/log_def.h>

#include <algorithm>
#include <csignal>
#include <cstdarg>
#include <cstdlib>
#include <cstring>
#include <mutex>

namespace reshard::ucx {
namespace {

ucs_log_func_rc_t silence(const char*, unsigned, const char*, ucs_log_level_t,
                          const ucs_log_component_config_t*, const char*, std::va_list) {
  return UCS_LOG_FUNC_RC_STOP;
}

struct ConfigRelease {
  void operator()(ucp_config_t* config) const { ucp_config_release(config); }
};

/// True if UCX_TLS = `transports` (names with commas between them, or all but those after a '^')
/// has the copies of CUDA. Without them UCX 1.22 still says that it takes CUDA memory, and crashes
/// when it copies some.
bool has_cuda(std::string_view transports) {
  const bool is_negated = transports.starts_with('^');
  if (is_negated) transports.remove_prefix(1);
  bool names_cuda = false;
  for (std::size_t at = 0; at <= transports.size();) {
    const std::size_t end = std::min(transports.find(',', at), transports.size());
    const std::string_view name = transports.substr(at, end - at);
    names_cuda |= name == "cuda" || name == "cuda_copy" || (!is_negated && name == "all");
    at = end + 1;
  }
  return names_cuda != is_negated;
}

}  // namespace

std::string library_version() {
  unsigned major = 0, minor = 0, release = 0;
  ucp_get_version(&major, &minor, &release);
  return fmt::format("UCX {}.{}.{}", major, minor, release);
}

Error library_error(std::string_view what, ucs_status_t status) {
  return {Code::io, fmt::format("ucx: {}: {}", what, ucs_status_string(status))};
}

void make_quiet() {
  static std::once_flag once;
  std::call_once(once, [] {
    // The library would write to stdout, between the program's own output.
    if (std::getenv("UCX_LOG_LEVEL") == nullptr) ucs_log_push_handler(silence);
    // The library installs its handlers when it is loaded: a crash of the program would print a UCX
    // backtrace and might wait for a debugger.
    if (std::getenv("UCX_HANDLE_ERRORS") == nullptr)
      for (const int signal : {SIGILL, SIGSEGV, SIGBUS, SIGFPE}) ucs_debug_disable_signal(signal);
  });
}

Result<std::unique_ptr<Worker>> Worker::make(const std::string& device) {
  make_quiet();
  ucp_config_t* read = nullptr;
  if (const auto status = ucp_config_read(nullptr, nullptr, &read); status != UCS_OK)
    return tl::unexpected(library_error("reading the UCX_* variables", status));
  const std::unique_ptr<ucp_config_t, ConfigRelease> config(read);
  if (!device.empty()) {
    const auto status = ucp_config_modify(config.get(), "NET_DEVICES", device.c_str());
    if (status != UCS_OK) return tl::unexpected(library_error("interface " + device, status));
  }
  // Flushes of the worker then ask nothing of its peers. Releases without the setting ask.
  (void)ucp_config_modify(config.get(), "FLUSH_WORKER_EPS", "n");
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_RMA | UCP_FEATURE_WAKEUP;
  params.mt_workers_shared = 0;
  std::unique_ptr<Worker> out(new Worker);
  if (const auto status = ucp_init(&params, config.get(), &out->context_); status != UCS_OK) {
    Error error = library_error(
        device.empty() ? "no usable transport" : "no usable transport over " + device, status);
    if (!device.empty()) error.code = Code::invalid_argument;
    return tl::unexpected(std::move(error));
  }
  ucp_worker_params_t worker{};
  worker.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE | UCP_WORKER_PARAM_FIELD_EVENTS;
  // The thread that uses it may change, and closing may happen on another.
  worker.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  worker.events = UCP_WAKEUP_RMA | UCP_WAKEUP_TX | UCP_WAKEUP_RX;
  if (const auto status = ucp_worker_create(out->context_, &worker, &out->worker_);
      status != UCS_OK)
    return tl::unexpected(library_error("creating a worker", status));
  if (const auto status = ucp_worker_get_efd(out->worker_, &out->event_fd_); status != UCS_OK)
    return tl::unexpected(library_error("the event descriptor of a worker", status));
  return out;
}

Result<std::unique_ptr<Worker>> Worker::make_on_host() {
  if (std::getenv("UCX_NET_DEVICES") == nullptr)
    if (auto out = make("lo")) return out;
  return make("");
}

Worker::~Worker() {
  if (worker_ != nullptr) ucp_worker_destroy(worker_);
  if (context_ != nullptr) ucp_cleanup(context_);
}

bool Worker::takes_gpu_memory() const {
  if (const char* const list = std::getenv("UCX_TLS"); list != nullptr && !has_cuda(list))
    return false;
  ucp_context_attr_t attributes{};
  attributes.field_mask = UCP_ATTR_FIELD_MEMORY_TYPES;
  return ucp_context_query(context_, &attributes) == UCS_OK &&
         (attributes.memory_types & UCS_BIT(UCS_MEMORY_TYPE_CUDA)) != 0;
}

Result<std::vector<std::byte>> Worker::address() const {
  ucp_address_t* address = nullptr;
  std::size_t bytes = 0;
  if (const auto status = ucp_worker_get_address(worker_, &address, &bytes); status != UCS_OK)
    return tl::unexpected(library_error("the worker's address", status));
  std::vector<std::byte> out(bytes);
  std::memcpy(out.data(), address, bytes);
  ucp_worker_release_address(worker_, address);
  return out;
}

Result<ucp_ep_h> Worker::connect(std::span<const std::byte> address, ucp_err_handler_cb_t on_error,
                                 void* arg) const {
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(address.data());
  // on_error is called in this mode, too. The stricter mode disables the single-copy methods (which
  // cannot invalidate memory) and watches processes with timers; here the control plane reports the
  // death of a process.
  params.err_mode = UCP_ERR_HANDLING_MODE_NONE;
  params.err_handler.cb = on_error;
  params.err_handler.arg = arg;
  ucp_ep_h out = nullptr;
  if (const auto status = ucp_ep_create(worker_, &params, &out); status != UCS_OK)
    return tl::unexpected(library_error("an endpoint", status));
  return out;
}

void Worker::sleep(std::chrono::nanoseconds at_most) const {
  if (at_most.count() <= 0 || ucp_worker_arm(worker_) != UCS_OK) return;
  pollfd wait{event_fd_, POLLIN, 0};
  const timespec time{0, static_cast<long>(std::min<std::int64_t>(at_most.count(), 999'999'999))};
  (void)::ppoll(&wait, 1, &time, nullptr);
}

}  // namespace reshard::ucx
