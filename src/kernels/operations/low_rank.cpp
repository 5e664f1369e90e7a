#include "src/kernels/operations/low_rank.h"

#include "src/kernels/operations/cost.h"
#include "src/kernels/verify/rules.h"

namespace espalier::kernels {
namespace {

/// A matrix with contiguous rows.
void is_rows(const char* name, const Tensor& t, int64_t rows, int64_t cols) {
  is_matrix(name, t, rows, cols);
  is_flat(name, t, rows * cols);
}

}  // namespace

void verify(const OrthonormaliseArgs& args) {
  is_fp32("x", args.x);
  is_rows("x", args.x, args.x.rows(), args.x.cols());
}

/// Twice the projection of each row on those before it, and its length before and after.
DryCount cost(const OrthonormaliseArgs& args) {
  const auto rows = static_cast<double>(args.x.rows());
  return {4 * rows * elements(args.x), 2 * traffic(args.x)};
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

/// Cost for finite numbers: gradient and error are not accessed.
DryCount cost(const KeepFactorArgs& args) { return {0, traffic(args.p, args.q, args.factor)}; }

}  // namespace espalier::kernels
