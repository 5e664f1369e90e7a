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

// In namespace espalier::kernels for argument-dependent lookup.
inline NamedOperands operands(GemmArgs& a) {
  return {{"a", Use::in, a.a},
          {"b", Use::in, a.b},
          {"c", sum_of(a.accumulate), a.c},
          {"addend", Use::in, a.addend},
          {"bias", Use::in, a.bias},
          {"activated", Use::out, a.activated},
          {"preactivation", Use::in, a.preactivation},
          {"row_sums", sum_of(a.accumulate_sums), a.row_sums}};
}
inline NamedOperands operands(ColumnSumArgs& a) {
  return {{"x", Use::in, a.x}, {"out", sum_of(a.accumulate), a.out}};
}
inline NamedOperands operands(NormArgs& a) {
  return {{"x", Use::in, a.x},  {"weight", Use::in, a.weight}, {"bias", Use::in, a.bias},
          {"y", Use::out, a.y}, {"mean", Use::out, a.mean},    {"rstd", Use::out, a.rstd}};
}
inline NamedOperands operands(NormBackwardArgs& a) {
  return {{"dy", Use::in, a.dy},
          {"x", Use::in, a.x},
          {"weight", Use::in, a.weight},
          {"mean", Use::in, a.mean},
          {"rstd", Use::in, a.rstd},
          {"dx", Use::both, a.dx},
          {"dweight", sum_of(a.accumulate), a.dweight},
          {"dbias", sum_of(a.accumulate), a.dbias},
          {"rounded", Use::out, a.rounded}};
}
inline NamedOperands operands(BatchNormStatisticsArgs& a) {
  return {{"x", Use::in, a.x}, {"mean", Use::out, a.mean}, {"variance", Use::out, a.variance}};
}
inline NamedOperands operands(BatchNormArgs& a) {
  return {
      {"x", Use::in, a.x},           {"mean", Use::in, a.mean}, {"variance", Use::in, a.variance},
      {"weight", Use::in, a.weight}, {"bias", Use::in, a.bias}, {"addend", Use::in, a.addend},
      {"y", Use::out, a.y}};
}
inline NamedOperands operands(BatchNormSumsArgs& a) {
  return {{"dy", a.y ? Use::both : Use::in, a.dy},
          {"x", Use::in, a.x},
          {"y", Use::in, a.y},
          {"mean", Use::in, a.mean},
          {"variance", Use::in, a.variance},
          {"sums", Use::out, a.sums},
          {"dweight", sum_of(a.accumulate), a.dweight},
          {"dbias", sum_of(a.accumulate), a.dbias}};
}
inline NamedOperands operands(BatchNormBackwardArgs& a) {
  return {{"g", Use::in, a.g},           {"x", Use::in, a.x},
          {"mean", Use::in, a.mean},     {"variance", Use::in, a.variance},
          {"weight", Use::in, a.weight}, {"sums", Use::in, a.sums},
          {"dx", Use::out, a.dx}};
}
inline NamedOperands operands(BatchNormAverageArgs& a) {
  return {{"mean", Use::in, a.mean},
          {"variance", Use::in, a.variance},
          {"average_mean", Use::in, a.average_mean},
          {"average_variance", Use::in, a.average_variance},
          {"dmean", sum_of(a.accumulate), a.dmean},
          {"dvariance", sum_of(a.accumulate), a.dvariance}};
}
inline NamedOperands operands(ConvolutionArgs& a) {
  return {{"x", Use::in, a.x},
          {"weight", Use::in, a.weight},
          {"bias", Use::in, a.bias},
          {"y", Use::out, a.y}};
}
inline NamedOperands operands(ConvolutionInputArgs& a) {
  return {{"dy", Use::in, a.dy}, {"weight", Use::in, a.weight}, {"dx", Use::out, a.dx}};
}
inline NamedOperands operands(ConvolutionWeightArgs& a) {
  return {{"x", Use::in, a.x}, {"dy", Use::in, a.dy}, {"dweight", Use::out, a.dweight}};
}
inline NamedOperands operands(LocalNormArgs& a) {
  return {{"x", Use::in, a.x}, {"y", Use::out, a.y}};
}
inline NamedOperands operands(LocalNormBackwardArgs& a) {
  return {{"dy", Use::in, a.dy}, {"x", Use::in, a.x}, {"dx", Use::out, a.dx}};
}
inline NamedOperands operands(ActivationArgs& a) {
  return {{"x", Use::in, a.x}, {"y", Use::out, a.y}};
}
inline NamedOperands operands(ActivationBackwardArgs& a) {
  return {{"dy", Use::in, a.dy}, {"x", Use::in, a.x}, {"dx", Use::out, a.dx}};
}
inline NamedOperands operands(GatedActivationArgs& a) {
  return {{"gate", Use::in, a.gate}, {"up", Use::in, a.up}, {"y", Use::out, a.y}};
}
inline NamedOperands operands(GatedActivationBackwardArgs& a) {
  return {{"dy", Use::in, a.dy},
          {"gate", Use::in, a.gate},
          {"up", Use::in, a.up},
          {"dgate", Use::out, a.dgate},
          {"dup", Use::out, a.dup}};
}
inline NamedOperands operands(RotaryArgs& a) {
  return {{"x", Use::both, a.x},
          {"cosines", Use::in, a.cosines},
          {"sines", Use::in, a.sines},
          {"positions", Use::in, a.positions}};
}
inline NamedOperands operands(HeadNormArgs& a) {
  return {{"x", Use::in, a.x},
          {"weight", Use::in, a.weight},
          {"y", Use::out, a.y},
          {"rstd", Use::out, a.rstd}};
}
inline NamedOperands operands(HeadNormBackwardArgs& a) {
  return {{"dy", Use::in, a.dy},         {"x", Use::in, a.x},
          {"weight", Use::in, a.weight}, {"rstd", Use::in, a.rstd},
          {"dx", Use::out, a.dx},        {"dweight", sum_of(a.accumulate), a.dweight}};
}
inline NamedOperands operands(AttentionArgs& a) {
  return {{"qkv", Use::in, a.qkv}, {"out", Use::out, a.out}, {"lse", Use::out, a.lse}};
}
inline NamedOperands operands(AttentionBackwardArgs& a) {
  return {{"qkv", Use::in, a.qkv},
          {"out", Use::in, a.out},
          {"lse", Use::in, a.lse},
          {"dout", Use::in, a.dout},
          {"dqkv", Use::out, a.dqkv}};
}
inline NamedOperands operands(CacheTokensArgs& a) {
  return {{"qkv", Use::in, a.qkv},
          {"keys", Use::both, a.keys},
          {"values", Use::both, a.values},
          {"first", Use::in, a.first},
          {"counts", Use::in, a.counts}};
}
inline NamedOperands operands(CachedAttentionArgs& a) {
  return {{"q", Use::in, a.q},
          {"keys", Use::in, a.keys},
          {"values", Use::in, a.values},
          {"lengths", Use::in, a.lengths},
          {"out", Use::out, a.out}};
}
inline NamedOperands operands(EmbeddingArgs& a) {
  return {{"tokens", Use::in, a.tokens},
          {"token", Use::in, a.token},
          {"position", Use::in, a.position},
          {"x", Use::out, a.x},
          {"positions", Use::in, a.positions}};
}
inline NamedOperands operands(EmbeddingBackwardArgs& a) {
  return {{"tokens", Use::in, a.tokens},
          {"dx", Use::in, a.dx},
          {"dtoken", Use::both, a.dtoken},
          {"dposition", Use::both, a.dposition}};
}
inline NamedOperands operands(CrossEntropyArgs& a) {
  return {{"logits", Use::in, a.logits},
          {"targets", Use::in, a.targets},
          {"losses", Use::out, a.losses},
          {"dlogits", Use::out, a.dlogits}};
}
inline NamedOperands operands(DistillationArgs& a) {
  return {{"logits", Use::in, a.logits},
          {"teacher", Use::in, a.teacher},
          {"targets", Use::in, a.targets},
          {"losses", Use::out, a.losses},
          {"teacher_losses", Use::out, a.teacher_losses},
          {"dlogits", Use::out, a.dlogits}};
}
inline NamedOperands operands(PatchesArgs& a) {
  return {{"x", Use::in, a.x}, {"patches", Use::out, a.patches}};
}
inline NamedOperands operands(PatchSumArgs& a) {
  return {{"patches", Use::in, a.patches}, {"sum", Use::both, a.sum}};
}
inline NamedOperands operands(PoolArgs& a) {
  return {{"x", Use::in, a.x}, {"y", Use::out, a.y}, {"from", Use::out, a.from}};
}
inline NamedOperands operands(PoolBackwardArgs& a) {
  return {{"dy", Use::in, a.dy}, {"from", Use::in, a.from}, {"dx", Use::out, a.dx}};
}
inline NamedOperands operands(DropoutArgs& a) {
  return {{"x", Use::in, a.x}, {"y", Use::out, a.y}};
}
inline NamedOperands operands(CastArgs& a) {
  return {{"x", Use::in, a.x}, {"y", sum_of(a.accumulate), a.y}};
}
inline NamedOperands operands(OrderedSumArgs& a) {
  return {{"x", Use::in, a.x}, {"y", Use::both, a.y}};
}
inline NamedOperands operands(DifferenceArgs& a) {
  return {{"a", Use::in, a.a},
          {"b", Use::in, a.b},
          {"y", Use::out, a.y},
          {"factor", Use::in, a.factor}};
}
inline NamedOperands operands(FillArgs& a) { return {{"x", Use::out, a.x}}; }
inline NamedOperands operands(SumSquaresArgs& a) {
  return {{"x", Use::in, a.x}, {"counts", Use::both, a.counts}};
}
inline NamedOperands operands(ClipArgs& a) {
  return {
      {"counts", Use::in, a.counts}, {"norm", Use::out, a.norm}, {"factor", Use::out, a.factor}};
}
inline NamedOperands operands(GatherArgs& a) {
  return {{"dense", Use::in, a.dense}, {"packed", sum_of(a.accumulate), a.packed}};
}
inline NamedOperands operands(ScatterArgs& a) {
  return {{"packed", Use::in, a.packed}, {"dense", Use::out, a.dense}};
}
inline NamedOperands operands(CsrArgs& a) {
  return {{"row_begin", Use::out, a.row_begin},
          {"column", Use::out, a.column},
          {"column_begin", Use::out, a.column_begin},
          {"row", Use::out, a.row},
          {"order", Use::out, a.order}};
}
inline NamedOperands operands(QuantizeArgs& a) {
  return {{"x", Use::in, a.x}, {"codes", Use::out, a.codes}, {"scales", Use::out, a.scales}};
}
inline NamedOperands operands(DequantizeArgs& a) {
  return {{"codes", Use::in, a.codes}, {"scales", Use::in, a.scales}, {"x", Use::out, a.x}};
}
inline NamedOperands operands(EncodeArgs& a) { return {{"x", Use::in, a.x}}; }
inline NamedOperands operands(DecodeArgs& a) { return {{"y", sum_of(a.accumulate), a.y}}; }
inline NamedOperands operands(UpdateArgs& a) {
  return {{"gradient", Use::in, a.gradient}, {"value", Use::both, a.value},
          {"low", Use::both, a.low},         {"moment1", Use::both, a.moment1},
          {"moment2", Use::both, a.moment2}, {"scale1", Use::both, a.scale1},
          {"scale2", Use::both, a.scale2},   {"dense", Use::out, a.dense},
          {"factor", Use::in, a.factor}};
}
inline NamedOperands operands(PredictArgs& a) {
  return {{"value", Use::in, a.value},     {"low", Use::in, a.low},
          {"moment1", Use::in, a.moment1}, {"moment2", Use::in, a.moment2},
          {"scale1", Use::in, a.scale1},   {"scale2", Use::in, a.scale2},
          {"out", Use::out, a.out},        {"exact", Use::out, a.exact}};
}
template <class Matrix>
NamedOperands operands(SpmmOf<Matrix>& a) {
  return {{"weight", Use::in, a.weight.values},
          {"x", Use::in, a.x},
          {"y", sum_of(a.accumulate), a.y},
          {"bias", Use::in, a.bias},
          {"activated", Use::out, a.activated}};
}
template <class Matrix>
NamedOperands operands(SpmmTransposedOf<Matrix>& a) {
  return {{"weight", Use::in, a.weight.values},
          {"dy", Use::in, a.dy},
          {"dx", sum_of(a.accumulate), a.dx},
          {"preactivation", Use::in, a.preactivation}};
}
template <class Matrix>
NamedOperands operands(SddmmOf<Matrix>& a) {
  return {{"weight", sum_of(a.accumulate), a.weight.values},
          {"dy", Use::in, a.dy},
          {"x", Use::in, a.x}};
}

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
