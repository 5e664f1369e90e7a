// Predicts weights of later steps. The master copy and the moments are read once; the terms are
// kernel parameters.
#include <algorithm>

#include "src/kernels/cuda/optimizer/state.h"
#include "src/kernels/cuda/table.h"

namespace espalier::kernels::ESPALIER_GPU {
namespace {

constexpr int64_t kMaxTerms = 64;

struct Ahead {
  Master master;
  Moment moment1, moment2;
  bool rooted;  ///< true if there is a second moment
  Elements out;
  float* exact;
  int64_t n;
  float epsilon;
  int term_count;
  PredictArgs::Term terms[kMaxTerms];
};

__device__ __forceinline__ void predict_quad(const Ahead& args, int64_t i, int64_t count) {
  Quad w = load_master(args.master, i, count);
  const Quad m = load_moment<DynamicMap::with_sign>(args.moment1, i, count);
  const Quad v = load_moment<DynamicMap::without_sign>(args.moment2, i, count);
  for (int t = 0; t < args.term_count; ++t) {
    const PredictArgs::Term& term = args.terms[t];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float length = term.step * m.x[k];
      const float root = args.rooted ? sqrtf(v.x[k]) * term.root + args.epsilon : 1.0F;
      w.x[k] = w.x[k] * term.keep - length / root;
    }
  }
  if (args.exact != nullptr) {
    store_quad(args.exact, i, count, w);
  }
  if (args.out.data != nullptr) {
    store_quad(args.out, i, count, w);
  }
}

__global__ void __launch_bounds__(256) predict_quads(const Ahead args) {
  const int64_t i = 4 * (int64_t{blockIdx.x} * blockDim.x + threadIdx.x);
  if (i < args.n) {
    predict_quad(args, i, args.n - i);
  }
}

}  // namespace

void predict(Stream& stream, const PredictArgs& args) {
  require(args.term_count <= kMaxTerms, "so many terms fit in a call", args.term_count, kMaxTerms);
  Ahead ahead{.master = {elements(args.value), static_cast<uint16_t*>(args.low.data)},
              .moment1 = moment_of(args.moment1, args.scale1),
              .moment2 = args.moment2 ? moment_of(args.moment2, args.scale2) : Moment{},
              .rooted = static_cast<bool>(args.moment2),
              .out = elements(args.out),
              .exact = static_cast<float*>(args.exact.data),
              .n = args.value.count(),
              .epsilon = args.epsilon,
              .term_count = static_cast<int>(args.term_count),
              .terms = {}};
  std::copy_n(args.terms, args.term_count, ahead.terms);
  launch(predict_quads, {.name = "predict", .grid = blocks_for(ahead.n, 4 * 256)}, stream, ahead);
}

}  // namespace espalier::kernels::ESPALIER_GPU
