// Eigen: sparse (row-major) times dense (row-major: the loop over tokens is the vector loop).
#include <Eigen/SparseCore>

#include "benchmarks/peers/spmm_case.h"

namespace {

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

void eigen(benchmark::State& state) {
  const peers::SpmmCase c(state);
  const Eigen::SparseMatrix<float, Eigen::RowMajor> w =
      Eigen::Map<const Matrix>(c.w.data(), c.n, c.k).sparseView();
  const Matrix x = Eigen::Map<const Matrix>(c.x.data(), c.k, c.r);
  Matrix y(c.n, c.r);
  for (auto _ : state) {
    y.noalias() = w * x;
    benchmark::DoNotOptimize(y.data());
  }
  c.verify([&](int64_t row, int64_t token) { return y(row, token); });
  c.report(state);
}
BENCHMARK(eigen)->Apply(peers::spmm_shapes);

}  // namespace
