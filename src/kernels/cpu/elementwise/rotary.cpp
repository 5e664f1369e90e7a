// Rotary position embedding, row by row: the heads of a row share its cosines and sines.
#include "src/kernels/cpu/simd/loops.h"
#include "src/kernels/cpu/support.h"
#include "src/kernels/cpu/table.h"

namespace espalier::kernels::ESPALIER_ISA {
namespace {

template <class T>
void rotate_row(const RotaryArgs& args, int64_t row, int64_t position) {
  const int64_t half = args.width / 2;
  const int64_t width = args.x.cols() / args.heads;
  const float* cosine = row_of<float>(args.cosines, position);
  const float* sine = row_of<float>(args.sines, position);
  const float sign = args.inverse ? -1.0F : 1.0F;
  for (int64_t head = 0; head < args.heads; ++head) {
    T* low = row_of<T>(args.x, row) + head * width;
    T* high = low + half;
#pragma omp simd
    for (int64_t i = 0; i < half; ++i) {
      const float a = load(low + i);
      const float b = load(high + i);
      const float s = sign * sine[i];
      store(low + i, a * cosine[i] - b * s);
      store(high + i, b * cosine[i] + a * s);
    }
  }
}

}  // namespace

void rotary(Stream& stream, const RotaryArgs& args) {
  const int64_t tokens = args.x.shape[args.x.shape.rank() - 2];
  const auto* positions = elements<int32_t>(args.positions);
  if (positions != nullptr) {
    cpu::require_ids_below("positions", args.positions, args.cosines.rows());
  }
  with_type(args.x.dtype, [&](auto type) {
    for_rows(stream.threads(), args.x.rows(), args.x.cols(), [&](int64_t row) {
      rotate_row<decltype(type)>(args, row, positions == nullptr ? row % tokens : positions[row]);
    });
  });
}

}  // namespace espalier::kernels::ESPALIER_ISA
