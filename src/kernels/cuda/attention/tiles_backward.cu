// Attention on tensor cores, backward. Scores are recomputed per tile, as in Dao,
// FlashAttention-2 (2023), algorithm 2, but without atomics. With ' for the transpose,
// p = exp(scale score - lse) and ds = p (dout v' - delta):
//
//   query_gradient   dq = scale ds k: a block has 64 queries, loops over keys and values, and also
//                    computes delta, the sums of out dout by row.
//   key_gradient     dk = scale ds' q, dv = p' dout: a block has 64 keys and loops over queries and
//                    dout of all heads that use them; causal: from the diagonal on; with a window:
//                    up to its last query.
//
// A warp has 16 rows of its own, with their sums in registers. The operands of the loop have two
// stages: one is loaded while the other is multiplied. p and ds are rounded to the operands' type
// for the products that sum them.
//
// Both kernels compute p and ds: 7 products of tiles. One kernel would need 5, but all its blocks
// would add to dq in an arbitrary order. Counted as 5 products, the rate is therefore at most 5/7
// of the tensor cores'. A fragment of the loop's operands serves one product: 256 bytes of shared
// memory for 2,048 multiply-adds, so 1,024 a clock of an SM, the full rate of an A100.
//
// Registers of causal kernels (ptxas of CUDA 13, sm_90a; sm_80 about the same, sm_100 up to 31
// more; none spills; the others take 12 fewer to 27 more on sm_90a), shared memory, blocks an SM:
//   columns                 32              64              96              128
//   query_gradient     118, 24 KiB, 4  166, 48 KiB, 3  197, 48 KiB, 2  227, 64 KiB, 2
//   key_gradient       154, 25 KiB, 3  212, 49 KiB, 2  215, 49 KiB, 2  247, 65 KiB, 2
#include "src/kernels/cuda/attention/tile.h"

