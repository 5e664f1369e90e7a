#pragma once
// Positions of kept elements, in the form that kernels read.
#include "src/kernels/cuda/simt/elements.h"

namespace espalier::kernels::ESPALIER_GPU {

struct Places {
  int32_t at[4];
};

/// Returns list[i … i + count - 1], count <= 4; the rest is zero.
template <bool kWhole = false>
__device__ __forceinline__ Places load_places(const int32_t* list, int64_t i, int64_t count) {
  if constexpr (!kWhole) {
    if (count < 4 || !aligned(list + i, 16)) {
      Places made{};
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        made.at[k] = k < count ? list[i + k] : 0;
      }
      return made;
    }
  }
  const int4 v = *reinterpret_cast<const int4*>(list + i);
  return {{v.x, v.y, v.z, v.w}};
}

/// list[k] = position k of a bitmap, counted from 0.
void list_bitmap(Stream& stream, const Positions& positions, int32_t* list);

/// dense[position k] = packed[k] for a bitmap; other elements keep their values.
void write_kept(Stream& stream, const Tensor& packed, const Tensor& dense,
                const Positions& positions);

}  // namespace espalier::kernels::ESPALIER_GPU
