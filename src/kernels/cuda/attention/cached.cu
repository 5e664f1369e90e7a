// Attention of one query for each sequence over cached keys and values, and the cache's update.
//
// A block has one head of queries of one sequence. Its warps take turns at pieces of 32 keys, each
// with a running softmax as in rows.cu: a lane computes the score of one key, then adds to every
// 32nd column of the head. The warps' sums are combined in order.
#include "src/kernels/cuda/simt/reduce.h"
#include "src/kernels/cuda/table.h"

namespace espalier::kernels::ESPALIER_GPU {
namespace {

constexpr unsigned kWarps = 8;
constexpr int kColumnsEach = 8;  ///< columns of a head per lane: heads have at most 256 columns

struct Cache {
  Elements q, keys, values, out;
  const int32_t* lengths;
  int64_t heads, group, kv_heads, capacity, width, q_stride, out_stride;
  float scale;
};

__device__ __forceinline__ float dot(const float* q, const Elements& keys, int64_t at,
                                     int64_t width) {
  float sum = 0;
  for (int64_t d = 0; d < width; d += 4) {
    const Quad key = load_quad(keys, at + d, width - d);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      sum += d + k < width ? q[d + k] * key.x[k] : 0.0F;
    }
  }
  return sum;
}

__global__ void __launch_bounds__(32 * kWarps) attend_cached(Cache c) {
  // Shared: the query [width]; of each warp its sums [width]; their maxima and sums [2, kWarps].
  float* const query = dynamic_shared<float>();
  float* const all_sums = query + c.width;
  float* const tops = all_sums + kWarps * c.width;
  float* const totals = tops + kWarps;
  const int64_t sequence = quotient(blockIdx.x, c.heads);
  const int64_t head = blockIdx.x - sequence * c.heads;
  const int64_t length = least(most(c.lengths[sequence], 0), c.capacity);
  const int64_t begin = (sequence * c.kv_heads + quotient(head, c.group)) * c.capacity * c.width;
  for (int64_t d = threadIdx.x; d < c.width; d += blockDim.x) {
    query[d] = load(c.q, sequence * c.q_stride + head * c.width + d);
  }
  __syncthreads();
  const int64_t lane = threadIdx.x % 32;
  const int64_t warp = threadIdx.x / 32;
  float sums[kColumnsEach] = {};
  float top = -FLT_MAX;
  float sum = 0;
  for (int64_t first = 32 * warp; first < length; first += 32 * kWarps) {
    const int64_t key = first + lane;
    const bool seen = key < length;
    const float score =
        seen ? c.scale * dot(query, c.keys, begin + key * c.width, c.width) : -FLT_MAX;
    const float higher = fmaxf(top, warp_max(score));
    const float p = seen ? expf(score - higher) : 0.0F;
    const float shrink = expf(top - higher);
    sum = sum * shrink + warp_sum(p);
    top = higher;
    for (float& one : sums) {
      one *= shrink;
    }
    for (int j = 0; j < 32 && first + j < length; ++j) {
      const float weight = __shfl_sync(kAllLanes, p, j);
#pragma unroll
      for (int i = 0; i < kColumnsEach; ++i) {
        const int64_t d = lane + 32 * i;
        if (d < c.width) {
          sums[i] += weight * load(c.values, begin + (first + j) * c.width + d);
        }
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kColumnsEach; ++i) {
    const int64_t d = lane + 32 * i;
    if (d < c.width) {
      all_sums[warp * c.width + d] = sums[i];
    }
  }
  if (lane == 0) {
    tops[warp] = top;
    totals[warp] = sum;
  }
  __syncthreads();
  float highest = -FLT_MAX;
  for (unsigned w = 0; w < kWarps; ++w) {
    highest = fmaxf(highest, tops[w]);
  }
  float total = 0;
  for (unsigned w = 0; w < kWarps; ++w) {
    total += expf(tops[w] - highest) * totals[w];
  }
  for (int64_t d = threadIdx.x; d < c.width; d += blockDim.x) {
    float result = 0;
    for (unsigned w = 0; w < kWarps; ++w) {
      result += expf(tops[w] - highest) * all_sums[w * c.width + d];
    }
    store(c.out, sequence * c.out_stride + head * c.width + d, result / total);
  }
}

struct Update {
  Elements qkv, keys, values;
  const int32_t* first;
  const int32_t* counts;
  int64_t tokens, kv_heads, capacity, width, cols, stride;
};

/// Block i: keys and values of row i.
__global__ void __launch_bounds__(256) cache_row(Update u) {
  const int64_t sequence = quotient(blockIdx.x, u.tokens);
  const int64_t t = blockIdx.x - sequence * u.tokens;
  const int64_t count = u.counts[sequence];
  if (t >= count || t < count - u.capacity) {
    return;
  }
  const int64_t slot = (u.first[sequence] + t) % u.capacity;
  const int64_t row = u.kv_heads * u.width;
  const int64_t from = blockIdx.x * u.stride + u.cols - 2 * row;
  for (int64_t i = threadIdx.x; i < row; i += blockDim.x) {
    const int64_t head = quotient(i, u.width);
    const int64_t to =
        ((sequence * u.kv_heads + head) * u.capacity + slot) * u.width + (i - head * u.width);
    store(u.keys, to, load(u.qkv, from + i));
    store(u.values, to, load(u.qkv, from + row + i));
  }
}

}  // namespace

void cache_tokens(Stream& stream, const CacheTokensArgs& args) {
  const Update update{.qkv = elements(args.qkv),
                      .keys = elements(args.keys),
                      .values = elements(args.values),
                      .first = static_cast<const int32_t*>(args.first.data),
                      .counts = static_cast<const int32_t*>(args.counts.data),
                      .tokens = args.qkv.shape[1],
                      .kv_heads = args.keys.shape[1],
                      .capacity = args.keys.shape[2],
                      .width = args.keys.shape[3],
                      .cols = args.qkv.cols(),
                      .stride = args.qkv.stride};
  launch(cache_row, {.name = "cache_tokens", .grid = blocks_for(args.qkv.rows(), 1)}, stream,
         update);
}

void cached_attention(Stream& stream, const CachedAttentionArgs& args) {
  const int64_t width = args.keys.shape[3];
  const int64_t heads = args.q.cols() / width;
  check(width <= 32 * kColumnsEach,
        "attention on a GPU supports heads of at most {} columns, not {}; set more model.heads or "
        "a smaller model.width",
        32 * kColumnsEach, width);
  const Cache cache{.q = elements(args.q),
                    .keys = elements(args.keys),
                    .values = elements(args.values),
                    .out = elements(args.out),
                    .lengths = static_cast<const int32_t*>(args.lengths.data),
                    .heads = heads,
                    .group = heads / args.keys.shape[1],
                    .kv_heads = args.keys.shape[1],
                    .capacity = args.keys.shape[2],
                    .width = width,
                    .q_stride = args.q.stride,
                    .out_stride = args.out.stride,
                    .scale = args.scale > 0 ? args.scale : 1.0F / sqrtf(static_cast<float>(width))};
  const auto floats = static_cast<size_t>((kWarps + 1) * width + 2 * kWarps);
  launch(attend_cached,
         {.name = "cached_attention",
          .grid = blocks_for(args.q.rows() * heads, 1),
          .block = 32 * kWarps,
          .shared_bytes = floats * sizeof(float)},
         stream, cache);
}

}  // namespace espalier::kernels::ESPALIER_GPU