namespace espalier::kernels::ESPALIER_GPU {
namespace {

constexpr int kRows = 64;  ///< rows of a block; a warp has 16 of them
constexpr int kStep = 32;  ///< columns of scores in registers at a time

template <int kD>
struct Passing {
  static constexpr int kRows = kD <= 64 ? 64 : 32;  ///< rows of a stage
  static constexpr int kSize = kRows * kD;
  static constexpr bool kHeldByKeys = kD <= 64;
};

/// Values of a query that scores and their gradients need; lse2 = lse log2(e).
struct QueryRow {
  float lse2, delta;
};

/// Replaces scores by p, and dp by ds.
template <class RowOf>
__device__ __forceinline__ void score_gradient(float (&scores)[1][kStep / 8][4],
                                               float (&dp)[1][kStep / 8][4], float scale2,
                                               const RowOf& row_of) {
#pragma unroll
  for (int i = 0; i < kStep / 2; ++i) {
    const QueryRow row = row_of(i / 4, i % 4);
    float& p = scores[0][i / 4][i % 4];
    float& ds = dp[0][i / 4][i % 4];
    p = power_of_2(p * scale2 - row.lse2);
    ds = p * (ds - row.delta);
  }
}

/// Rows `step` to step + kStep - 1 of a stage.
struct Step {
  uint16_t *first, *second;
  int step;
};

/// Adds to dq of 16 queries the terms of kStep keys. `ahead`: the first query (not causal: the last
/// key of all) minus the first key of the stage.
template <DType kHalf, int kD, AttentionMask kMask>
__device__ __forceinline__ void add_query_gradient(float (&dq)[1][kD / 8][4],
                                                   const Left<kD, 1, true>& q,
                                                   const Left<kD, 1, true>& dout, const Step& keys,
                                                   int ahead, int window,
                                                   const QueryRow (&about)[2], float scale2) {
  constexpr bool kCausal = kMask != AttentionMask::all;
  constexpr bool kWindow = kMask == AttentionMask::window;
  float p[1][kStep / 8][4];
  float ds[1][kStep / 8][4];
  multiply_rows<kHalf>(p, q, keys.first, keys.step);
  multiply_rows<kHalf>(ds, dout, keys.second, keys.step);
  if (keys.step + kStep > ahead || (kWindow && keys.step < ahead + 16 - window)) {
    for_sums(p, [&](float& score, int i, int j) {
      const bool hidden = keys.step + j > ahead + (kCausal ? i : 0) ||
                          (kWindow && keys.step + j <= ahead + i - window);
      score = hidden ? -INFINITY : score;
    });
  }
  score_gradient(p, ds, scale2, [&](int, int e) { return about[e / 2]; });
  uint32_t pairs[1][kStep / 16][4];
  pack<kHalf>(ds, pairs);
  add_product<kHalf, kD>(dq, pairs, keys.first, keys.step);
}

/// Adds to dk and dv of 16 keys the terms of kStep queries. `ahead`: the first key minus the first
/// query of the stage. `rows`: all query rows of the stage.
template <DType kHalf, int kD, AttentionMask kMask, bool kHeld>
__device__ __forceinline__ void add_key_gradients(float (&dk)[1][kD / 8][4],
                                                  float (&dv)[1][kD / 8][4],
                                                  const Left<kD, 1, kHeld>& k,
                                                  const Left<kD, 1, kHeld>& v, const Step& queries,
                                                  int ahead, int window, const QueryRow* rows,
                                                  float scale2) {
  constexpr bool kCausal = kMask != AttentionMask::all;
  constexpr bool kWindow = kMask == AttentionMask::window;
  float p[1][kStep / 8][4];
  float ds[1][kStep / 8][4];
  multiply_rows<kHalf>(p, k, queries.first, queries.step);
  multiply_rows<kHalf>(ds, v, queries.second, queries.step);
  if (kCausal &&
      (queries.step < ahead + 16 || (kWindow && queries.step + kStep > ahead + window))) {
    for_sums(p, [&](float& score, int i, int j) {
      const bool hidden =
          ahead + i > queries.step + j || (kWindow && ahead + i + window <= queries.step + j);
      score = hidden ? -INFINITY : score;
    });
  }
  const QueryRow* const columns = rows + queries.step + threadIdx.x % 4 * 2;
  score_gradient(p, ds, scale2, [&](int n, int e) { return columns[8 * n + e % 2]; });
  uint32_t pairs[1][kStep / 16][4];
  pack<kHalf>(p, pairs);
  add_product<kHalf, kD>(dv, pairs, queries.second, queries.step);
  pack<kHalf>(ds, pairs);
  add_product<kHalf, kD>(dk, pairs, queries.first, queries.step);
}

/// Computes delta of the block's rows, two threads per row; writes it to memory and to `deltas`.
template <DType kHalf>
__device__ __forceinline__ void make_deltas(const AttentionShapes& s, const AttentionPair& pair,
                                            int first, float* deltas) {
  const HeadRows out = output_rows(s, s.out, pair);
  const HeadRows dout = output_rows(s, s.dout, pair);
  const auto row = static_cast<int>(threadIdx.x / 2);
  float sum = 0;
  for (auto chunk = static_cast<int>(threadIdx.x % 2); out.has(first + row, chunk); chunk += 2) {
    const uint4 x = *reinterpret_cast<const uint4*>(out.at(first + row, chunk));
    const uint4 y = *reinterpret_cast<const uint4*>(dout.at(first + row, chunk));
    const uint32_t xs[4] = {x.x, x.y, x.z, x.w};
    const uint32_t ys[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      sum += from_half(kHalf, xs[i] & 0xffffU) * from_half(kHalf, ys[i] & 0xffffU);
      sum += from_half(kHalf, xs[i] >> 16) * from_half(kHalf, ys[i] >> 16);
    }
  }
  sum += __shfl_xor_sync(kAllLanes, sum, 1);
  if (threadIdx.x % 2 == 0) {
    deltas[row] = sum;
    if (first + row < s.tokens) {
      s.delta[s.number(pair, first + row)] = sum;
    }
  }
}

template <DType kHalf, int kD, AttentionMask kMask>
__global__ void __launch_bounds__(kAttentionThreads, 2)
    query_gradient(AttentionShapes s, AttentionOrder order) {
  using Pass = Passing<kD>;
  constexpr bool kCausal = kMask != AttentionMask::all;
  constexpr bool kWindow = kMask == AttentionMask::window;
  uint16_t* const q = dynamic_shared<uint16_t>();
  uint16_t* const dout = q + kRows * kD;
  uint16_t* const stages = dout + kRows * kD;  // two stages, each with keys and values
  auto* const deltas = reinterpret_cast<float*>(stages + 4 * Pass::kSize);
  const AttentionTurn turn = order.turn(blockIdx.x);
  const AttentionPair pair = s.pair(turn.pair);
  const HeadRows keys = part_rows(s, s.qkv, pair, 1);
  const HeadRows values = part_rows(s, s.qkv, pair, 2);
  const auto first = static_cast<int>(order.tiles - 1 - turn.rank) * kRows;
  const auto load = [&](int key, uint16_t* stage) {
    load_tile<kD, Pass::kRows>(stage, keys, key);
    load_tile<kD, Pass::kRows>(stage + Pass::kSize, values, key);
  };
  load_tile<kD, kRows>(q, part_rows(s, s.qkv, pair, 0), first);
  load_tile<kD, kRows>(dout, output_rows(s, s.dout, pair), first);
  commit_copies();
  const int window = kWindow ? window_rows(s) : 0;
  const int begin =
      kWindow && first >= window ? (first - window + 1) / Pass::kRows * Pass::kRows : 0;
  load(begin, stages + begin / Pass::kRows % 2 * 2 * Pass::kSize);
  commit_copies();
  make_deltas<kHalf>(s, pair, first, deltas);
  wait_copies<1>();
  __syncthreads();

  const int own = static_cast<int>(threadIdx.x) / 32 * 16;
  const int row = first + own;
  const Left<kD, 1, true> queries(q, own);
  const Left<kD, 1, true> gradients(dout, own);
  QueryRow about[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int at = own + 8 * h + static_cast<int>(threadIdx.x) % 32 / 4;
    const bool there = first + at < s.tokens;
    about[h] = {there ? s.lse[s.number(pair, first + at)] * kLog2E : 0.0F, deltas[at]};
  }
  const int end = kCausal && first + kRows < keys.count ? first + kRows : keys.count;
  const float scale2 = s.scale * kLog2E;
  float dq[1][kD / 8][4] = {};
  for (int key = begin; key < end; key += Pass::kRows) {
    uint16_t* const k = stages + key / Pass::kRows % 2 * 2 * Pass::kSize;
    uint16_t* const v = k + Pass::kSize;
    wait_copies<0>();
    __syncthreads();  // this stage has arrived; the other is free
    if (key + Pass::kRows < end) {
      load(key + Pass::kRows, stages + (key / Pass::kRows + 1) % 2 * 2 * Pass::kSize);
    }
    commit_copies();
    const int seen = kCausal ? row + 16 : end;
    for (int step = 0; step < Pass::kRows && key + step < seen; step += kStep) {
      if (!kWindow || key + step + kStep > row - window + 1) {
        add_query_gradient<kHalf, kD, kMask>(dq, queries, gradients, {k, v, step},
                                             (kCausal ? row : end - 1) - key, window, about,
                                             scale2);
      }
    }
  }
  const float factor[1][2] = {{s.scale, s.scale}};
  scale_rows(dq, factor);
  store_rows<kHalf, kD>(dq, q, own, part_rows(s, s.dqkv, pair, 0), row);
}

template <DType kHalf, int kD, AttentionMask kMask>
__global__ void __launch_bounds__(kAttentionThreads, 2)
    key_gradient(AttentionShapes s, AttentionOrder order) {
  using Pass = Passing<kD>;
  constexpr bool kCausal = kMask != AttentionMask::all;
  constexpr bool kWindow = kMask == AttentionMask::window;
  uint16_t* const k = dynamic_shared<uint16_t>();
  uint16_t* const v = k + kRows * kD;
  uint16_t* const stages = v + kRows * kD;  // two stages, each with queries and gradients
  auto* const rows = reinterpret_cast<QueryRow*>(stages + 4 * Pass::kSize);  // per stage
  const AttentionTurn turn = order.turn(blockIdx.x);
  const AttentionPair pair = s.pair(turn.pair * s.group());
  HeadRows queries = part_rows(s, s.qkv, pair, 0);
  HeadRows gradients = output_rows(s, s.dout, pair);
  int64_t numbers = s.number(pair, 0);
  const auto first = static_cast<int>(turn.rank) * kRows;
  const auto load = [&](int query, uint16_t* stage) {
    load_tile<kD, Pass::kRows>(stage, queries, query);
    load_tile<kD, Pass::kRows>(stage + Pass::kSize, gradients, query);
  };
  // The values of this thread's row of a stage.
  const auto about = [&](int query) {
    const int at = query + static_cast<int>(threadIdx.x);
    const bool there = threadIdx.x < Pass::kRows && at < queries.count;
    const int64_t i = numbers + (there ? at : 0);
    return there ? QueryRow{s.lse[i] * kLog2E, s.delta[i]} : QueryRow{0, 0};
  };
  load_tile<kD, kRows>(k, part_rows(s, s.qkv, pair, 1), first);
  load_tile<kD, kRows>(v, part_rows(s, s.qkv, pair, 2), first);
  commit_copies();
  const int begin = kCausal ? first : 0;
  const int window = kWindow ? window_rows(s) : 0;
  // One after the last query that sees a key of the block.
  const int end = kWindow && first + kRows - 1 < queries.count - window ? first + kRows - 1 + window
                                                                        : queries.count;
  load(begin, stages);
  commit_copies();
  QueryRow next = about(begin);
  wait_copies<1>();
  __syncthreads();

  const int own = static_cast<int>(threadIdx.x) / 32 * 16;
  const int row = first + own;
  const Left<kD, 1, Pass::kHeldByKeys> keys(k, own);
  const Left<kD, 1, Pass::kHeldByKeys> values(v, own);
  const float scale2 = s.scale * kLog2E;
  float dk[1][kD / 8][4] = {};
  float dv[1][kD / 8][4] = {};
  int stage = 0;
  int query = begin;
  for (auto heads_left = static_cast<int>(s.group()); heads_left > 0; stage = 1 - stage) {
    uint16_t* const q = stages + stage * 2 * Pass::kSize;
    uint16_t* const dout = q + Pass::kSize;
    if (threadIdx.x < Pass::kRows) {
      rows[stage * Pass::kRows + threadIdx.x] = next;
    }
    wait_copies<0>();
    __syncthreads();  // this stage has arrived; the other is free
    const int own_query = query;
    query += Pass::kRows;
    if (query >= end) {  // the next head of the group
      query = begin;
      queries.first += s.width;
      gradients.first += s.width;
      numbers += s.tokens;
      --heads_left;
    }
    if (heads_left > 0) {
      load(query, stages + (1 - stage) * 2 * Pass::kSize);
      next = about(query);
    }
    commit_copies();
    // Causal: skips queries before the warp's first key; window: those after its last key's last.
    for (int step = !kCausal || row < own_query + kStep ? 0 : kStep; step < Pass::kRows;
         step += kStep) {
      if (!kWindow || own_query + step < row + 15 + window) {
        add_key_gradients<kHalf, kD, kMask>(dk, dv, keys, values, {q, dout, step}, row - own_query,
                                            window, rows + stage * Pass::kRows, scale2);
      }
    }
  }
  const float factor[1][2] = {{s.scale, s.scale}};
  scale_rows(dk, factor);
  store_rows<kHalf, kD>(dk, k, own, part_rows(s, s.dqkv, pair, 1), row);
  store_rows<kHalf, kD>(dv, v, own, part_rows(s, s.dqkv, pair, 2), row);
}

template <DType kHalf, int kD, AttentionMask kMask>
void start(Stream& stream, const AttentionShapes& s) {
  using Pass = Passing<kD>;
  AttentionOrder order = attention_order(s, s.pairs(), kRows);
  constexpr size_t kTiles = (2 * kRows * kD + 4 * Pass::kSize) * sizeof(uint16_t);
  Launch shape{.name = "attention_tiles_backward_q",
               .grid = blocks_for(int64_t{order.tiles} * order.pairs, 1),
               .block = kAttentionThreads,
               .shared_bytes = kTiles + kRows * sizeof(float)};
  launch(query_gradient<kHalf, kD, kMask>, shape, stream, s, order);
  order = attention_order(s, s.groups(), kRows);
  shape.grid = blocks_for(int64_t{order.tiles} * order.pairs, 1);
  shape.name = "attention_tiles_backward_kv";
  shape.shared_bytes = kTiles + 2 * Pass::kRows * sizeof(QueryRow);
  launch(key_gradient<kHalf, kD, kMask>, shape, stream, s, order);
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

void attention_backward_by_tiles(Stream& stream, const AttentionShapes& s) {
  const auto run =
      s.qkv.type == DType::fp16 ? start_by_mask<DType::fp16> : start_by_mask<DType::bf16>;
  run(stream, s);
}

}  // namespace espalier::kernels::ESPALIER_GPU
