#include "src/kernels/cpu/math.h"
#include "src/kernels/cpu/table.h"

namespace espalier::kernels::ESPALIER_ISA {
namespace {

template <class T>
void fill_rows(Stream& stream, const FillArgs& args) {
  T* x = args.x.get<T>();
  const int64_t rows = args.x.rows();
  const int64_t cols = args.x.cols();
#pragma omp parallel for num_threads(stream.threads()) if (rows * cols > 32768)
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) {
      store(x + r * args.x.stride + c, args.value);
    }
  }
}

}  // namespace

void fill(Stream& stream, const FillArgs& args) {
  if (args.x.dtype == DType::fp32) {
    fill_rows<float>(stream, args);
  } else {
    fill_rows<bf16>(stream, args);
  }
}

}  // namespace espalier::kernels::ESPALIER_ISA
