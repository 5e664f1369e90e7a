#include "src/kernels/operations/generation.h"

#include "src/kernels/verify/cost.h"
#include "src/kernels/verify/rules.h"

namespace espalier::kernels {
namespace {

template <class Args>
void is_few_rows(const Args& args, const Tensor& values, int64_t rows, int64_t cols) {
  is_any("x", args.x);
  is_same_type("weight", values, args.x);
  is_matrix("x", args.x, args.x.rows(), cols);
  require(args.y.dtype == args.x.dtype || args.y.dtype == DType::fp32,
          "the result must be fp32 or of the inputs' type", name_of(args.y.dtype));
  is_matrix("y", args.y, args.x.rows(), rows);
  if (args.bias) {
    is_fp32_vector("bias", args.bias, rows);
  }
  if (args.activated) {
    is_same_type("activated", args.activated, args.x);
    is_matrix("activated", args.activated, args.x.rows(), rows);
  }
}

template <class Args>
DryCount few_rows_cost(const Args& args, const Tensor& values, double index) {
  return {2 * static_cast<double>(args.x.rows()) * elements(values) +
              flops_of(args.activation) * elements(args.activated),
          traffic(values, args.x, args.y, args.bias, args.activated) + index +
              (args.accumulate ? traffic(args.y) : 0)};
}

/// [B, K, capacity, D], keys and values alike.
void is_cache(const Tensor& keys, const Tensor& values, const Tensor& beside, int64_t sequences) {
  require(keys.shape.rank() == 4 && values.shape == keys.shape && keys.shape[0] == sequences,
          "keys and values must be [B, K, capacity, D]", keys.shape.text(), values.shape.text(),
          sequences);
  is_same_type("keys", keys, beside);
  is_same_type("values", values, beside);
  is_flat("keys", keys, keys.count());
  is_flat("values", values, keys.count());
}

void is_int32_vector(const char* name, const Tensor& t, int64_t n) {
  is_int32(name, t);
  is_flat(name, t, n);
}

}  // namespace

void verify(const FewRowsArgs& args) {
  is_matrix("weight", args.weight, args.weight.rows(), args.weight.cols());
  is_few_rows(args, args.weight, args.weight.rows(), args.weight.cols());
}

DryCount cost(const FewRowsArgs& args) { return few_rows_cost(args, args.weight, 0); }

void verify(const SparseFewRowsArgs& args) {
  const SparseMatrix& weight = args.weight;
  if (weight.forms == nullptr || !weight.positions.all()) {
    is_positions(weight.positions);
  }
  require(
      weight.rows >= 0 && weight.cols >= 0 && weight.positions.size == weight.rows * weight.cols,
      "positions must cover the matrix", weight.positions.size, weight.rows, weight.cols);
  is_any_vector("values", weight.values, weight.positions.count);
  is_few_rows(args, weight.values, weight.rows, weight.cols);
}

/// The form `rows` has two bytes for each kept element.
DryCount cost(const SparseFewRowsArgs& args) {
  return few_rows_cost(args, args.weight.values, 2 * elements(args.weight.values));
}

void verify(const CacheTokensArgs& args) {
  const Shape& shape = args.qkv.shape;
  require(shape.rank() == 3, "qkv must be [B, T, (H + 2 K) D]", shape.text());
  is_any("qkv", args.qkv);
  is_matrix("qkv", args.qkv, args.qkv.rows(), args.qkv.cols());
  is_cache(args.keys, args.values, args.qkv, shape[0]);
  const int64_t width = args.keys.shape[1] * args.keys.shape[3];
  require(shape[2] > 2 * width && (shape[2] - 2 * width) % width == 0,
          "qkv must hold queries for each head of the cache", shape.text(), args.keys.shape.text());
  is_int32_vector("first", args.first, shape[0]);
  is_int32_vector("counts", args.counts, shape[0]);
}

DryCount cost(const CacheTokensArgs& args) {
  const double width = static_cast<double>(args.keys.shape[1] * args.keys.shape[3]);
  return {0, 4 * width * static_cast<double>(args.qkv.rows()) *
                 static_cast<double>(size_of(args.qkv.dtype))};
}

void verify(const CachedAttentionArgs& args) {
  const int64_t sequences = args.q.rows();
  is_any("q", args.q);
  is_matrix("q", args.q, sequences, args.q.cols());
  is_cache(args.keys, args.values, args.q, sequences);
  const int64_t width = args.keys.shape[1] * args.keys.shape[3];
  require(width > 0 && args.q.cols() % width == 0,
          "the heads of the cache must divide those of the queries", args.q.shape.text(),
          args.keys.shape.text());
  is_int32_vector("lengths", args.lengths, sequences);
  is_same_type("out", args.out, args.q);
  is_matrix("out", args.out, sequences, args.q.cols());
}

/// As if the cache were full.
DryCount cost(const CachedAttentionArgs& args) {
  const auto group = static_cast<double>(args.q.cols() / (args.keys.shape[1] * args.keys.shape[3]));
  const double scores = elements(args.keys) / static_cast<double>(args.keys.shape[3]) * group;
  return {4 * elements(args.keys) * group + kExp * scores,
          traffic(args.q, args.keys, args.values, args.out)};
}

}  // namespace espalier::kernels
