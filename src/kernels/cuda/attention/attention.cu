// Attention: by cuDNN where it supports the call (attention_library.h), else by tiles where
// tensor cores support it, else by rows.
#include "src/kernels/cuda/attention/attention.h"

#include "src/kernels/cuda/attention/attention_library.h"
#include "src/kernels/cuda/table.h"

namespace espalier::kernels::ESPALIER_GPU {
namespace {

template <class Args>
AttentionShapes shapes_of(const Args& args) {
  const int64_t kv_heads = args.kv_heads == 0 ? args.heads : args.kv_heads;
  const int64_t width = args.qkv.shape[2] / (args.heads + 2 * kv_heads);
  return {.qkv = elements(args.qkv),
          .out = elements(args.out),
          .dout = {},
          .dqkv = {},
          .lse = static_cast<float*>(args.lse.data),
          .delta = nullptr,
          .sequences = args.qkv.shape[0],
          .tokens = args.qkv.shape[1],
          .heads = args.heads,
          .kv_heads = kv_heads,
          .width = width,
          .scale = args.scale > 0 ? args.scale : 1.0F / sqrtf(static_cast<float>(width)),
          .causal = args.causal,
          .window = args.window};
}

LibraryAttention for_library(const Stream& stream, const AttentionShapes& s) {
  return {.half = s.qkv.type == DType::bf16 && s.out.type == DType::bf16,
          .shared_keys = s.kv_heads<s.heads, .window = s.window> 0,
          .deterministic = stream.deterministic(),
          .qkv = s.qkv.data,
          .out = s.out.data,
          .dout = s.dout.data,
          .dqkv = s.dqkv.data,
          .lse = s.lse,
          .delta = s.delta,
          .sequences = s.sequences,
          .tokens = s.tokens,
          .heads = s.heads,
          .width = s.width,
          .scale = s.scale,
          .causal = s.causal};
}

}  // namespace

void attention(Stream& stream, const AttentionArgs& args) {
  const AttentionShapes shapes = shapes_of(args);
  const LibraryAttention call = for_library(stream, shapes);
  const size_t bytes = library_attention_workspace(call, false);
  std::byte* const memory = bytes > 0 ? stream.workspace(bytes) : nullptr;
  if (!library_attention(stream, call, false, memory)) {
    const auto run = attention_fits_tiles(shapes) ? attention_by_tiles : attention_by_rows;
    run(stream, shapes);
  }
}

void attention_backward(Stream& stream, const AttentionBackwardArgs& args) {
  AttentionShapes shapes = shapes_of(args);
  shapes.dout = elements(args.dout);
  shapes.dqkv = elements(args.dqkv);
  const auto rows = static_cast<size_t>(shapes.pairs() * shapes.tokens);
  const size_t delta = (rows + 1) * sizeof(float);
  std::byte* const memory =
      stream.workspace(delta + library_attention_workspace(for_library(stream, shapes), true));
  shapes.delta = reinterpret_cast<float*>(memory);
  if (!library_attention(stream, for_library(stream, shapes), true, memory + delta)) {
    const auto run =
        attention_fits_tiles(shapes) ? attention_backward_by_tiles : attention_backward_by_rows;
    run(stream, shapes);
  }
}

}  // namespace espalier::kernels::ESPALIER_GPU
