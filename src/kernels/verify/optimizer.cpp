#include "src/kernels/operations/optimizer.h"

#include "src/core/exact_sum.h"
#include "src/kernels/rules/update.h"
#include "src/kernels/verify/cost.h"
#include "src/kernels/verify/rules.h"

namespace espalier::kernels {
namespace {

/// A moment is fp32, or uint8 codes with one scale for each block.
void is_moment(const char* name, const Tensor& moment, const Tensor& scale, int64_t n) {
  if (moment.dtype == DType::uint8) {
    is_fp32_vector("scale", scale, (n + kQuantizeBlock - 1) / kQuantizeBlock);
  } else {
    is_fp32(name, moment);
    require(!scale, "fp32 moments have no scale", name);
  }
  is_flat(name, moment, n);
}

/// The master copy: `value`, and `low` if it is present.
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

}  // namespace

void verify(const SumSquaresArgs& args) {
  is_any_vector("x", args.x, args.x.count());
  is_exact_sum("counts", args.counts);
}

DryCount cost(const SumSquaresArgs& args) { return {2 * elements(args.x), traffic(args.x)}; }

void verify(const ClipArgs& args) {
  is_exact_sum("counts", args.counts);
  require(args.scale > 0, "gradients have a scale", args.scale);
  is_fp32_vector("norm", args.norm, 1);
  is_fp32_vector("factor", args.factor, 1);
}

DryCount cost(const ClipArgs& args) {
  return {2 * elements(args.counts), traffic(args.counts, args.norm, args.factor)};
}

void verify(const QuantizeArgs& args) {
  is_fp32_vector("x", args.x, args.x.count());
  require(args.codes.dtype == DType::uint8, "codes must be uint8", name_of(args.codes.dtype));
  is_moment("codes", args.codes, args.scales, args.x.count());
}

DryCount cost(const QuantizeArgs& args) {
  return {10 * elements(args.x), traffic(args.x, args.codes, args.scales)};
}

void verify(const DequantizeArgs& args) {
  verify(QuantizeArgs{.x = args.x, .codes = args.codes, .scales = args.scales, .map = args.map});
}

DryCount cost(const DequantizeArgs& args) {
  return {elements(args.x), traffic(args.x, args.codes, args.scales)};
}

void verify(const UpdateArgs& args) {
  const int64_t count = args.value.count();
  is_positions(args.positions);
  is_any_vector("gradient", args.gradient, count);
  is_beside("value", args.value, args.gradient);
  is_master(args);
  require(args.rounding.first >= 0, "elements are counted from zero", args.rounding.first);
  is_moment("moment1", args.moment1, args.scale1, count);
  if (has_second_moment(args.rule)) {
    is_moment("moment2", args.moment2, args.scale2, count);
  } else {
    require(!args.moment2 && !args.scale2, "the rule has one moment");
  }
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

DryCount cost(const UpdateArgs& args) {
  const double copy =
      args.dense ? dense_traffic(args.dense, args.positions) + traffic(args.positions) : 0;
  return {flops_of(args.rule) * elements(args.value),
          traffic(args.gradient) + 2 * traffic(args.value, args.low, args.moment1, args.scale1) +
              2 * traffic(args.moment2, args.scale2) + copy};
}

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

DryCount cost(const PredictArgs& args) {
  return {6 * elements(args.value) * static_cast<double>(args.term_count),
          traffic(args.value, args.low, args.moment1, args.scale1) +
              traffic(args.moment2, args.scale2) + traffic(args.out, args.exact)};
}

}  // namespace espalier::kernels
