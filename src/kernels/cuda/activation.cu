#include "src/kernels/cuda/activation.h"

#include "src/kernels/cuda/elementwise.h"
#include "src/kernels/cuda/table.h"
#include "src/kernels/verify.h"

namespace espalier::kernels::ESPALIER_GPU {
namespace {

struct Apply {
  Activation kind;
  Elements x, y;

  using Loaded = Quad;
  __device__ Quad load(int64_t i, int64_t count) const { return load_quad(x, i, count); }
  __device__ void store(int64_t i, int64_t count, Quad q) const {
    for (float& value : q.x) {
      value = activate(kind, value);
    }
    store_quad(y, i, count, q);
  }
};

struct ApplySlope {
  Activation kind;
  Elements dy, x, dx;

  struct Loaded {
    Quad dy, x;
  };
  __device__ Loaded load(int64_t i, int64_t count) const {
    return {load_quad(dy, i, count), load_quad(x, i, count)};
  }
  __device__ void store(int64_t i, int64_t count, const Loaded& from) const {
    Quad q;
    for (int k = 0; k < 4; ++k) {
      q.x[k] = from.dy.x[k] * activation_slope(kind, from.x.x[k]);
    }
    store_quad(dx, i, count, q);
  }
};

}  // namespace

void activation(Stream& stream, const ActivationArgs& args) {
  verify(args);
  for_each_quad("activation", stream, Apply{args.kind, elements(args.x), elements(args.y)},
                args.x.count());
}

void activation_backward(Stream& stream, const ActivationBackwardArgs& args) {
  verify(args);
  const ApplySlope slope{args.kind, elements(args.dy), elements(args.x), elements(args.dx)};
  for_each_quad("activation_backward", stream, slope, args.x.count());
}

}  // namespace espalier::kernels::ESPALIER_GPU
