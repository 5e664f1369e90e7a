#pragma once
// Causal attention by cuDNN's flash kernels, which are offered bf16 operands of 64 positions and
// more with heads of up to 128 columns, a multiple of 8, at 16 bytes. attention.cu asks here first;
// what cuDNN does not take, and all of it where there is no such library, our own kernels compute.
//
// ESPALIER_ATTENTION in the environment: "own" asks our own kernels alone; "cudnn" makes it a
// Failure, with the reason, when cuDNN does not take what it is offered.
//
// A plan is made for each shape at its first call (seconds: cuDNN compiles kernels) and kept with
// the queue. Deterministic, backward keeps gradients of scores in the workspace, so it asks for as
// many sequences at a time as fit 256 MiB; where one does not, it is ours. Otherwise the workspace has
// an fp32 sum of dq, and as much again for cuDNN. How much workspace a call asks for depends on its
// shape, that choice and that variable, not on the machine: plans of memory are those of runs.
#include "src/core/stream.h"

namespace espalier::kernels::ESPALIER_GPU {

/// Operands of AttentionArgs and AttentionBackwardArgs.
struct LibraryAttention {
  bool half = false;          ///< bf16 all; else nothing is offered
  bool deterministic = true;  ///< Stream::deterministic
  void *qkv = nullptr, *out = nullptr, *dout = nullptr, *dqkv = nullptr;
  float *lse = nullptr, *delta = nullptr;  ///< delta [sequences, heads, tokens]: backward fills it
  int64_t sequences = 0, tokens = 0, heads = 0, width = 0;
  float scale = 1;
};

/// Bytes that a call takes of the stream's workspace.
size_t library_attention_workspace(const LibraryAttention& call, bool backward);

/// False: nothing was asked for that a later call would not write again.
bool library_attention(Stream& stream, const LibraryAttention& call, bool backward,
                       std::byte* workspace);

}  // namespace espalier::kernels::ESPALIER_GPU
