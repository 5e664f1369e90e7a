// A warp loads the digits; one thread then computes the factor with the host's arithmetic.
#include "src/kernels/rules/clip.h"

#include <cmath>

#include "src/core/exact_sum.h"
#include "src/kernels/cuda/device/launch.h"
#include "src/kernels/cuda/table.h"

namespace espalier::kernels::ESPALIER_GPU {
namespace {

__global__ void __launch_bounds__(32)
    clip_factor(const uint64_t* counts, double clip, double scale, float* norm, float* factor) {
  __shared__ uint64_t digits[ExactSum::kWords];
  for (unsigned i = threadIdx.x; i < ExactSum::kWords; i += 32) {
    digits[i] = counts[i];
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    const Clip found = clip_of(sqrt(ExactSum::value_of(digits)), clip, scale);
    *norm = found.norm;
    *factor = found.factor;
  }
}

}  // namespace

void clip(Stream& stream, const ClipArgs& args) {
  launch(clip_factor, {.name = "clip", .grid = 1, .block = 32}, stream,
         static_cast<const uint64_t*>(args.counts.data), args.clip, args.scale,
         static_cast<float*>(args.norm.data), static_cast<float*>(args.factor.data));
}

}  // namespace espalier::kernels::ESPALIER_GPU
