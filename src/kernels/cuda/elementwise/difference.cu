#include "src/kernels/cuda/elementwise/elementwise.h"
#include "src/kernels/cuda/table.h"

namespace espalier::kernels::ESPALIER_GPU {
namespace {

struct Difference {
  const float* a;
  const float* b;
  float* y;
  const float* factor;
  bool finite;

  bool aligned() const { return has_whole_quads(a) && has_whole_quads(b) && has_whole_quads(y); }
  struct Loaded {
    Quad a, b;
    float factor;
  };
  template <bool kWhole>
  __device__ __forceinline__ Loaded load(int64_t i, int64_t count) const {
    return {load_quad<kWhole>(a, i, count), load_quad<kWhole>(b, i, count),
            factor != nullptr ? *factor : 1.0F};
  }
  template <bool kWhole>
  __device__ __forceinline__ void store(int64_t i, int64_t count, const Loaded& from) const {
    Quad d;
    const bool applies = from.factor - from.factor == 0;
    for (int k = 0; k < 4; ++k) {
      d.x[k] = from.a.x[k] - from.b.x[k];
      d.x[k] = applies && (!finite || d.x[k] - d.x[k] == 0) ? d.x[k] : 0.0F;
    }
    store_quad<kWhole>(y, i, count, d);
  }
};

}  // namespace

void difference(Stream& stream, const DifferenceArgs& args) {
  for_each_quad("difference", stream,
                Difference{static_cast<const float*>(args.a.data),
                           static_cast<const float*>(args.b.data), static_cast<float*>(args.y.data),
                           static_cast<const float*>(args.factor.data), args.finite},
                args.y.count());
}

}  // namespace espalier::kernels::ESPALIER_GPU
