// Attention on tensor cores, forward, after Dao, FlashAttention-2 (2023), algorithm 1.
//
// - A block has 128 queries of one head, a warp 32 of them. Keys and values are loaded in tiles;
//   one is loaded while the other is multiplied.
// - Scores, the running softmax and sums stay in registers.
// - Causal: each warp skips tiles above the diagonal and masks only those on it; with a window also
//   tiles before it, and those on its edge. Otherwise only a last, incomplete tile is masked.
//
// Operands are 16-bit, sums fp32. Probabilities are rounded to the operands' type for the second
// product. Causal: a NaN in v also reaches earlier rows, down to the start of its tile.
//
// Bound: 4 D flops and one exponential per score. A fragment of k or v serves two products: 128
// bytes of shared memory for 2,048 multiply-adds, half of an SM's rate. Exponentials (16 a clock)
// take half the time of an A100's products at D = 64. If the L2 cache holds the operands, each is
// read T / 256 times on average; from T = 1,024 on that is no bound.
//
// Registers of causal kernels (ptxas of CUDA 13, sm_90a; sm_80 about the same, sm_100 up to 31
// more; none spills; the others take up to 11 more on sm_90a), shared memory, blocks an SM:
//          161, 16 KiB, 3  223, 32 KiB, 2  209, 36 KiB, 2  242, 48 KiB, 2
#include "src/kernels/cuda/attention/tile.h"

namespace espalier::kernels::ESPALIER_GPU {
namespace {

constexpr int kWarps = kAttentionThreads / 32;
constexpr int kM = 2;  ///< groups of 16 rows per warp: each fragment of k and v serves two products
constexpr int kQueries = 16 * kM * kWarps;
/// Keys of a tile. With more than 64 columns, the sums leave too few registers for 64 scores.
template <int kD>
constexpr int kKeys = kD <= 64 ? 64 : 32;

template <int kD>
constexpr size_t shared_bytes() {
  return static_cast<size_t>(kQueries + 2 * kKeys<kD>) * kD * sizeof(uint16_t);
}

/// The softmax of the lane's rows over the keys so far. Until `finish`, a sum is the lane's part.
struct Softmax {
  float top[kM][2], sum[kM][2];

  __device__ Softmax() {
#pragma unroll
    for (int i = 0; i < 2 * kM; ++i) {
      top[i / 2][i % 2] = -INFINITY;
      sum[i / 2][i % 2] = 0;
    }
  }

  /// Replaces scores by exp(scale (score - top)); scale2 = scale log2(e). shrink: factor for
  /// earlier sums. Without a window key 0 is the first key of every row, so its top is finite.
  /// kMayBeUnseen: a row may have no key in this tile or before.
  template <bool kMayBeUnseen, int kN>
  __device__ __forceinline__ void add(float (&scores)[kM][kN][4], float scale2,
                                      float (&shrink)[kM][2]) {
#pragma unroll
    for (int i = 0; i < 2 * kM; ++i) {
      const int m = i / 2;
      const int h = i % 2;
      float high = top[m][h];
#pragma unroll
      for (int n = 0; n < kN; ++n) {
        high = fmaxf(high, fmaxf(scores[m][n][2 * h], scores[m][n][2 * h + 1]));
      }
      high = fmaxf(high, __shfl_xor_sync(kAllLanes, high, 1));
      high = fmaxf(high, __shfl_xor_sync(kAllLanes, high, 2));
      const float finite = kMayBeUnseen && high == -INFINITY ? 0.0F : high;
      shrink[m][h] = power_of_2((top[m][h] - finite) * scale2);
      top[m][h] = high;
      const float base = finite * scale2;
      float total = 0;
#pragma unroll
      for (int n = 0; n < kN; ++n) {
#pragma unroll
        for (int e = 2 * h; e < 2 * h + 2; ++e) {
          scores[m][n][e] = power_of_2(scores[m][n][e] * scale2 - base);
          total += scores[m][n][e];
        }
      }
      sum[m][h] = sum[m][h] * shrink[m][h] + total;
    }
  }

