#include "src/kernels/cuda/elementwise/elementwise.h"
#include "src/kernels/cuda/table.h"

namespace espalier::kernels::ESPALIER_GPU {
namespace {

struct OrderedSum {
  Elements x, y;
  int64_t rows, stride, mine;

  bool aligned() const { return has_whole_quads(x, stride) && has_whole_quads(y); }
  using Loaded = Quad;
  template <bool kWhole>
  __device__ __forceinline__ Quad row(int64_t r, int64_t i, int64_t count) const {
    return r == mine ? load_quad<kWhole>(y, i, count) : load_quad<kWhole>(x, r * stride + i, count);
  }
  template <bool kWhole>
  __device__ __forceinline__ Quad load(int64_t i, int64_t count) const {
    Quad sum = row<kWhole>(0, i, count);
#pragma unroll 4
    for (int64_t r = 1; r < rows; ++r) {
      const Quad next = row<kWhole>(r, i, count);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        sum.x[k] += next.x[k];
      }
    }
    return sum;
  }
  template <bool kWhole>
  __device__ __forceinline__ void store(int64_t i, int64_t count, const Quad& sum) const {
    store_quad<kWhole>(y, i, count, sum);
  }
};

}  // namespace

void ordered_sum(Stream& stream, const OrderedSumArgs& args) {
  for_each_quad(
      "ordered_sum", stream,
      OrderedSum{elements(args.x), elements(args.y), args.x.rows(), args.x.stride, args.mine},
      args.y.count());
}

}  // namespace espalier::kernels::ESPALIER_GPU
