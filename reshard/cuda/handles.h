// SPDX-License-Identifier: Apache-2.0
#pragma once

// The types that CUDA's own headers declare behind CUcontext, CUstream (and cudaStream_t), CUevent,
// CUmodule and CUfunction: pointers to them pass between reshard and CUDA unchanged.
struct CUctx_st;
struct CUstream_st;
struct CUevent_st;
struct CUmod_st;
struct CUfunc_st;

namespace reshard::cuda {

using Context = CUctx_st*;
using StreamHandle = CUstream_st*;
using EventHandle = CUevent_st*;
using Module = CUmod_st*;
using Function = CUfunc_st*;

}  // namespace reshard::cuda
