// Predicts weights, in blocks that stay in L1: joins the master copy and decodes 8-bit moments
// once, then applies the terms. One pass over memory.
#include "src/kernels/cpu/optimizer/update.h"
#include "src/kernels/cpu/table.h"

namespace espalier::kernels::ESPALIER_ISA {
namespace {

/// Arrays of one call, by the type of the values.
template <class V>
struct Ahead {
  const V* value;
  const uint16_t* low;
  Moment moment1, moment2;
  V* out;
  float* exact;
};

/// Applies one term to a block.
void advance(const PredictArgs::Term& term, float epsilon, int64_t n, const float* m,
             const float* v, float* w) {
  const float keep = term.keep;
  const float step = term.step;
  const float root = term.root;
  if (v == nullptr) {
#pragma omp simd
    for (int64_t k = 0; k < n; ++k) {
      w[k] = w[k] * keep - step * m[k];
    }
    return;
  }
#pragma omp simd
  for (int64_t k = 0; k < n; ++k) {
    w[k] = w[k] * keep - step * m[k] / (__builtin_sqrtf(v[k]) * root + epsilon);
  }
}

/// Elements [first, first + n); n is at most a block.
template <class V>
void predict_block(const PredictArgs& args, const Ahead<V>& arrays, int64_t first, int64_t n) {
  alignas(64) float w[kQuantizeBlock];
  alignas(64) float buffers[2][kQuantizeBlock];
  const float* m = open<DynamicMap::with_sign>(arrays.moment1, first, n, buffers[0]);
  const float* v = open<DynamicMap::without_sign>(arrays.moment2, first, n, buffers[1]);
  const V* value = arrays.value + first;
  if (arrays.low == nullptr) {
#pragma omp simd
    for (int64_t k = 0; k < n; ++k) {
      w[k] = load(value + k);
    }
  } else {
    const uint16_t* low = arrays.low + first;
#pragma omp simd
    for (int64_t k = 0; k < n; ++k) {
      w[k] = master(value, low, k);
    }
  }
  for (int64_t t = 0; t < args.term_count; ++t) {
    advance(args.terms[t], args.epsilon, n, m, v, w);
  }
  if (arrays.exact != nullptr) {
    __builtin_memcpy(arrays.exact + first, w, static_cast<size_t>(n) * sizeof(float));
  }
  if (arrays.out != nullptr) {
    V* out = arrays.out + first;
#pragma omp simd
    for (int64_t k = 0; k < n; ++k) {
      store(out + k, w[k]);
    }
  }
}

}  // namespace

void predict(Stream& stream, const PredictArgs& args) {
  const Moment moment2 = args.moment2 ? moment_of(args.moment2, args.scale2) : Moment{};
  with_type(args.value.dtype, [&](auto type) {
    using V = decltype(type);
    const Ahead<V> arrays{elements<V>(args.value),
                          elements<uint16_t>(args.low),
                          moment_of(args.moment1, args.scale1),
                          moment2,
                          elements<V>(args.out),
                          elements<float>(args.exact)};
    for_ranges(stream.threads(), args.value.count(), kBlock, [&](int64_t first, int64_t n) {
      for (const int64_t end = first + n; first < end; first += kQuantizeBlock) {
        predict_block(args, arrays, first, least(kQuantizeBlock, end - first));
      }
    });
  });
}

}  // namespace espalier::kernels::ESPALIER_ISA