  __device__ __forceinline__ void finish() {
#pragma unroll
    for (int i = 0; i < 2 * kM; ++i) {
      float& all = sum[i / 2][i % 2];
      all += __shfl_xor_sync(kAllLanes, all, 1);
      all += __shfl_xor_sync(kAllLanes, all, 2);
    }
  }
};

/// out = sums / softmax.sum, and lse, for the warp's rows; `row` is the first of them.
template <DType kHalf, int kD>
__device__ __forceinline__ void finish(const AttentionShapes& s, const AttentionPair& pair,
                                       Softmax& softmax, float (&sums)[kM][kD / 8][4],
                                       uint16_t* tile, int row) {
  const int lane = threadIdx.x % 32;
  softmax.finish();
  float factor[kM][2];
#pragma unroll
  for (int i = 0; i < 2 * kM; ++i) {
    const int own = row + 16 * (i / 2) + 8 * (i % 2) + lane / 4;
    const float sum = softmax.sum[i / 2][i % 2];
    factor[i / 2][i % 2] = 1.0F / sum;
    if (lane % 4 == 0 && own < s.tokens) {
      s.lse[s.number(pair, own)] = s.scale * softmax.top[i / 2][i % 2] + logf(sum);
    }
  }
  scale_rows(sums, factor);
  store_rows<kHalf, kD>(sums, tile, row % kQueries, output_rows(s, s.out, pair), row);
}

template <DType kHalf, int kD, AttentionMask kMask>
__global__ void __launch_bounds__(kAttentionThreads, 2)
    attend(AttentionShapes s, AttentionOrder order) {
  constexpr int kTile = kKeys<kD>;
  constexpr bool kCausal = kMask != AttentionMask::all;
  constexpr bool kWindow = kMask == AttentionMask::window;
  uint16_t* const q = dynamic_shared<uint16_t>();
  uint16_t* const k = q + kQueries * kD;
  uint16_t* const v = k + kTile * kD;
  const AttentionTurn turn = order.turn(blockIdx.x);
  const AttentionPair pair = s.pair(turn.pair);
  const HeadRows keys = part_rows(s, s.qkv, pair, 1);
  const HeadRows values = part_rows(s, s.qkv, pair, 2);
  const auto first = static_cast<int>(order.tiles - 1 - turn.rank) * kQueries;
  const int window = kWindow ? window_rows(s) : 0;
  const int begin = kWindow && first >= window ? (first - window + 1) / kTile * kTile : 0;
  load_tile<kD, kQueries>(q, part_rows(s, s.qkv, pair, 0), first);
  commit_copies();
  load_tile<kD, kTile>(k, keys, begin);
  commit_copies();
  wait_copies<1>();
  __syncthreads();

  const int row = first + static_cast<int>(threadIdx.x) / 32 * 16 * kM;
  const Left<kD, kM, kD <= 64> queries(q, row - first);
  const int end = kCausal && first + kQueries < keys.count ? first + kQueries : keys.count;
  const float scale2 = s.scale * kLog2E;
  float out[kM][kD / 8][4] = {};
  Softmax softmax;
  for (int key = begin; key < end; key += kTile) {
    uint32_t p[kM][kTile / 16][4];
    const bool seen = (!kCausal || key < row + 16 * kM) && (!kWindow || key + kTile > row - window);
    wait_copies<0>();
    __syncthreads();  // k has arrived; all warps have finished with v
    load_tile<kD, kTile>(v, values, key);
    commit_copies();
    if (seen) {
      float scores[kM][kTile / 8][4];
      multiply_rows<kHalf>(scores, queries, k, 0);
      if ((kCausal ? key + kTile > row : key + kTile > end) ||
          (kWindow && key < row + 16 * kM - window)) {
        for_sums(scores, [&](float& score, int i, int j) {
          const bool hidden = (kCausal ? key + j > row + i : key + j >= end) ||
                              (kWindow && key + j <= row + i - window);
          score = hidden ? -INFINITY : score;
        });
      }
      float shrink[kM][2];
      softmax.add<kWindow>(scores, scale2, shrink);
      scale_rows(out, shrink);
      pack<kHalf>(scores, p);
    }
    wait_copies<0>();
    __syncthreads();  // v has arrived; all warps have finished with k
    if (key + kTile < end) {
      load_tile<kD, kTile>(k, keys, key + kTile);
    }
    commit_copies();
    if (seen) {
      add_product<kHalf, kD>(out, p, v, 0);
    }
  }
  finish<kHalf, kD>(s, pair, softmax, out, q, row);
}

template <DType kHalf, int kD, AttentionMask kMask>
void start(Stream& stream, const AttentionShapes& s) {
  const AttentionOrder order = attention_order(s, s.pairs(), kQueries);
  launch(attend<kHalf, kD, kMask>,
         {.name = "attention_tiles",
          .grid = blocks_for(int64_t{order.tiles} * order.pairs, 1),
          .block = kAttentionThreads,
          .shared_bytes = shared_bytes<kD>()},
         stream, s, order);
}

template <DType kHalf, AttentionMask kMask>
void start_by_width(Stream& stream, const AttentionShapes& s) {
  const auto run = s.width <= 32   ? start<kHalf, 32, kMask>
                   : s.width <= 64 ? start<kHalf, 64, kMask>
                   : s.width <= 96 ? start<kHalf, 96, kMask>
                                   : start<kHalf, 128, kMask>;
  run(stream, s);
}

template <DType kHalf>
void start_by_mask(Stream& stream, const AttentionShapes& s) {
  const AttentionMask mask = mask_of(s);
  const auto run = mask == AttentionMask::all      ? start_by_width<kHalf, AttentionMask::all>
                   : mask == AttentionMask::causal ? start_by_width<kHalf, AttentionMask::causal>
                                                   : start_by_width<kHalf, AttentionMask::window>;
  run(stream, s);
}

}  // namespace

bool attention_fits_tiles(const AttentionShapes& s) {
  bool whole = s.width % 8 == 0 && s.tokens < 1 << 30 && s.qkv_columns() < 3 << 24;
  for (const void* operand : {s.qkv.data, s.out.data, s.dout.data, s.dqkv.data}) {
    whole = whole && reinterpret_cast<uintptr_t>(operand) % 16 == 0;
  }
  return whole && s.qkv.half() && s.width <= 128;
}

void attention_by_tiles(Stream& stream, const AttentionShapes& s) {
  const auto run =
      s.qkv.type == DType::fp16 ? start_by_mask<DType::fp16> : start_by_mask<DType::bf16>;
  run(stream, s);
}

}  // namespace espalier::kernels::ESPALIER_GPU
