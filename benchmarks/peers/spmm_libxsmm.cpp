// libxsmm's SPMDM: sparse slices of 128 x 128. Slicing is not timed, since weights are sliced once.
#include <libxsmm.h>

#include "benchmarks/peers/spmm_case.h"

namespace {

void libxsmm(benchmark::State& state) {
  const peers::SpmmCase c(state);
  libxsmm_spmdm_handle handle;
  libxsmm_CSR_sparseslice* slices = nullptr;
  libxsmm_spmdm_init(static_cast<int>(c.n), static_cast<int>(c.r), static_cast<int>(c.k), 1,
                     &handle, &slices);
  for (int i = 0; i < libxsmm_spmdm_get_num_createSparseSlice_blocks(&handle); ++i) {
    libxsmm_spmdm_createSparseSlice_fp32_thread(&handle, 'N', c.w.data(), slices, i, 0, 1);
  }
  std::vector<float> y(static_cast<size_t>(c.n * c.r));
  const float one = 1;
  const float zero = 0;
  const int blocks = libxsmm_spmdm_get_num_compute_blocks(&handle);
  for (auto _ : state) {
    for (int i = 0; i < blocks; ++i) {
      libxsmm_spmdm_compute_fp32_thread(&handle, 'N', 'N', &one, slices, c.x.data(), 'N', &zero,
                                        y.data(), i, 0, 1);
    }
    benchmark::DoNotOptimize(y.data());
  }
  c.verify([&](int64_t row, int64_t token) { return y[static_cast<size_t>(row * c.r + token)]; });
  libxsmm_spmdm_destroy(&handle);
  c.report(state);
}
BENCHMARK(libxsmm)->Apply(peers::spmm_shapes);

}  // namespace
