#include "src/kernels/cuda/elementwise/elementwise.h"
#include "src/kernels/cuda/table.h"

namespace espalier::kernels::ESPALIER_GPU {
namespace {

struct Convert {
  Elements x, y;
  bool accumulate;

  bool aligned() const { return has_whole_quads(x) && has_whole_quads(y); }
  struct Loaded {
    RawQuad x, y;
  };
  template <bool kWhole>
  __device__ __forceinline__ Loaded load(int64_t i, int64_t count) const {
    return {load_raw<kWhole>(x, i, count), accumulate ? load_raw<kWhole>(y, i, count) : RawQuad{}};
  }
  template <bool kWhole>
  __device__ __forceinline__ void store(int64_t i, int64_t count, const Loaded& from) const {
    Quad sum = quad_of(x.type, from.x);
    if (accumulate) {
      add(sum, quad_of(y.type, from.y));
    }
    store_quad<kWhole>(y, i, count, sum);
  }
};

}  // namespace

void cast(Stream& stream, const CastArgs& args) {
  for_each_quad("cast", stream, Convert{elements(args.x), elements(args.y), args.accumulate},
                args.x.count());
}

}  // namespace espalier::kernels::ESPALIER_GPU
