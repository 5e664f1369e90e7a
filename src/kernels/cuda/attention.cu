// Causal attention: by tiles where tensor cores can, else by rows.
#include "src/kernels/cuda/attention.h"

#include "src/kernels/cuda/table.h"
#include "src/kernels/verify.h"

namespace espalier::kernels::ESPALIER_GPU {
namespace {

template <class Args>
AttentionShapes shapes_of(const Args& args) {
  const int64_t width = args.qkv.shape[2] / 3 / args.heads;
  return {.qkv = elements(args.qkv),
          .out = elements(args.out),
          .dout = {},
          .dqkv = {},
          .lse = static_cast<float*>(args.lse.data),
          .delta = nullptr,
          .sequences = args.qkv.shape[0],
          .tokens = args.qkv.shape[1],
          .heads = args.heads,
          .width = width,
          .scale = 1.0F / sqrtf(static_cast<float>(width))};
}

}  // namespace

void attention(Stream& stream, const AttentionArgs& args) {
  verify(args);
  const AttentionShapes shapes = shapes_of(args);
  const auto run = attention_fits_tiles(shapes) ? attention_by_tiles : attention_by_rows;
  run(stream, shapes);
}

void attention_backward(Stream& stream, const AttentionBackwardArgs& args) {
  verify(args);
  AttentionShapes shapes = shapes_of(args);
  shapes.dout = elements(args.dout);
  shapes.dqkv = elements(args.dqkv);
  const int64_t rows = shapes.pairs() * shapes.tokens;
  shapes.delta =
      reinterpret_cast<float*>(stream.workspace(static_cast<size_t>(rows + 1) * sizeof(float)));
  const auto run =
      attention_fits_tiles(shapes) ? attention_backward_by_tiles : attention_backward_by_rows;
  run(stream, shapes);
}

}  // namespace espalier::kernels::ESPALIER_GPU
