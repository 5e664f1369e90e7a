#include "src/core/exact_sum.h"
#include "src/kernels/verify/rules.h"

namespace espalier::kernels {
namespace {

/// fp32, or uint8 codes with a scale for each block.
void is_moment(const char* name, const Tensor& moment, const Tensor& scale, int64_t n) {
  if (moment.dtype == DType::uint8) {
    is_fp32_vector("scale", scale, (n + kQuantizeBlock - 1) / kQuantizeBlock);
  } else {
    is_fp32(name, moment);
    require(!scale, "fp32 moments have no scale", name);
  }
  is_flat(name, moment, n);
}

/// `value` and, where that is rounded and there is more, what rounding took away.
template <class Args>
void is_master(const Args& args) {
  const int64_t count = args.value.count();
  is_any_vector("value", args.value, count);
  if (args.low) {
    require(args.value.dtype != DType::fp32, "fp32 values are the master copy: there is no low");
    require(args.low.dtype == DType::uint16, "low must be uint16", name_of(args.low.dtype));
    is_flat("low", args.low, count);
  }
}

void is_exact_sum(const char* name, const Tensor& counts) {
  require(
      counts.data != nullptr && counts.dtype == DType::uint64 && counts.count() == ExactSum::kWords,
      "tensor must hold the digits of an exact sum", name, name_of(counts.dtype), counts.count());
}

/// A matrix whose rows lie side by side.
void is_rows(const char* name, const Tensor& t, int64_t rows, int64_t cols) {
  is_matrix(name, t, rows, cols);
  is_flat(name, t, rows * cols);
}

/// The part that AdamW and SGD share.
template <class Args>
void is_update(const Args& args) {
  const int64_t count = args.value.count();
  is_positions(args.positions);
  is_any_vector("gradient", args.gradient, count);
  is_beside("value", args.value, args.gradient);
  is_master(args);
  require(args.rounding.first >= 0, "elements are counted from zero", args.rounding.first);
  is_moment("moment1", args.moment1, args.scale1, count);
  if (args.factor) {
    is_fp32_vector("factor", args.factor, 1);
  }
  if (args.dense) {
    require(args.positions.count == count, "positions must cover the values", args.positions.count,
            count);
    is_any_vector("dense", args.dense, args.positions.size);
    is_beside("dense", args.dense, args.value);
    is_beside("dense", args.dense, args.gradient);
    require(args.dense.data != args.value.data, "dense must not be the values themselves");
  }
}

}  // namespace

void verify(const GemmArgs& args) {
  const Tensor& a = args.a;
  const Tensor& b = args.b;
  const Tensor& c = args.c;
  const int64_t m = args.transpose_a ? a.cols() : a.rows();
  const int64_t k = args.transpose_a ? a.rows() : a.cols();
  const int64_t n = args.transpose_b ? b.rows() : b.cols();
  is_any("a", a);
  is_any("c", c);
  require(a.dtype == b.dtype, "a and b must have one type", name_of(a.dtype), name_of(b.dtype));
  require(c.dtype == a.dtype || c.dtype == DType::fp32, "c must be fp32 or of the inputs' type",
          name_of(c.dtype));
  require((args.transpose_b ? b.cols() : b.rows()) == k, "inner extents must match", a.shape.text(),
          b.shape.text());
  is_matrix("c", c, m, n);
  if (args.addend) {
    is_matrix("addend", args.addend, m, n);
    require(args.addend.dtype == c.dtype && args.addend.stride == c.stride,
            "an addend lies as c does", name_of(args.addend.dtype), args.addend.stride);
    require(!args.accumulate, "c is added to, or an addend");
  }
  require((args.round_a == Float8::none) == (args.round_b == Float8::none),
          "both operands are rounded to 8 bits, or none");
  require(args.round_a == Float8::none || a.dtype != DType::fp16,
          "operands of fp16 are multiplied as they are", name_of(a.dtype));
  if (args.bias) {
    is_fp32_vector("bias", args.bias, n);
  }
  if (args.activated) {
    verify(ActivationArgs{.kind = args.activation, .x = c, .y = args.activated});
  }
  if (args.preactivation) {
    verify(
        ActivationBackwardArgs{.kind = args.activation, .dy = c, .x = args.preactivation, .dx = c});
    require(!args.accumulate && !args.addend && !args.bias && !args.activated && !args.row_sums,
            "the slope multiplies the product alone");
  }
  if (args.row_sums) {
    require(args.transpose_a, "row sums are those of a transposed a");
    is_any_vector("row_sums", args.row_sums, m);
  }
}

void verify(const ColumnSumArgs& args) {
  is_any("x", args.x);
  is_matrix("x", args.x, args.x.rows(), args.x.cols());
  is_any_vector("out", args.out, args.x.cols());
  is_beside("out", args.out, args.x);
}

void verify(const LayerNormArgs& args) {
  const int64_t rows = args.x.rows();
  const int64_t cols = args.x.cols();
  is_fp32("x", args.x);
  is_any("y", args.y);
  is_beside("weight", args.weight, args.y);
  is_matrix("x", args.x, rows, cols);
  is_matrix("y", args.y, rows, cols);
  is_flat("weight", args.weight, cols);
  is_flat("bias", args.bias, cols);
  require(args.bias.dtype == args.weight.dtype, "bias must have the type of weight",
          name_of(args.bias.dtype), name_of(args.weight.dtype));
  is_fp32_vector("mean", args.mean, rows);
  is_fp32_vector("rstd", args.rstd, rows);
}

void verify(const LayerNormBackwardArgs& args) {
  const int64_t rows = args.x.rows();
  const int64_t cols = args.x.cols();
  is_any("dy", args.dy);
  is_beside("weight", args.weight, args.dy);
  is_fp32("x", args.x);
  is_fp32("dx", args.dx);
  is_matrix("dy", args.dy, rows, cols);
  is_matrix("x", args.x, rows, cols);
  if (args.rounded) {
    is_matrix("rounded", args.rounded, rows, cols);
    require(args.rounded.dtype == args.dy.dtype, "dx is rounded to the type of dy",
            name_of(args.rounded.dtype), name_of(args.dy.dtype));
  }
  is_matrix("dx", args.dx, rows, cols);
  is_flat("weight", args.weight, cols);
  is_fp32_vector("mean", args.mean, rows);
  is_fp32_vector("rstd", args.rstd, rows);
  is_any_vector("dweight", args.dweight, cols);
  is_any_vector("dbias", args.dbias, cols);
}

void verify(const ActivationArgs& args) {
  is_any("x", args.x);
  require(args.x.dtype == args.y.dtype, "x and y must have one type", name_of(args.x.dtype),
          name_of(args.y.dtype));
  is_flat("x", args.x, args.x.count());
  is_flat("y", args.y, args.x.count());
}

void verify(const ActivationBackwardArgs& args) {
  is_any("x", args.x);
  require(args.x.dtype == args.dy.dtype && args.x.dtype == args.dx.dtype,
          "dy, x and dx must have one type", name_of(args.dy.dtype), name_of(args.x.dtype),
          name_of(args.dx.dtype));
  is_flat("dy", args.dy, args.x.count());
  is_flat("x", args.x, args.x.count());
  is_flat("dx", args.dx, args.x.count());
}

void verify(const AttentionArgs& args) {
  const Shape& shape = args.qkv.shape;
  require(shape.rank() == 3 && args.heads > 0 && shape[2] % (3 * args.heads) == 0,
          "qkv must be [B, T, 3 C] with heads dividing C", shape.text(), args.heads);
  is_any("qkv", args.qkv);
  require(args.out.dtype == args.qkv.dtype, "out must have the type of qkv",
          name_of(args.out.dtype), name_of(args.qkv.dtype));
  is_flat("qkv", args.qkv, args.qkv.count());
  is_flat("out", args.out, args.qkv.count() / 3);
  is_fp32_vector("lse", args.lse, shape[0] * args.heads * shape[1]);
}

void verify(const AttentionBackwardArgs& args) {
  verify(AttentionArgs{.qkv = args.qkv, .out = args.out, .lse = args.lse, .heads = args.heads});
  require(args.dout.dtype == args.qkv.dtype && args.dqkv.dtype == args.qkv.dtype,
          "gradients must have the type of qkv", name_of(args.dout.dtype),
          name_of(args.dqkv.dtype));
  is_flat("dout", args.dout, args.out.count());
  is_flat("dqkv", args.dqkv, args.qkv.count());
}

void verify(const EmbeddingArgs& args) {
  const int64_t cols = args.x.cols();
  require(args.x.shape.rank() == 3, "x must be [B, T, C]", args.x.shape.text());
  is_int32("tokens", args.tokens);
  is_any("token", args.token);
  is_fp32("x", args.x);
  require(args.position.dtype == args.token.dtype, "token and position must have one type",
          name_of(args.token.dtype), name_of(args.position.dtype));
  is_flat("tokens", args.tokens, args.x.rows());
  is_flat("x", args.x, args.x.count());
  is_matrix("token", args.token, args.token.rows(), cols);
  is_matrix("position", args.position, args.position.rows(), cols);
  require(args.position.rows() >= args.x.shape[1], "positions must cover the context",
          args.position.rows(), args.x.shape[1]);
}

void verify(const EmbeddingBackwardArgs& args) {
  const int64_t cols = args.dx.cols();
  require(args.dx.shape.rank() == 3, "dx must be [B, T, C]", args.dx.shape.text());
  is_int32("tokens", args.tokens);
  is_fp32("dx", args.dx);
  is_any("dtoken", args.dtoken);
  is_any("dposition", args.dposition);
  is_flat("tokens", args.tokens, args.dx.rows());
  is_flat("dx", args.dx, args.dx.count());
  is_matrix("dtoken", args.dtoken, args.dtoken.rows(), cols);
  is_matrix("dposition", args.dposition, args.dposition.rows(), cols);
  require(args.dposition.rows() >= args.dx.shape[1], "positions must cover the context",
          args.dposition.rows(), args.dx.shape[1]);
}

void verify(const CrossEntropyArgs& args) {
  const int64_t rows = args.logits.rows();
  const int64_t cols = args.logits.cols();
  is_any("logits", args.logits);
  is_matrix("logits", args.logits, rows, cols);
  is_int32("targets", args.targets);
  is_flat("targets", args.targets, rows);
  is_fp32_vector("losses", args.losses, rows);
  if (args.dlogits) {
    is_beside("dlogits", args.dlogits, args.logits);
    is_matrix("dlogits", args.dlogits, rows, cols);
    require(args.dlogits.data != args.logits.data || (args.dlogits.dtype == args.logits.dtype &&
                                                      args.dlogits.stride == args.logits.stride),
            "in place, dlogits must have the type and stride of logits");
  }
}

void verify(const DropoutArgs& args) {
  is_any("x", args.x);
  require(args.x.dtype == args.y.dtype, "x and y must have one type", name_of(args.x.dtype),
          name_of(args.y.dtype));
  is_flat("x", args.x, args.x.count());
  is_flat("y", args.y, args.x.count());
  require(args.probability >= 0 && args.probability < 1, "probability must be in [0, 1)",
          args.probability);
  require(args.offset >= 0, "offset must not be negative", args.offset);
}

void verify(const CastArgs& args) {
  is_any("x", args.x);
  is_beside("y", args.y, args.x);
  is_flat("x", args.x, args.x.count());
  is_flat("y", args.y, args.x.count());
}

void verify(const FillArgs& args) {
  is_any("x", args.x);
  is_matrix("x", args.x, args.x.rows(), args.x.cols());
}

void verify(const SumSquaresArgs& args) {
  is_any_vector("x", args.x, args.x.count());
  is_exact_sum("counts", args.counts);
}

void verify(const ClipArgs& args) {
  is_exact_sum("counts", args.counts);
  require(args.scale > 0, "gradients have a scale", args.scale);
  is_fp32_vector("norm", args.norm, 1);
  is_fp32_vector("factor", args.factor, 1);
}

void verify(const GatherArgs& args) {
  is_positions(args.positions);
  is_any_vector("dense", args.dense, args.positions.size);
  is_any_vector("packed", args.packed, args.positions.count);
  is_beside("packed", args.packed, args.dense);
}

void verify(const ScatterArgs& args) {
  is_positions(args.positions);
  is_any_vector("dense", args.dense, args.positions.size);
  is_any_vector("packed", args.packed, args.positions.count);
  is_beside("packed", args.packed, args.dense);
}

void verify(const QuantizeArgs& args) {
  is_fp32_vector("x", args.x, args.x.count());
  require(args.codes.dtype == DType::uint8, "codes must be uint8", name_of(args.codes.dtype));
  is_moment("codes", args.codes, args.scales, args.x.count());
}

void verify(const DequantizeArgs& args) {
  verify(QuantizeArgs{.x = args.x, .codes = args.codes, .scales = args.scales, .map = args.map});
}

void verify(const AdamWArgs& args) {
  is_update(args);
  is_moment("moment2", args.moment2, args.scale2, args.value.count());
}

void verify(const SgdArgs& args) { is_update(args); }

void verify(const PredictArgs& args) {
  const int64_t count = args.value.count();
  is_master(args);
  is_moment("moment1", args.moment1, args.scale1, count);
  if (args.moment2) {
    is_moment("moment2", args.moment2, args.scale2, count);
  }
  require(args.out || args.exact, "somewhere for the result");
  if (args.out) {
    is_any_vector("out", args.out, count);
    require(args.out.dtype == args.value.dtype, "out must have the type of the values");
  }
  if (args.exact) {
    is_fp32_vector("exact", args.exact, count);
  }
}

void verify(const OrthonormaliseArgs& args) {
  is_fp32("x", args.x);
  is_rows("x", args.x, args.x.rows(), args.x.cols());
}

void verify(const KeepFactorArgs& args) {
  const int64_t rank = args.factor.rows();
  const int64_t rows = args.p.cols();
  const int64_t cols = args.factor.cols();
  is_fp32("p", args.p);
  is_rows("p", args.p, rank, rows);
  is_fp32("q", args.q);
  is_rows("q", args.q, rank, cols);
  is_fp32("factor", args.factor);
  is_rows("factor", args.factor, rank, cols);
  is_fp32_vector("error", args.error, rows * cols);
  is_any_vector("gradient", args.gradient, rows * cols);
}

}  // namespace espalier::kernels
