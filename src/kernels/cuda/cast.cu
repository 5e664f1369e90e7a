#include "src/kernels/cuda/elementwise.h"
#include "src/kernels/cuda/table.h"
#include "src/kernels/verify.h"

namespace espalier::kernels::ESPALIER_GPU {
namespace {

struct Convert {
  Elements x, y;
  bool accumulate;

  struct Loaded {
    Quad x, y;
  };
  __device__ Loaded load(int64_t i, int64_t count) const {
    return {load_quad(x, i, count), accumulate ? load_quad(y, i, count) : Quad{}};
  }
  __device__ void store(int64_t i, int64_t count, const Loaded& from) const {
    Quad sum = from.x;
    for (int k = 0; k < 4 && accumulate; ++k) {
      sum.x[k] += from.y.x[k];
    }
    store_quad(y, i, count, sum);
  }
};

}  // namespace

void cast(Stream& stream, const CastArgs& args) {
  verify(args);
  for_each_quad("cast", stream, Convert{elements(args.x), elements(args.y), args.accumulate},
                args.x.count());
}

}  // namespace espalier::kernels::ESPALIER_GPU
