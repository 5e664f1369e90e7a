#pragma once
// Attention by cuDNN's flash kernels. attention.cu tries cuDNN first; our own kernels
// compute every call that cuDNN does not support, and all calls if the library is missing.
//
// Calls offered to cuDNN: bf16 operands aligned to 16 bytes, at least 64 positions, heads of at
// most 128 columns, a multiple of 8; each query head with its own k and v; no window.
//
// ESPALIER_ATTENTION in the environment:
// - "own" uses only our own kernels;
// - "cudnn" throws Failure with the reason if cuDNN does not support an offered call.
//
// A plan is made per shape at its first call and kept with the queue. This takes seconds: cuDNN
// compiles kernels.
//
// Workspace of backward:
// - Deterministic: gradients of scores. One cuDNN call takes as many sequences as fit 256 MiB; if
//   one sequence does not fit, our own kernels compute.
// - Otherwise: an fp32 sum of dq, and as much again for cuDNN.
//
// The workspace size depends on the shape, that choice and the variable, not on the machine, so
// memory plans equal those of runs.
#include "src/core/stream.h"

namespace espalier::kernels::ESPALIER_GPU {

/// Operands of AttentionArgs and AttentionBackwardArgs.
struct LibraryAttention {
  bool half = false;  ///< all operands are bf16; otherwise the call is not offered
  bool shared_keys = false, window = false;  ///< calls with either are not offered
  bool deterministic = true;                 ///< Stream::deterministic
  void *qkv = nullptr, *out = nullptr, *dout = nullptr, *dqkv = nullptr;
  float *lse = nullptr, *delta = nullptr;  ///< delta [sequences, heads, tokens]: backward fills it
  int64_t sequences = 0, tokens = 0, heads = 0, width = 0;
  float scale = 1;
  bool causal = true;
};

/// Bytes of the stream's workspace that a call uses.
size_t library_attention_workspace(const LibraryAttention& call, bool backward);

/// Returns false if cuDNN does not compute the call. Kernels enqueued until then write only outputs
/// and workspace that a later call overwrites.
bool library_attention(Stream& stream, const LibraryAttention& call, bool backward,
                       std::byte* workspace);

}  // namespace espalier::kernels::ESPALIER_GPU
