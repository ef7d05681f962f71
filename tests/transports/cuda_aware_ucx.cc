// SPDX-License-Identifier: Apache-2.0
#include "tests/transports/cuda_aware_ucx.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <ucp/api/ucp.h>

#include "reshard/cuda/driver.h"
#include "reshard/gpu_transport/gpu_messages_testutil.h"

namespace reshard {
namespace {

const bool kModel = load_emulated_driver(EMULATED_GPU);

/// The library's own function.
template <class F>
F* real(const char* name) {
  void* const library = dlopen("libucp.so.0", RTLD_NOW | RTLD_NOLOAD);
  return reinterpret_cast<F*>(dlsym(library, name));
}

bool on_gpu(const void* at) {
  const auto driver = cuda::load_driver();
  unsigned type = 0;
  return driver && at != nullptr &&
         (*driver)->cuPointerGetAttribute(&type, cuda::kMemoryType,
                                          reinterpret_cast<cuda::DevicePtr>(at)) == 0 &&
         type == cuda::kDeviceMemory;
}

/// The parameters without the memory's type, after a look at it.
ucp_request_param_t checked(const ucp_request_param_t& param, const void* memory) {
  ucp_request_param_t out = param;
  const bool named = (param.op_attr_mask & UCP_OP_ATTR_FIELD_MEMORY_TYPE) != 0;
  const auto type = named ? param.memory_type : UCS_MEMORY_TYPE_HOST;
  EXPECT_EQ(type, on_gpu(memory) ? UCS_MEMORY_TYPE_CUDA : UCS_MEMORY_TYPE_HOST);
  out.op_attr_mask &= ~static_cast<std::uint32_t>(UCP_OP_ATTR_FIELD_MEMORY_TYPE);
  return out;
}

}  // namespace

bool models_cuda_aware_ucx() { return kModel; }

}  // namespace reshard

extern "C" {

ucs_status_t ucp_context_query(ucp_context_h context, ucp_context_attr_t* attributes) {
  const auto status = reshard::real<decltype(ucp_context_query)>(__func__)(context, attributes);
  if (reshard::models_cuda_aware_ucx()) attributes->memory_types |= UCS_BIT(UCS_MEMORY_TYPE_CUDA);
  return status;
}

ucs_status_ptr_t ucp_am_send_nbx(ucp_ep_h to, unsigned id, const void* header, size_t header_bytes,
                                 const void* bytes, size_t count,
                                 const ucp_request_param_t* param) {
  const auto send = reshard::real<decltype(ucp_am_send_nbx)>(__func__);
  if (!reshard::models_cuda_aware_ucx())
    return send(to, id, header, header_bytes, bytes, count, param);
  const ucp_request_param_t passed = reshard::checked(*param, bytes);
  return send(to, id, header, header_bytes, bytes, count, &passed);
}

ucs_status_ptr_t ucp_am_recv_data_nbx(ucp_worker_h worker, void* data, void* into, size_t count,
                                      const ucp_request_param_t* param) {
  const auto receive = reshard::real<decltype(ucp_am_recv_data_nbx)>(__func__);
  if (!reshard::models_cuda_aware_ucx()) return receive(worker, data, into, count, param);
  const ucp_request_param_t passed = reshard::checked(*param, into);
  return receive(worker, data, into, count, &passed);
}

ucs_status_ptr_t ucp_put_nbx(ucp_ep_h to, const void* bytes, size_t count, uint64_t there,
                             ucp_rkey_h key, const ucp_request_param_t* param) {
  const auto put = reshard::real<decltype(ucp_put_nbx)>(__func__);
  if (!reshard::models_cuda_aware_ucx()) return put(to, bytes, count, there, key, param);
  const ucp_request_param_t passed = reshard::checked(*param, bytes);
  return put(to, bytes, count, there, key, &passed);
}

ucs_status_t ucp_mem_map(ucp_context_h context, const ucp_mem_map_params_t* params,
                         ucp_mem_h* memory) {
  const auto map = reshard::real<decltype(ucp_mem_map)>(__func__);
  ucp_mem_map_params_t passed = *params;
  if (reshard::models_cuda_aware_ucx()) {
    EXPECT_EQ(params->memory_type,
              reshard::on_gpu(params->address) ? UCS_MEMORY_TYPE_CUDA : UCS_MEMORY_TYPE_HOST);
    passed.memory_type = UCS_MEMORY_TYPE_HOST;
  }
  return map(context, &passed, memory);
}

}  // extern "C"
