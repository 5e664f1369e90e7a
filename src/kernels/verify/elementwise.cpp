#include "src/kernels/operations/elementwise.h"

#include "src/kernels/verify/cost.h"
#include "src/kernels/verify/rules.h"

namespace espalier::kernels {

void verify(const DropoutArgs& args) {
  is_elementwise(args.x, "y", args.y);
  require(args.probability >= 0 && args.probability < 1, "probability must be in [0, 1)",
          args.probability);
  require(args.offset >= 0, "offset must not be negative", args.offset);
}

DryCount cost(const DropoutArgs& args) { return {elements(args.x), traffic(args.x, args.y)}; }

void verify(const CastArgs& args) {
  is_any("x", args.x);
  is_beside("y", args.y, args.x);
  is_flat("x", args.x, args.x.count());
  is_flat("y", args.y, args.x.count());
}

DryCount cost(const CastArgs& args) {
  return {args.accumulate ? elements(args.x) : 0,
          traffic(args.x, args.y) + (args.accumulate ? traffic(args.y) : 0)};
}

void verify(const OrderedSumArgs& args) {
  const auto& [x, y, mine] = args;
  require(is_number(x.dtype), "x must be fp32, bf16 or fp16", name_of(x.dtype));
  require(y.dtype == x.dtype && y.count() == x.cols() && y.contiguous() && x.stride >= x.cols(),
          "y is like a row of x", y.shape.text(), x.shape.text());
  require(mine >= 0 && mine < x.rows(), "one of the rows is in y", mine, x.rows());
}

DryCount cost(const OrderedSumArgs& args) {
  return {elements(args.x) - elements(args.y), traffic(args.x, args.y)};
}

void verify(const DifferenceArgs& args) {
  for (const Tensor& one : {args.a, args.b, args.y}) {
    require(one.dtype == DType::fp32 && one.count() == args.y.count() && one.contiguous(),
            "fp32 numbers side by side", one.shape.text(), args.y.shape.text());
  }
  require(!args.factor || (args.factor.dtype == DType::fp32 && args.factor.count() == 1),
          "one fp32 factor", args.factor.shape.text());
}

DryCount cost(const DifferenceArgs& args) {
  return {elements(args.y), traffic(args.a, args.b, args.y)};
}

void verify(const FillArgs& args) {
  is_any("x", args.x);
  is_matrix("x", args.x, args.x.rows(), args.x.cols());
}

DryCount cost(const FillArgs& args) { return {0, traffic(args.x)}; }

}  // namespace espalier::kernels
