// Attention without tensor cores. A warp has one query (for the gradients of k and v: one
// key) and processes the keys (queries) 32 at a time, in two steps:
// - each lane computes the score of one of them;
// - each lane adds to every 32nd column of the head, with the scores broadcast by shuffles.
//
// There are no atomics: separate kernels compute the gradients of q, and of k and v.
#include "src/kernels/cuda/attention/attention.h"
#include "src/kernels/cuda/simt/reduce.h"

namespace espalier::kernels::ESPALIER_GPU {
namespace {

constexpr unsigned kWarps = 8;
constexpr int kColumnsEach = 8;  ///< columns of a head per lane: heads have at most 256 columns

using Shapes = AttentionShapes;

/// The row of a head that the warp processes: of a pair, or of the first pair of a group.
struct Place {
  AttentionPair pair;
  int64_t t;
  bool there;
  /// Blocks of one head are neighbours.
  __device__ explicit Place(const Shapes& s, bool of_group = false)
      : Place(s, (s.tokens + kWarps - 1) / kWarps, of_group) {}
  __device__ Place(const Shapes& s, int64_t blocks, bool of_group)
      : pair(s.pair(quotient(blockIdx.x, blocks) * (of_group ? s.group() : 1))),
        t(blockIdx.x % blocks * kWarps + threadIdx.x / 32),
        there(t < s.tokens) {}
  /// The first and last key that query t sees, and the first and last query that sees key t.
  __device__ int64_t first_key(const Shapes& s) const {
    return s.window > 0 ? most(0, t - s.window + 1) : 0;
  }
  __device__ int64_t last_key(const Shapes& s) const { return s.causal ? t : s.tokens - 1; }
  __device__ int64_t first_query(const Shapes& s) const { return s.causal ? t : 0; }
  __device__ int64_t last_query(const Shapes& s) const {
    return s.window > 0 ? least(s.tokens, t + s.window) - 1 : s.tokens - 1;
  }
  __device__ int64_t part(const Shapes& s, int64_t row, int which) const {
    return s.part(pair, row, which);
  }
  __device__ int64_t out(const Shapes& s, int64_t row) const { return s.output(pair, row); }
  __device__ int64_t number(const Shapes& s, int64_t row) const { return s.number(pair, row); }
};

/// Copies a row of a head to the warp's shared memory, in slot `which`.
__device__ float* keep(const Shapes& s, const Elements& from, int64_t at, int which) {
  float* row = dynamic_shared<float>() + (which * kWarps + threadIdx.x / 32) * s.width;
  for (int64_t d = threadIdx.x % 32; d < s.width; d += 32) {
    row[d] = load(from, at + d);
  }
  __syncwarp();
  return row;
}

__device__ __forceinline__ float dot(const float* row, const Elements& other, int64_t at,
                                     int64_t width) {
  float sum = 0;
  for (int64_t d = 0; d < width; d += 4) {
    const Quad q = load_quad(other, at + d, width - d);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      sum += d + k < width ? row[d + k] * q.x[k] : 0.0F;
    }
  }
  return sum;
}

/// sums += factor * row; each lane adds its own columns.
__device__ __forceinline__ void add_row(const Shapes& s, const Elements& from, int64_t at,
                                        float factor, float (&sums)[kColumnsEach]) {
#pragma unroll
  for (int i = 0; i < kColumnsEach; ++i) {
    const int64_t d = threadIdx.x % 32 + 32 * i;
    if (d < s.width) {
      sums[i] += factor * load(from, at + d);
    }
  }
}
__device__ __forceinline__ void write_row(const Shapes& s, const Elements& to, int64_t at,
                                          float factor, const float (&sums)[kColumnsEach]) {
#pragma unroll
  for (int i = 0; i < kColumnsEach; ++i) {
    const int64_t d = threadIdx.x % 32 + 32 * i;
    if (d < s.width) {
      store(to, at + d, factor * sums[i]);
    }
  }
}

__global__ void __launch_bounds__(32 * kWarps) attend(Shapes s) {
  const Place own(s);
  if (!own.there) {
    return;
  }
  const float* q = keep(s, s.qkv, own.part(s, own.t, 0), 0);
  const int64_t lane = threadIdx.x % 32;
  float sums[kColumnsEach] = {};
  float top = -FLT_MAX;
  float sum = 0;
  const int64_t last = own.last_key(s);
  for (int64_t first = own.first_key(s); first <= last; first += 32) {
    const int64_t key = first + lane;
    const bool seen = key <= last;
    const float score = seen ? s.scale * dot(q, s.qkv, own.part(s, key, 1), s.width) : -FLT_MAX;
    const float higher = fmaxf(top, warp_max(score));
    const float p = seen ? expf(score - higher) : 0.0F;
    const float shrink = expf(top - higher);
    sum = sum * shrink + warp_sum(p);
    top = higher;
    for (float& one : sums) {
      one *= shrink;
    }
    for (int j = 0; j < 32 && first + j <= last; ++j) {
      add_row(s, s.qkv, own.part(s, first + j, 2), __shfl_sync(kAllLanes, p, j), sums);
    }
  }
  write_row(s, s.out, own.out(s, own.t), 1.0F / sum, sums);
  if (lane == 0) {
    s.lse[own.number(s, own.t)] = top + logf(sum);
  }
}

/// delta = per row, the sum of out dout.
__global__ void __launch_bounds__(32 * kWarps) sum_rows(Shapes s) {
  const Place own(s);
  if (!own.there) {
    return;
  }
  const int64_t at = own.out(s, own.t);
  float sum = 0;
  for (int64_t d = threadIdx.x % 32; d < s.width; d += 32) {
    sum += load(s.out, at + d) * load(s.dout, at + d);
  }
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) {
    s.delta[own.number(s, own.t)] = sum;
  }
}

