// Sums of squares in double by blocks of kBlock elements, then over the blocks in order.
#include "src/kernels/cpu/loops.h"
#include "src/kernels/cpu/support.h"
#include "src/kernels/cpu/table.h"
#include "src/kernels/verify.h"

namespace espalier::kernels::ESPALIER_ISA {
namespace {

template <class T>
double block_sum(const T* x, int64_t n) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) {
    const double value = load(x + i);
    sum += value * value;
  }
  return sum;
}

}  // namespace

void sum_squares(Stream& stream, const SumSquaresArgs& args) {
  verify(args);
  const int64_t count = args.x.count();
  const int64_t blocks = divide_up(count, kBlock);
  auto* sums = reinterpret_cast<double*>(
      cpu::workspace(stream, static_cast<size_t>(most(1, blocks)) * sizeof(double)));
  with_type(args.x.dtype, [&](auto type) {
    const auto* x = elements<decltype(type)>(args.x);
    for_ranges(stream.threads(), count, kBlock,
               [&](int64_t first, int64_t n) { sums[first / kBlock] = block_sum(x + first, n); });
  });
  double total = 0;
  for (int64_t i = 0; i < blocks; ++i) {
    total += sums[i];
  }
  *args.result = total;
}

}  // namespace espalier::kernels::ESPALIER_ISA
