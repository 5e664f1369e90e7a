#pragma once
// Visits the memory that a kernel's arguments refer to (kernels.h), by name and use:
//   visit_operands(args, fn)   fn(name, use, Tensor&) for each tensor; returns the operation's name
//   visit_arrays(args, fn)     fn(name, use, const void*, bytes) for each other array
// Neither visits PredictArgs::terms: it is read during the call.
#include <string>

#include "src/kernels/kernels.h"

namespace espalier::kernels {

enum class Use : uint8_t { in, out, both };
inline Use sum_of(bool accumulate) { return accumulate ? Use::both : Use::out; }

// In namespace espalier::kernels for argument-dependent lookup.
template <class Fn>
std::string visit_operands(GemmArgs& a, Fn&& fn) {
  fn("a", Use::in, a.a);
  fn("b", Use::in, a.b);
  fn("c", sum_of(a.accumulate), a.c);
  fn("addend", Use::in, a.addend);
  fn("bias", Use::in, a.bias);
  fn("activated", Use::out, a.activated);
  fn("preactivation", Use::in, a.preactivation);
  fn("row_sums", sum_of(a.accumulate_sums), a.row_sums);
  return "gemm";
}
template <class Fn>
std::string visit_operands(ColumnSumArgs& a, Fn&& fn) {
  fn("x", Use::in, a.x);
  fn("out", sum_of(a.accumulate), a.out);
  return "column_sum";
}
template <class Fn>
std::string visit_operands(NormArgs& a, Fn&& fn) {
  fn("x", Use::in, a.x);
  fn("weight", Use::in, a.weight);
  fn("bias", Use::in, a.bias);
  fn("y", Use::out, a.y);
  fn("mean", Use::out, a.mean);
  fn("rstd", Use::out, a.rstd);
  return "norm";
}
template <class Fn>
std::string visit_operands(NormBackwardArgs& a, Fn&& fn) {
  fn("dy", Use::in, a.dy);
  fn("x", Use::in, a.x);
  fn("weight", Use::in, a.weight);
  fn("mean", Use::in, a.mean);
  fn("rstd", Use::in, a.rstd);
  fn("dx", Use::both, a.dx);
  fn("dweight", sum_of(a.accumulate), a.dweight);
  fn("dbias", sum_of(a.accumulate), a.dbias);
  fn("rounded", Use::out, a.rounded);
  return "norm_backward";
}
template <class Fn>
std::string visit_operands(ActivationArgs& a, Fn&& fn) {
  fn("x", Use::in, a.x);
  fn("y", Use::out, a.y);
  return "activation";
}
template <class Fn>
std::string visit_operands(ActivationBackwardArgs& a, Fn&& fn) {
  fn("dy", Use::in, a.dy);
  fn("x", Use::in, a.x);
  fn("dx", Use::out, a.dx);
  return "activation_backward";
}
template <class Fn>
std::string visit_operands(AttentionArgs& a, Fn&& fn) {
  fn("qkv", Use::in, a.qkv);
  fn("out", Use::out, a.out);
  fn("lse", Use::out, a.lse);
  return "attention";
}
template <class Fn>
std::string visit_operands(AttentionBackwardArgs& a, Fn&& fn) {
  fn("qkv", Use::in, a.qkv);
  fn("out", Use::in, a.out);
  fn("lse", Use::in, a.lse);
  fn("dout", Use::in, a.dout);
  fn("dqkv", Use::out, a.dqkv);
  return "attention_backward";
}
template <class Fn>
std::string visit_operands(EmbeddingArgs& a, Fn&& fn) {
  fn("tokens", Use::in, a.tokens);
  fn("token", Use::in, a.token);
  fn("position", Use::in, a.position);
  fn("x", Use::out, a.x);
  return "embedding";
}
template <class Fn>
std::string visit_operands(EmbeddingBackwardArgs& a, Fn&& fn) {
  fn("tokens", Use::in, a.tokens);
  fn("dx", Use::in, a.dx);
  fn("dtoken", Use::both, a.dtoken);
  fn("dposition", Use::both, a.dposition);
  return "embedding_backward";
}
template <class Fn>
std::string visit_operands(CrossEntropyArgs& a, Fn&& fn) {
  fn("logits", Use::in, a.logits);
  fn("targets", Use::in, a.targets);
  fn("losses", Use::out, a.losses);
  fn("dlogits", Use::out, a.dlogits);
  return "cross_entropy";
}
template <class Fn>
std::string visit_operands(DropoutArgs& a, Fn&& fn) {
  fn("x", Use::in, a.x);
  fn("y", Use::out, a.y);
  return "dropout";
}
template <class Fn>
std::string visit_operands(CastArgs& a, Fn&& fn) {
  fn("x", Use::in, a.x);
  fn("y", sum_of(a.accumulate), a.y);
  return "cast";
}
template <class Fn>
std::string visit_operands(OrderedSumArgs& a, Fn&& fn) {
  fn("x", Use::in, a.x);
  fn("y", Use::both, a.y);
  return "ordered_sum";
}
template <class Fn>
std::string visit_operands(DifferenceArgs& a, Fn&& fn) {
  fn("a", Use::in, a.a);
  fn("b", Use::in, a.b);
  fn("y", Use::out, a.y);
  fn("factor", Use::in, a.factor);
  return "difference";
}
template <class Fn>
std::string visit_operands(FillArgs& a, Fn&& fn) {
  fn("x", Use::out, a.x);
  return "fill";
}
template <class Fn>
std::string visit_operands(SumSquaresArgs& a, Fn&& fn) {
  fn("x", Use::in, a.x);
  fn("counts", Use::both, a.counts);
  return "sum_squares";
}
template <class Fn>
std::string visit_operands(ClipArgs& a, Fn&& fn) {
  fn("counts", Use::in, a.counts);
  fn("norm", Use::out, a.norm);
  fn("factor", Use::out, a.factor);
  return "clip";
}
template <class Fn>
std::string visit_operands(GatherArgs& a, Fn&& fn) {
  fn("dense", Use::in, a.dense);
  fn("packed", sum_of(a.accumulate), a.packed);
  return "gather";
}
template <class Fn>
std::string visit_operands(ScatterArgs& a, Fn&& fn) {
  fn("packed", Use::in, a.packed);
  fn("dense", Use::out, a.dense);
  return "scatter";
}
template <class Fn>
std::string visit_operands(CsrArgs& a, Fn&& fn) {
  fn("row_begin", Use::out, a.row_begin);
  fn("column", Use::out, a.column);
  fn("column_begin", Use::out, a.column_begin);
  fn("row", Use::out, a.row);
  fn("order", Use::out, a.order);
  return "csr";
}
template <class Fn>
std::string visit_operands(QuantizeArgs& a, Fn&& fn) {
  fn("x", Use::in, a.x);
  fn("codes", Use::out, a.codes);
  fn("scales", Use::out, a.scales);
  return "quantize";
}
template <class Fn>
std::string visit_operands(DequantizeArgs& a, Fn&& fn) {
  fn("codes", Use::in, a.codes);
  fn("scales", Use::in, a.scales);
  fn("x", Use::out, a.x);
  return "dequantize";
}
template <class Fn>
std::string visit_operands(EncodeArgs& a, Fn&& fn) {
  fn("x", Use::in, a.x);
  return "encode";
}
template <class Fn>
std::string visit_operands(DecodeArgs& a, Fn&& fn) {
  fn("y", sum_of(a.accumulate), a.y);
  return "decode";
}
template <class Fn>
std::string visit_operands(UpdateArgs& a, Fn&& fn) {
  fn("gradient", Use::in, a.gradient);
  fn("value", Use::both, a.value);
  fn("low", Use::both, a.low);
  fn("moment1", Use::both, a.moment1);
  fn("moment2", Use::both, a.moment2);
  fn("scale1", Use::both, a.scale1);
  fn("scale2", Use::both, a.scale2);
  fn("dense", Use::out, a.dense);
  fn("factor", Use::in, a.factor);
  return "update";
}
template <class Fn>
std::string visit_operands(PredictArgs& a, Fn&& fn) {
  fn("value", Use::in, a.value);
  fn("low", Use::in, a.low);
  fn("moment1", Use::in, a.moment1);
  fn("moment2", Use::in, a.moment2);
  fn("scale1", Use::in, a.scale1);
  fn("scale2", Use::in, a.scale2);
  fn("out", Use::out, a.out);
  fn("exact", Use::out, a.exact);
  return "predict";
}
template <class Fn>
std::string visit_operands(OrthonormaliseArgs& a, Fn&& fn) {
  fn("x", Use::both, a.x);
  return "orthonormalise";
}
template <class Fn>
std::string visit_operands(KeepFactorArgs& a, Fn&& fn) {
  fn("p", Use::in, a.p);
  fn("q", Use::in, a.q);
  fn("factor", Use::both, a.factor);
  fn("error", Use::both, a.error);
  fn("gradient", Use::both, a.gradient);
  return "keep_factor";
}

inline std::string named(const SparseMatrix&, const char* name) { return name; }
inline std::string named(const BlockMatrix&, const char* name) {
  return std::string("block_") + name;
}

template <class Matrix, class Fn>
std::string visit_operands(SpmmOf<Matrix>& a, Fn&& fn) {
  fn("weight", Use::in, a.weight.values);
  fn("x", Use::in, a.x);
  fn("y", sum_of(a.accumulate), a.y);
  fn("bias", Use::in, a.bias);
  fn("activated", Use::out, a.activated);
  return named(a.weight, "spmm");
}
template <class Matrix, class Fn>
std::string visit_operands(SpmmTransposedOf<Matrix>& a, Fn&& fn) {
  fn("weight", Use::in, a.weight.values);
  fn("dy", Use::in, a.dy);
  fn("dx", sum_of(a.accumulate), a.dx);
  fn("preactivation", Use::in, a.preactivation);
  return named(a.weight, "spmm_transposed");
}
template <class Matrix, class Fn>
std::string visit_operands(SddmmOf<Matrix>& a, Fn&& fn) {
  fn("weight", sum_of(a.accumulate), a.weight.values);
  fn("dy", Use::in, a.dy);
  fn("x", Use::in, a.x);
  return named(a.weight, "sddmm");
}

template <class Fn>
void visit_arrays(const Positions& p, Fn&& fn) {
  const auto kept = static_cast<size_t>(p.count);
  const auto size = static_cast<size_t>(p.size);
  fn("the list of positions", Use::in, p.list, 4 * kept);
  fn("the bitmap", Use::in, p.bitmap, 8 * ((size + 63) / 64));
  fn("the ranks of the bitmap", Use::in, p.ranks, 4 * ((size + 511) / 512));
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
