#pragma once
// What a kernel's arguments refer to (kernels.h): visit_tensors calls fn(Tensor&) for each, and
// visit_addresses fn(const void*) for every other address that a kernel follows. Of PredictArgs::terms
// neither: it is read when the call is made.
#include "src/kernels/kernels.h"

namespace espalier::kernels {

template <class Fn, class... Some>
void visit_each(Fn&& fn, Some&... some) {
  (fn(some), ...);
}

// In namespace espalier::kernels, to be found by their arguments.
template <class Fn>
void visit_tensors(GemmArgs& a, Fn&& fn) {
  visit_each(fn, a.a, a.b, a.c, a.bias, a.activated, a.preactivation, a.row_sums);
}
template <class Fn>
void visit_tensors(ColumnSumArgs& a, Fn&& fn) {
  visit_each(fn, a.x, a.out);
}
template <class Fn>
void visit_tensors(LayerNormArgs& a, Fn&& fn) {
  visit_each(fn, a.x, a.weight, a.bias, a.y, a.mean, a.rstd);
}
template <class Fn>
void visit_tensors(LayerNormBackwardArgs& a, Fn&& fn) {
  visit_each(fn, a.dy, a.x, a.weight, a.mean, a.rstd, a.dx, a.dweight, a.dbias);
}
template <class Fn>
void visit_tensors(ActivationArgs& a, Fn&& fn) {
  visit_each(fn, a.x, a.y);
}
template <class Fn>
void visit_tensors(ActivationBackwardArgs& a, Fn&& fn) {
  visit_each(fn, a.dy, a.x, a.dx);
}
template <class Fn>
void visit_tensors(AttentionArgs& a, Fn&& fn) {
  visit_each(fn, a.qkv, a.out, a.lse);
}
template <class Fn>
void visit_tensors(AttentionBackwardArgs& a, Fn&& fn) {
  visit_each(fn, a.qkv, a.out, a.lse, a.dout, a.dqkv);
}
template <class Fn>
void visit_tensors(EmbeddingArgs& a, Fn&& fn) {
  visit_each(fn, a.tokens, a.token, a.position, a.x);
}
template <class Fn>
void visit_tensors(EmbeddingBackwardArgs& a, Fn&& fn) {
  visit_each(fn, a.tokens, a.dx, a.dtoken, a.dposition);
}
template <class Fn>
void visit_tensors(CrossEntropyArgs& a, Fn&& fn) {
  visit_each(fn, a.logits, a.targets, a.losses, a.dlogits);
}
template <class Fn>
void visit_tensors(DropoutArgs& a, Fn&& fn) {
  visit_each(fn, a.x, a.y);
}
template <class Fn>
void visit_tensors(CastArgs& a, Fn&& fn) {
  visit_each(fn, a.x, a.y);
}
template <class Fn>
void visit_tensors(OrderedSumArgs& a, Fn&& fn) {
  visit_each(fn, a.x, a.y);
}
template <class Fn>
void visit_tensors(DifferenceArgs& a, Fn&& fn) {
  visit_each(fn, a.a, a.b, a.y);
}
template <class Fn>
void visit_tensors(FillArgs& a, Fn&& fn) {
  visit_each(fn, a.x);
}
template <class Fn>
void visit_tensors(SumSquaresArgs& a, Fn&& fn) {
  visit_each(fn, a.x, a.counts);
}
template <class Fn>
void visit_tensors(GatherArgs& a, Fn&& fn) {
  visit_each(fn, a.dense, a.packed);
}
template <class Fn>
void visit_tensors(ScatterArgs& a, Fn&& fn) {
  visit_each(fn, a.packed, a.dense);
}
template <class Matrix, class Fn>
void visit_tensors(SpmmOf<Matrix>& a, Fn&& fn) {
  visit_each(fn, a.weight.values, a.x, a.y, a.bias, a.activated);
}
template <class Matrix, class Fn>
void visit_tensors(SpmmTransposedOf<Matrix>& a, Fn&& fn) {
  visit_each(fn, a.weight.values, a.dy, a.dx, a.preactivation);
}
template <class Matrix, class Fn>
void visit_tensors(SddmmOf<Matrix>& a, Fn&& fn) {
  visit_each(fn, a.weight.values, a.dy, a.x);
}
template <class Fn>
void visit_tensors(QuantizeArgs& a, Fn&& fn) {
  visit_each(fn, a.x, a.codes, a.scales);
}
template <class Fn>
void visit_tensors(DequantizeArgs& a, Fn&& fn) {
  visit_each(fn, a.codes, a.scales, a.x);
}
template <class Fn>
void visit_tensors(EncodeArgs& a, Fn&& fn) {
  visit_each(fn, a.x);
}
template <class Fn>
void visit_tensors(DecodeArgs& a, Fn&& fn) {
  visit_each(fn, a.y);
}
template <class Fn>
void visit_tensors(AdamWArgs& a, Fn&& fn) {
  visit_each(fn, a.gradient, a.value, a.low, a.moment1, a.moment2, a.scale1, a.scale2, a.dense);
}
template <class Fn>
void visit_tensors(SgdArgs& a, Fn&& fn) {
  visit_each(fn, a.gradient, a.value, a.low, a.moment1, a.scale1, a.dense);
}
template <class Fn>
void visit_tensors(PredictArgs& a, Fn&& fn) {
  visit_each(fn, a.value, a.low, a.moment1, a.moment2, a.scale1, a.scale2, a.out, a.exact);
}

template <class Fn>
void visit_addresses(const Positions& p, Fn&& fn) {
  fn(p.list);
  fn(p.bitmap);
  fn(p.ranks);
}
template <class Fn>
void visit_addresses(const SparseMatrix& m, Fn&& fn) {
  visit_addresses(m.positions, fn);
}
template <class Fn>
void visit_addresses(const BlockMatrix& m, Fn&& fn) {
  fn(m.block_begin);
  fn(m.value_begin);
  fn(m.block_column);
}
template <class Args, class Fn>
void visit_addresses(const Args& args, Fn&& fn) {
  if constexpr (requires { args.positions; }) {
    visit_addresses(args.positions, fn);
  } else if constexpr (requires { args.weight.positions; }) {
    visit_addresses(args.weight, fn);
  } else if constexpr (requires { args.weight.block_begin; }) {
    visit_addresses(args.weight, fn);
  } else if constexpr (requires { args.wire; }) {
    fn(args.wire.data());
  }
}

}  // namespace espalier::kernels
