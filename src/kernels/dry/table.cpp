#include "src/kernels/dry/table.h"

#include <cmath>

#include "src/kernels/cpu/dense/product_fp16.h"
#include "src/kernels/dry/count.h"
#include "src/kernels/dry/products.h"
#include "src/kernels/verify/verify.h"

namespace espalier::kernels {

DryCount& dry_count() {
  thread_local DryCount count;
  return count;
}

namespace dry {
namespace {

void column_sum(Stream& stream, const ColumnSumArgs& args) {
  verify(args);
  allow(stream, 4 * rounded_up(args.out.count(), 1024) + 4096 * stream.threads());
  add(elements(args.x), traffic(args.x, args.out));
}

void layernorm(Stream&, const LayerNormArgs& args) {
  verify(args);
  add(8 * elements(args.x), traffic(args.x, args.y, args.weight, args.bias, args.mean, args.rstd));
}

void layernorm_backward(Stream& stream, const LayerNormBackwardArgs& args) {
  verify(args);
  constexpr int64_t kShares = 256;  // of the rows: sums of two vectors each
  allow(stream, 2 * kShares * args.x.cols() * 4);
  add(16 * elements(args.x), traffic(args.dy, args.x, args.dx, args.dx, args.weight, args.mean,
                                     args.rstd, args.dweight, args.dbias, args.rounded));
}

void activation(Stream&, const ActivationArgs& args) {
  verify(args);
  add(flops_of(args.kind) * elements(args.x), traffic(args.x, args.y));
}

void activation_backward(Stream&, const ActivationBackwardArgs& args) {
  verify(args);
  add(1.5 * flops_of(args.kind) * elements(args.x), traffic(args.dy, args.x, args.dx));
}

/// oneDNN copies an operand that it cannot read as it lies, panel by panel; those of fp16 are
/// widened (they are never rounded to 8 bits). What goes with the product is a pass of its own.
/// Operands that are rounded to 8 bits lie in the workspace, as bf16, and sums in fp32.
void gemm(Stream& stream, const GemmArgs& args) {
  verify(args);
  constexpr int64_t kPanels = int64_t{1} << 20;
  const bool rounds = args.round_a != Float8::none;
  allow(stream, kPanels * stream.threads() + (rounds ? rounded_up(2 * args.a.count(), 64) +
                                                           rounded_up(2 * args.b.count(), 64) +
                                                           rounded_up(4 * args.c.count(), 64)
                                                     : 0));
  if (rounds) {  // each is read once more, for its scale
    add(2 * (elements(args.a) + elements(args.b)), traffic(args.a, args.b));
  }
  const bool widens = args.a.dtype == DType::fp16 && !stream.arena().on_device();
  const Buffer panels = widens ? cpu::fp16_panels(stream, args) : Buffer();
  const double inner = static_cast<double>(args.transpose_a ? args.a.rows() : args.a.cols());
  add(2 * inner * elements(args.c), traffic(args.a, args.b, args.c, args.bias, args.addend) +
                                        (args.accumulate ? traffic(args.c) : 0));
  if (args.activated) {
    activation(stream, {.kind = args.activation, .x = args.c, .y = args.activated});
  }
  if (args.preactivation) {
    activation_backward(
        stream, {.kind = args.activation, .dy = args.c, .x = args.preactivation, .dx = args.c});
  }
  if (args.row_sums) {
    column_sum(stream, {.x = args.a, .out = args.row_sums, .accumulate = args.accumulate_sums});
  }
}

/// Scores on and below the diagonal, over all heads and sequences.
double causal_scores(const Tensor& qkv, int heads) {
  const auto tokens = static_cast<double>(qkv.shape[1]);
  return static_cast<double>(qkv.shape[0]) * heads * tokens * (tokens + 1) / 2;
}

/// `products` of each score with a row of D = C / H elements, and the softmax.
double attention_flops(const Tensor& qkv, int heads, int products) {
  const double width = static_cast<double>(qkv.cols()) / 3 / heads;
  return causal_scores(qkv, heads) * (2 * products * width + kExp);
}

/// fp32 panels [T, D] of one head a thread; both extents are padded to vectors.
void allow_panels(Stream& stream, const Tensor& qkv, int heads, int64_t panels) {
  const int64_t tokens = rounded_up(qkv.shape[1], 64);
  const int64_t width = rounded_up(qkv.cols() / 3 / heads, 64);
  allow(stream, stream.threads() * 4 * (panels * tokens * width + tokens));
}

void attention(Stream& stream, const AttentionArgs& args) {
  verify(args);
  allow_panels(stream, args.qkv, args.heads, 4);
  add(attention_flops(args.qkv, args.heads, 2), traffic(args.qkv, args.out, args.lse));
}

void attention_backward(Stream& stream, const AttentionBackwardArgs& args) {
  verify(args);
  allow_panels(stream, args.qkv, args.heads, 9);
  add(attention_flops(args.qkv, args.heads, 5),
      traffic(args.qkv, args.out, args.lse, args.dout, args.dqkv));
}

void embedding(Stream&, const EmbeddingArgs& args) {
  verify(args);
  const double row =
      static_cast<double>(args.x.cols()) * static_cast<double>(size_of(args.token.dtype));
  add(elements(args.x),
      traffic(args.tokens, args.x) + row * static_cast<double>(args.x.rows() + args.x.shape[1]));
}

void embedding_backward(Stream& stream, const EmbeddingBackwardArgs& args) {
  verify(args);
  allow(stream, 4 * (3 * args.dx.rows() + args.dtoken.rows() + 1));
  const double row =
      static_cast<double>(args.dx.cols()) * static_cast<double>(size_of(args.dtoken.dtype));
  add(2 * elements(args.dx), traffic(args.tokens, args.dx) +
                                 2 * row * static_cast<double>(args.dx.rows() + args.dx.shape[1]));
}

void cross_entropy(Stream&, const CrossEntropyArgs& args) {
  verify(args);
  add((args.dlogits ? 2 : 1) * (kExp + 3) * elements(args.logits),
      traffic(args.logits, args.targets, args.losses, args.dlogits));
}

void dropout(Stream&, const DropoutArgs& args) {
  verify(args);
  add(elements(args.x), traffic(args.x, args.y));
}

void cast(Stream&, const CastArgs& args) {
  verify(args);
  add(args.accumulate ? elements(args.x) : 0,
      traffic(args.x, args.y) + (args.accumulate ? traffic(args.y) : 0));
}

void ordered_sum(Stream&, const OrderedSumArgs& args) {
  verify(args);
  add(elements(args.x) - elements(args.y), traffic(args.x, args.y));
}

void difference(Stream&, const DifferenceArgs& args) {
  verify(args);
  add(elements(args.y), traffic(args.a, args.b, args.y));
}

void fill(Stream&, const FillArgs& args) {
  verify(args);
  add(0, traffic(args.x));
}

void sum_squares(Stream&, Each<SumSquaresArgs> all) {
  for (const SumSquaresArgs& args : all) {
    verify(args);
    add(2 * elements(args.x), traffic(args.x));
  }
}

void clip(Stream&, const ClipArgs& args) {
  verify(args);
  add(2 * elements(args.counts), traffic(args.counts, args.norm, args.factor));
}

/// A list touches the cache lines that hold a kept element (their expected number for a random
/// mask); the other forms stream over the whole dense array.
double dense_traffic(const Tensor& dense, const Positions& positions) {
  if (!dense || positions.size == 0) {
    return 0;
  }
  const double pruned =
      1 - static_cast<double>(positions.count) / static_cast<double>(positions.size);
  const double in_line = 64.0 / static_cast<double>(size_of(dense.dtype));
  return traffic(dense) * (positions.list != nullptr ? 1 - std::pow(pruned, in_line) : 1);
}

void gather(Stream&, const GatherArgs& args) {
  verify(args);
  add(args.accumulate ? elements(args.packed) : 0,
      dense_traffic(args.dense, args.positions) + traffic(args.positions) +
          traffic(args.packed) * (args.accumulate ? 2 : 1));
}

void scatter(Stream&, const ScatterArgs& args) {
  verify(args);
  add(0, traffic(args.dense, args.packed) + traffic(args.positions));
}

void csr(Stream&, const CsrArgs& args) {
  verify(args);
  add(0, traffic(args.positions) +
             traffic(args.row_begin, args.column, args.column_begin, args.row, args.order));
}

void quantize(Stream&, const QuantizeArgs& args) {
  verify(args);
  add(10 * elements(args.x), traffic(args.x, args.codes, args.scales));
}

void dequantize(Stream&, const DequantizeArgs& args) {
  verify(args);
  add(elements(args.x), traffic(args.x, args.codes, args.scales));
}

/// Large buckets are measured in parts (their workspace), topk counts in several passes.
void encode(Stream& stream, const EncodeArgs& args) {
  verify(args);
  allow(stream, 32 * (args.x.count() / 2048 + 1));
  add(10 * elements(args.x), traffic(args.x) + static_cast<double>(args.wire.size()));
}

void decode(Stream&, const DecodeArgs& args) {
  verify(args);
  add(2 * elements(args.y),
      traffic(args.y) * (args.accumulate ? 2 : 1) + static_cast<double>(args.wire.size()));
}

/// What an update reads and writes beside the gradient.
template <class Args>
double update_traffic(const Args& args) {
  const double copy =
      args.dense ? dense_traffic(args.dense, args.positions) + traffic(args.positions) : 0;
  return traffic(args.gradient) + 2 * traffic(args.value, args.low, args.moment1, args.scale1) +
         copy;
}

void adamw(Stream&, Each<AdamWArgs> all) {
  for (const AdamWArgs& args : all) {
    verify(args);
    add(15 * elements(args.value), update_traffic(args) + 2 * traffic(args.moment2, args.scale2));
  }
}

void sgd(Stream&, Each<SgdArgs> all) {
  for (const SgdArgs& args : all) {
    verify(args);
    add(7 * elements(args.value), update_traffic(args));
  }
}

void predict(Stream&, const PredictArgs& args) {
  verify(args);
  add(6 * elements(args.value) * static_cast<double>(args.term_count),
      traffic(args.value, args.low, args.moment1, args.scale1) +
          traffic(args.moment2, args.scale2) + traffic(args.out, args.exact));
}

/// Twice each row's projection on those before it, and its length before and after.
void orthonormalise(Stream&, const OrthonormaliseArgs& args) {
  verify(args);
  const auto rows = static_cast<double>(args.x.rows());
  add(4 * rows * elements(args.x), 2 * traffic(args.x));
}

/// Of numbers that are finite: gradient and error are not touched.
void keep_factor(Stream&, const KeepFactorArgs& args) {
  verify(args);
  add(0, traffic(args.p, args.q, args.factor));
}

constexpr Kernels kTable{
    .name = "dry",
    .gemm = gemm,
    .column_sum = column_sum,
    .layernorm = layernorm,
    .layernorm_backward = layernorm_backward,
    .activation = activation,
    .activation_backward = activation_backward,
    .attention = attention,
    .attention_backward = attention_backward,
    .embedding = embedding,
    .embedding_backward = embedding_backward,
    .cross_entropy = cross_entropy,
    .dropout = dropout,
    .cast = cast,
    .ordered_sum = ordered_sum,
    .difference = difference,
    .fill = fill,
    .sum_squares = sum_squares,
    .clip = clip,
    .gather = gather,
    .scatter = scatter,
    .csr = csr,
    .spmm = spmm,
    .spmm_transposed = spmm_transposed,
    .sddmm = sddmm,
    .block_spmm = block_spmm,
    .block_spmm_transposed = block_spmm_transposed,
    .block_sddmm = block_sddmm,
    .quantize = quantize,
    .dequantize = dequantize,
    .encode = encode,
    .decode = decode,
    .adamw = adamw,
    .sgd = sgd,
    .predict = predict,
    .orthonormalise = orthonormalise,
    .keep_factor = keep_factor,
};

}  // namespace

const Kernels& table() { return kTable; }

}  // namespace dry
}  // namespace espalier::kernels
