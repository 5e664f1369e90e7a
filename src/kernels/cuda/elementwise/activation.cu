#include "src/kernels/cuda/elementwise/activation.h"

#include "src/kernels/cuda/elementwise/elementwise.h"
#include "src/kernels/cuda/table.h"

namespace espalier::kernels::ESPALIER_GPU {
namespace {

struct Apply : OneToOne {
  Activation kind;

  template <bool kWhole>
  __device__ __forceinline__ void store(int64_t i, int64_t count, const RawQuad& raw) const {
    Quad q = quad_of(x.type, raw);
    for (float& value : q.x) {
      value = activate(kind, value);
    }
    store_quad<kWhole>(y, i, count, q);
  }
};

struct ApplySlope {
  Activation kind;
  Elements dy, x, dx;

  bool aligned() const { return has_whole_quads(dy) && has_whole_quads(x) && has_whole_quads(dx); }
  struct Loaded {
    RawQuad dy, x;
  };
  template <bool kWhole>
  __device__ __forceinline__ Loaded load(int64_t i, int64_t count) const {
    return {load_raw<kWhole>(dy, i, count), load_raw<kWhole>(x, i, count)};
  }
  template <bool kWhole>
  __device__ __forceinline__ void store(int64_t i, int64_t count, const Loaded& from) const {
    Quad q = quad_of(dy.type, from.dy);
    const Quad at = quad_of(x.type, from.x);
    for (int k = 0; k < 4; ++k) {
      q.x[k] *= activation_slope(kind, at.x[k]);
    }
    store_quad<kWhole>(dx, i, count, q);
  }
};

}  // namespace

void activation(Stream& stream, const ActivationArgs& args) {
  for_each_quad("activation", stream, Apply{{elements(args.x), elements(args.y)}, args.kind},
                args.x.count());
}

void activation_backward(Stream& stream, const ActivationBackwardArgs& args) {
  const ApplySlope slope{args.kind, elements(args.dy), elements(args.x), elements(args.dx)};
  for_each_quad("activation_backward", stream, slope, args.x.count());
}

}  // namespace espalier::kernels::ESPALIER_GPU
