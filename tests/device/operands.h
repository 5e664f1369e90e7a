#pragma once
// The memory that a kernel's arguments refer to (kernels.h): a new operation adds its operands
// here.
//   operands(args)             its tensors, by name and use
//   visit_arrays(args, fn)     fn(name, use, const void*, bytes) for each other array
// PredictArgs::terms are in neither: they are read during the call.
#include <vector>

#include "src/kernels/kernels.h"

namespace espalier::kernels {

enum class Use : uint8_t { in, out, both };
inline Use sum_of(bool accumulate) { return accumulate ? Use::both : Use::out; }

struct NamedOperand {
  const char* name;
  Use use;
  Tensor& tensor;
};
using NamedOperands = std::vector<NamedOperand>;

#define IN(x) \
  { #x, Use::in, a.x }
#define OUT(x) \
  { #x, Use::out, a.x }
#define BOTH(x) \
  { #x, Use::both, a.x }
#define SUM(x, adds) \
  { #x, sum_of(a.adds), a.x }

// In namespace espalier::kernels for argument-dependent lookup.
inline NamedOperands operands(GemmArgs& a) {
  return {IN(a),    IN(b),          SUM(c, accumulate), IN(addend),
          IN(bias), OUT(activated), IN(preactivation),  SUM(row_sums, accumulate_sums)};
}
inline NamedOperands operands(ColumnSumArgs& a) { return {IN(x), SUM(out, accumulate)}; }
inline NamedOperands operands(NormArgs& a) {
  return {IN(x), IN(weight), IN(bias), OUT(y), OUT(mean), OUT(rstd)};
}
inline NamedOperands operands(NormBackwardArgs& a) {
  return {IN(dy),
          IN(x),
          IN(weight),
          IN(mean),
          IN(rstd),
          BOTH(dx),
          SUM(dweight, accumulate),
          SUM(dbias, accumulate),
          OUT(rounded)};
}
inline NamedOperands operands(BatchNormStatisticsArgs& a) {
  return {IN(x), OUT(mean), OUT(variance)};
}
inline NamedOperands operands(BatchNormArgs& a) {
  return {IN(x), IN(mean), IN(variance), IN(weight), IN(bias), IN(addend), OUT(y)};
}
inline NamedOperands operands(BatchNormSumsArgs& a) {
  return {{"dy", a.y ? Use::both : Use::in, a.dy},
          IN(x),
          IN(y),
          IN(mean),
          IN(variance),
          OUT(sums),
          SUM(dweight, accumulate),
          SUM(dbias, accumulate)};
}
inline NamedOperands operands(BatchNormBackwardArgs& a) {
  return {IN(g), IN(x), IN(mean), IN(variance), IN(weight), IN(sums), OUT(dx)};
}
inline NamedOperands operands(BatchNormAverageArgs& a) {
  return {IN(mean),
          IN(variance),
          IN(average_mean),
          IN(average_variance),
          SUM(dmean, accumulate),
          SUM(dvariance, accumulate)};
}
inline NamedOperands operands(ConvolutionArgs& a) { return {IN(x), IN(weight), IN(bias), OUT(y)}; }
inline NamedOperands operands(ConvolutionInputArgs& a) { return {IN(dy), IN(weight), OUT(dx)}; }
inline NamedOperands operands(ConvolutionWeightArgs& a) { return {IN(x), IN(dy), OUT(dweight)}; }
inline NamedOperands operands(LocalNormArgs& a) { return {IN(x), OUT(y)}; }
inline NamedOperands operands(LocalNormBackwardArgs& a) { return {IN(dy), IN(x), OUT(dx)}; }
inline NamedOperands operands(ActivationArgs& a) { return {IN(x), OUT(y)}; }
inline NamedOperands operands(ActivationBackwardArgs& a) { return {IN(dy), IN(x), OUT(dx)}; }
inline NamedOperands operands(GatedActivationArgs& a) { return {IN(gate), IN(up), OUT(y)}; }
inline NamedOperands operands(GatedActivationBackwardArgs& a) {
  return {IN(dy), IN(gate), IN(up), OUT(dgate), OUT(dup)};
}
inline NamedOperands operands(RotaryArgs& a) {
  return {BOTH(x), IN(cosines), IN(sines), IN(positions)};
}
inline NamedOperands operands(HeadNormArgs& a) { return {IN(x), IN(weight), OUT(y), OUT(rstd)}; }
inline NamedOperands operands(HeadNormBackwardArgs& a) {
  return {IN(dy), IN(x), IN(weight), IN(rstd), OUT(dx), SUM(dweight, accumulate)};
}
inline NamedOperands operands(AttentionArgs& a) { return {IN(qkv), OUT(out), OUT(lse)}; }
inline NamedOperands operands(AttentionBackwardArgs& a) {
  return {IN(qkv), IN(out), IN(lse), IN(dout), OUT(dqkv)};
}
inline NamedOperands operands(CacheTokensArgs& a) {
  return {IN(qkv), BOTH(keys), BOTH(values), IN(first), IN(counts)};
}
inline NamedOperands operands(CachedAttentionArgs& a) {
  return {IN(q), IN(keys), IN(values), IN(lengths), OUT(out)};
}
inline NamedOperands operands(EmbeddingArgs& a) {
  return {IN(tokens), IN(token), IN(position), OUT(x), IN(positions)};
}
inline NamedOperands operands(EmbeddingBackwardArgs& a) {
  return {IN(tokens), IN(dx), BOTH(dtoken), BOTH(dposition)};
}
inline NamedOperands operands(CrossEntropyArgs& a) {
  return {IN(logits), IN(targets), OUT(losses), OUT(dlogits)};
}
inline NamedOperands operands(DistillationArgs& a) {
  return {IN(logits), IN(teacher), IN(targets), OUT(losses), OUT(teacher_losses), OUT(dlogits)};
}
inline NamedOperands operands(PatchesArgs& a) { return {IN(x), OUT(patches)}; }
inline NamedOperands operands(PatchSumArgs& a) { return {IN(patches), BOTH(sum)}; }
inline NamedOperands operands(PoolArgs& a) { return {IN(x), OUT(y), OUT(from)}; }
inline NamedOperands operands(PoolBackwardArgs& a) { return {IN(dy), IN(from), OUT(dx)}; }
inline NamedOperands operands(DropoutArgs& a) { return {IN(x), OUT(y)}; }
inline NamedOperands operands(CastArgs& a) { return {IN(x), SUM(y, accumulate)}; }
inline NamedOperands operands(OrderedSumArgs& a) { return {IN(x), BOTH(y)}; }
inline NamedOperands operands(DifferenceArgs& a) { return {IN(a), IN(b), OUT(y), IN(factor)}; }
inline NamedOperands operands(FillArgs& a) { return {OUT(x)}; }
inline NamedOperands operands(SumSquaresArgs& a) { return {IN(x), BOTH(counts)}; }
inline NamedOperands operands(ClipArgs& a) { return {IN(counts), OUT(norm), OUT(factor)}; }
inline NamedOperands operands(GatherArgs& a) { return {IN(dense), SUM(packed, accumulate)}; }
inline NamedOperands operands(ScatterArgs& a) { return {IN(packed), OUT(dense)}; }
inline NamedOperands operands(CsrArgs& a) {
  return {OUT(row_begin), OUT(column), OUT(column_begin), OUT(row), OUT(order)};
}
inline NamedOperands operands(QuantizeArgs& a) { return {IN(x), OUT(codes), OUT(scales)}; }
inline NamedOperands operands(DequantizeArgs& a) { return {IN(codes), IN(scales), OUT(x)}; }
inline NamedOperands operands(EncodeArgs& a) { return {IN(x)}; }
inline NamedOperands operands(DecodeArgs& a) { return {SUM(y, accumulate)}; }
inline NamedOperands operands(UpdateArgs& a) {
  return {IN(gradient), BOTH(value),  BOTH(low),  BOTH(moment1), BOTH(moment2),
          BOTH(scale1), BOTH(scale2), OUT(dense), IN(factor)};
}
inline NamedOperands operands(PredictArgs& a) {
  return {IN(value),  IN(low),    IN(moment1), IN(moment2),
          IN(scale1), IN(scale2), OUT(out),    OUT(exact)};
}
template <class Matrix>
NamedOperands operands(SpmmOf<Matrix>& a) {
  return {
      {"weight", Use::in, a.weight.values}, IN(x), SUM(y, accumulate), IN(bias), OUT(activated)};
}
template <class Matrix>
NamedOperands operands(SpmmTransposedOf<Matrix>& a) {
  return {{"weight", Use::in, a.weight.values}, IN(dy), SUM(dx, accumulate), IN(preactivation)};
}
template <class Matrix>
NamedOperands operands(SddmmOf<Matrix>& a) {
  return {{"weight", sum_of(a.accumulate), a.weight.values}, IN(dy), IN(x)};
}

#undef IN
#undef OUT
#undef BOTH
#undef SUM

template <class Fn>
void visit_arrays(const Positions& p, Fn&& fn) {
  const auto kept = static_cast<size_t>(p.count);
  const auto size = static_cast<size_t>(p.size);
  fn("the list of positions", Use::in, p.list, 4 * kept);
  fn("the bitmap", Use::in, p.bitmap, 8 * ((size + 63) / 64));
  fn("the prefix counts of the bitmap", Use::in, p.prefix_counts, 4 * ((size + 511) / 512));
}
template <class Fn>
void visit_arrays(const SparseMatrix& m, Fn&& fn) {
  const auto kept = static_cast<size_t>(m.positions.count);
  visit_arrays(m.positions, fn);
  fn("row_begin", Use::in, m.csr.row_begin, 4 * static_cast<size_t>(m.rows + 1));
  fn("column", Use::in, m.csr.column, 4 * kept);
  fn("column_begin", Use::in, m.csr.column_begin, 4 * static_cast<size_t>(m.cols + 1));
  fn("row", Use::in, m.csr.row, 4 * kept);
  fn("order", Use::in, m.csr.order, 4 * kept);
}
/// Only the device knows the number of blocks: of their columns only the first is visited.
template <class Fn>
void visit_arrays(const BlockMatrix& m, Fn&& fn) {
  const auto begins = static_cast<size_t>((m.rows + m.height - 1) / m.height + 1);
  fn("block_begin", Use::in, m.block_begin, 4 * begins);
  fn("value_begin", Use::in, m.value_begin, 4 * begins);
  fn("block_column", Use::in, m.block_column, size_t{4});
}
template <class Args, class Fn>
void visit_arrays(const Args& args, Fn&& fn) {
  if constexpr (requires { args.positions; }) {
    visit_arrays(args.positions, fn);
  } else if constexpr (requires { args.weight.positions; }) {
    visit_arrays(args.weight, fn);
  } else if constexpr (requires { args.weight.block_begin; }) {
    visit_arrays(args.weight, fn);
  } else if constexpr (requires { args.wire; }) {
    const bool decodes = requires { args.y; };
    fn("wire", decodes ? Use::in : Use::out, args.wire.data(), args.wire.size());
  }
}

}  // namespace espalier::kernels
