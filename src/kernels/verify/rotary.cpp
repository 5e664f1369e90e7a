#include "src/kernels/operations/rotary.h"

#include "src/kernels/verify/cost.h"
#include "src/kernels/verify/rules.h"

namespace espalier::kernels {

void verify(const RotaryArgs& args) {
  const Shape& shape = args.x.shape;
  is_any("x", args.x);
  require(shape.rank() >= 2 && args.heads > 0 && args.x.cols() % args.heads == 0,
          "x must be [B, T, heads D]", shape.text(), args.heads);
  require(args.width >= 0 && args.width % 2 == 0 && args.width <= args.x.cols() / args.heads,
          "the rotated width must be even, and at most the width of a head", args.width,
          args.x.cols() / args.heads);
  is_matrix("x", args.x, args.x.rows(), args.x.cols());
  const int64_t positions = args.cosines.rows();
  is_fp32("cosines", args.cosines);
  is_fp32("sines", args.sines);
  is_matrix("cosines", args.cosines, positions, args.width / 2);
  is_matrix("sines", args.sines, positions, args.width / 2);
  if (args.positions) {
    is_int32("positions", args.positions);
    is_flat("positions", args.positions, args.x.rows());
  } else {
    require(shape[shape.rank() - 2] <= positions, "the tables must have a row for each position",
            shape.text(), positions);
  }
}

DryCount cost(const RotaryArgs& args) {
  const double rotated = static_cast<double>(args.x.rows() * args.heads * args.width);
  return {3 * rotated, 2 * rotated * static_cast<double>(size_of(args.x.dtype)) +
                           traffic(args.cosines, args.sines, args.positions)};
}

}  // namespace espalier::kernels
