#include "src/kernels/cuda/elementwise/elementwise.h"
#include "src/kernels/cuda/table.h"

namespace espalier::kernels::ESPALIER_GPU {
namespace {

struct Set {
  Elements x;
  float value;

  bool aligned() const { return has_whole_quads(x); }
  struct Loaded {};
  template <bool kWhole>
  __device__ __forceinline__ Loaded load(int64_t, int64_t) const {
    return {};
  }
  template <bool kWhole>
  __device__ __forceinline__ void store(int64_t i, int64_t count, const Loaded&) const {
    store_quad<kWhole>(x, i, count, {{value, value, value, value}});
  }
};

__global__ void fill_rows(Elements x, int64_t stride, int64_t cols, float value) {
  const int64_t row = blockIdx.x * stride;
  for (int64_t i = 4 * int64_t{threadIdx.x}; i < cols; i += 4 * int64_t{blockDim.x}) {
    store_quad(x, row + i, cols - i, {{value, value, value, value}});
  }
}

}  // namespace

void fill(Stream& stream, const FillArgs& args) {
  if (args.x.contiguous()) {
    for_each_quad("fill", stream, Set{elements(args.x), args.value}, args.x.count());
  } else {
    launch(fill_rows, {.name = "fill", .grid = blocks_for(args.x.rows(), 1), .block = 128}, stream,
           elements(args.x), args.x.stride, args.x.cols(), args.value);
  }
}

}  // namespace espalier::kernels::ESPALIER_GPU
