#include "src/kernels/operations/index.h"

#include "src/kernels/verify/cost.h"
#include "src/kernels/verify/rules.h"

namespace espalier::kernels {
namespace {

void is_kept(const Tensor& dense, const Tensor& packed, const Positions& positions) {
  is_positions(positions);
  is_any_vector("dense", dense, positions.size);
  is_any_vector("packed", packed, positions.count);
  is_beside("packed", packed, dense);
}

}  // namespace

void verify(const GatherArgs& args) { is_kept(args.dense, args.packed, args.positions); }

DryCount cost(const GatherArgs& args) {
  return {args.accumulate ? elements(args.packed) : 0,
          dense_traffic(args.dense, args.positions) + traffic(args.positions) +
              traffic(args.packed) * (args.accumulate ? 2 : 1)};
}

void verify(const ScatterArgs& args) { is_kept(args.dense, args.packed, args.positions); }

DryCount cost(const ScatterArgs& args) {
  return {0, traffic(args.dense, args.packed) + traffic(args.positions)};
}

void verify(const CsrArgs& args) {
  is_positions(args.positions);
  require(args.positions.size == args.rows * args.cols, "positions must cover the matrix",
          args.positions.size, args.rows, args.cols);
  const std::pair<const Tensor&, int64_t> arrays[] = {{args.row_begin, args.rows + 1},
                                                      {args.column, args.positions.count},
                                                      {args.column_begin, args.cols + 1},
                                                      {args.row, args.positions.count},
                                                      {args.order, args.positions.count}};
  for (const auto& [array, count] : arrays) {
    is_int32("a list of kept elements", array);
    is_flat("a list of kept elements", array, count);
  }
}

DryCount cost(const CsrArgs& args) {
  return {0, traffic(args.positions) +
                 traffic(args.row_begin, args.column, args.column_begin, args.row, args.order)};
}

}  // namespace espalier::kernels