__global__ void __launch_bounds__(32 * kWarps) query_gradient(Shapes s) {
  const Place own(s);
  if (!own.there) {
    return;
  }
  const float* q = keep(s, s.qkv, own.part(s, own.t, 0), 0);
  const float* dout = keep(s, s.dout, own.out(s, own.t), 1);
  const float lse = s.lse[own.number(s, own.t)];
  const float delta = s.delta[own.number(s, own.t)];
  float sums[kColumnsEach] = {};
  const int64_t last = own.last_key(s);
  for (int64_t first = own.first_key(s); first <= last; first += 32) {
    const int64_t key = first + threadIdx.x % 32;
    float slope = 0;
    if (key <= last) {
      const float p = expf(s.scale * dot(q, s.qkv, own.part(s, key, 1), s.width) - lse);
      slope = p * (dot(dout, s.qkv, own.part(s, key, 2), s.width) - delta);
    }
    for (int j = 0; j < 32 && first + j <= last; ++j) {
      add_row(s, s.qkv, own.part(s, first + j, 1), __shfl_sync(kAllLanes, slope, j), sums);
    }
  }
  write_row(s, s.dqkv, own.part(s, own.t, 0), s.scale, sums);
}

/// Adds the heads of a group in their order.
__global__ void __launch_bounds__(32 * kWarps) key_gradient(Shapes s) {
  Place own(s, true);
  if (!own.there) {
    return;
  }
  const float* k = keep(s, s.qkv, own.part(s, own.t, 1), 0);
  const float* v = keep(s, s.qkv, own.part(s, own.t, 2), 1);
  float dk[kColumnsEach] = {};
  float dv[kColumnsEach] = {};
  const int64_t last = own.last_query(s);
  for (int64_t head = 0; head < s.group(); ++head, ++own.pair.pair, ++own.pair.head) {
    for (int64_t first = own.first_query(s); first <= last; first += 32) {
      const int64_t query = first + threadIdx.x % 32;
      float p = 0;
      float slope = 0;
      if (query <= last) {
        p = expf(s.scale * dot(k, s.qkv, own.part(s, query, 0), s.width) -
                 s.lse[own.number(s, query)]);
        slope = p * (dot(v, s.dout, own.out(s, query), s.width) - s.delta[own.number(s, query)]);
      }
      for (int j = 0; j < 32 && first + j <= last; ++j) {
        add_row(s, s.dout, own.out(s, first + j), __shfl_sync(kAllLanes, p, j), dv);
        add_row(s, s.qkv, own.part(s, first + j, 0), __shfl_sync(kAllLanes, slope, j), dk);
      }
    }
  }
  write_row(s, s.dqkv, own.part(s, own.t, 1), s.scale, dk);
  write_row(s, s.dqkv, own.part(s, own.t, 2), 1.0F, dv);
}

Launch shape_of(const char* name, const Shapes& s, int64_t pairs, size_t rows_kept) {
  return {.name = name,
          .grid = dim3(blocks_for(divide_up(s.tokens, kWarps) * pairs, 1)),
          .block = 32 * kWarps,
          .shared_bytes = rows_kept * kWarps * static_cast<size_t>(s.width) * sizeof(float)};
}

void check_width(const Shapes& s) {
  check(s.width <= 32 * kColumnsEach,
        "attention on a GPU supports heads of at most {} columns, not {}; set more model.heads or "
        "a smaller model.width",
        32 * kColumnsEach, s.width);
}

}  // namespace

void attention_by_rows(Stream& stream, const Shapes& s) {
  check_width(s);
  launch(attend, shape_of("attention_rows", s, s.pairs(), 1), stream, s);
}

void attention_backward_by_rows(Stream& stream, const Shapes& s) {
  check_width(s);
  launch(sum_rows, shape_of("attention_rows_backward_delta", s, s.pairs(), 0), stream, s);
  launch(query_gradient, shape_of("attention_rows_backward_q", s, s.pairs(), 2), stream, s);
  launch(key_gradient, shape_of("attention_rows_backward_kv", s, s.groups(), 2), stream, s);
}

}  // namespace espalier::kernels::ESPALIER_GPU
