#include "src/kernels/cuda/simt/sort.h"

#include <bit>

#include "src/kernels/cuda/simt/reduce.h"

namespace espalier::kernels::ESPALIER_GPU {
namespace {

constexpr int kDigits = 256;
constexpr unsigned kWarps = 8;
constexpr int64_t kWarpRows = 256;
constexpr int64_t kTile = kWarps * kWarpRows;

struct Pass {
  const int32_t *ids, *rows;  ///< rows null: the first pass, in which row i is i
  int32_t *sorted, *places;   ///< ids and rows in the new order
  int32_t* counts;            ///< [kDigits, tiles]: counts, later the first place of each
  int64_t n, tiles;
  int32_t limit;
  int shift;

  __device__ int32_t id(int64_t i) const {
    const int32_t raw = ids[i];
    return raw < 0 || raw > limit ? limit : raw;
  }
  /// Returns kDigits for i beyond the end.
  __device__ int digit(int64_t i) const {
    return i < n ? static_cast<int>(static_cast<unsigned>(id(i)) >> shift) & (kDigits - 1)
                 : kDigits;
  }
};

__global__ void __launch_bounds__(32 * kWarps) count_digits(Pass pass) {
  __shared__ int count[kDigits];
  count[threadIdx.x] = 0;
  __syncthreads();
  for (int64_t i = threadIdx.x; i < kTile; i += blockDim.x) {
    const int digit = pass.digit(blockIdx.x * kTile + i);
    if (digit < kDigits) {
      atomicAdd(&count[digit], 1);
    }
  }
  __syncthreads();
  pass.counts[threadIdx.x * pass.tiles + blockIdx.x] = count[threadIdx.x];
}

/// Replaces each count by the sum of those before it (exclusive prefix sum). One block.
__global__ void __launch_bounds__(1024) sum_counts(int32_t* counts, int64_t n) {
  __shared__ int of_warp[32];
  const int64_t each = (n + blockDim.x - 1) / blockDim.x;
  const int64_t first = threadIdx.x * each;
  const int64_t end = least(n, first + each);
  int own = 0;
  for (int64_t i = first; i < end; ++i) {
    own += counts[i];
  }
  const unsigned lane = threadIdx.x % 32;
  int up_to = own;
  for (unsigned delta = 1; delta < 32; delta *= 2) {
    const int other = __shfl_up_sync(kAllLanes, up_to, delta);
    up_to += lane >= delta ? other : 0;
  }
  if (lane == 31) {
    of_warp[threadIdx.x / 32] = up_to;
  }
  __syncthreads();
  int before = up_to - own;
  for (unsigned warp = 0; warp < threadIdx.x / 32; ++warp) {
    before += of_warp[warp];
  }
  for (int64_t i = first; i < end; ++i) {
    const int count = counts[i];
    counts[i] = before;
    before += count;
  }
}

/// Lanes of this warp with the same digit.
struct Peers {
  unsigned mask;
  int before;   ///< number of peers in lower lanes
  bool leader;  ///< true if `before` is 0
};
__device__ __forceinline__ Peers peers_of(int digit) {
  const unsigned mask = __match_any_sync(kAllLanes, digit);
  const int before = __popc(mask & ((1U << threadIdx.x % 32) - 1));
  return {mask, before, before == 0};
}

__global__ void __launch_bounds__(32 * kWarps) place_rows(Pass pass) {
  __shared__ int next[kWarps][kDigits];
  const unsigned warp = threadIdx.x / 32;
  const int64_t first = blockIdx.x * kTile + warp * kWarpRows + threadIdx.x % 32;
  for (unsigned w = 0; w < kWarps; ++w) {
    next[w][threadIdx.x] = 0;
  }
  __syncthreads();
  for (int64_t i = 0; i < kWarpRows; i += 32) {
    const int digit = pass.digit(first + i);
    const Peers peers = peers_of(digit);
    if (digit < kDigits && peers.leader) {
      next[warp][digit] += __popc(peers.mask);
    }
    __syncwarp();
  }
  __syncthreads();
  int place = pass.counts[threadIdx.x * pass.tiles + blockIdx.x];
  for (unsigned w = 0; w < kWarps; ++w) {
    const int count = next[w][threadIdx.x];
    next[w][threadIdx.x] = place;
    place += count;
  }
  __syncthreads();
  for (int64_t i = 0; i < kWarpRows; i += 32) {
    const int64_t from = first + i;
    const int digit = pass.digit(from);
    const Peers peers = peers_of(digit);
    if (digit < kDigits) {
      const int to = next[warp][digit] + peers.before;
      pass.sorted[to] = pass.id(from);
      pass.places[to] = pass.rows == nullptr ? static_cast<int32_t>(from) : pass.rows[from];
    }
    __syncwarp();
    if (digit < kDigits && peers.leader) {
      next[warp][digit] += __popc(peers.mask);
    }
    __syncwarp();
  }
}

}  // namespace

size_t sort_bytes(int64_t n) {
  return static_cast<size_t>(4 * n + kDigits * divide_up(n, kTile)) * sizeof(int32_t);
}

SortedRows sort_rows(Stream& stream, const Tensor& ids, int64_t limit, std::byte* memory) {
  const int64_t n = ids.count();
  auto* arrays = reinterpret_cast<int32_t*>(memory);
  Pass pass{.ids = static_cast<const int32_t*>(ids.data),
            .rows = nullptr,
            .sorted = arrays,
            .places = arrays + n,
            .counts = arrays + 4 * n,
            .n = n,
            .tiles = divide_up(n, kTile),
            .limit = static_cast<int32_t>(limit),
            .shift = 0};
  const unsigned tiles = blocks_for(n, kTile);
  for (; n > 0 && (pass.shift == 0 || limit >> pass.shift > 0); pass.shift += 8) {
    const Launch shape{.name = "sort_rows", .grid = tiles, .block = 32 * kWarps};
    launch(count_digits, shape, stream, pass);
    launch(sum_counts, {.name = "sort_rows_sum", .block = 1024}, stream, pass.counts,
           kDigits * pass.tiles);
    launch(place_rows, shape, stream, pass);
    pass.ids = pass.sorted;
    pass.rows = pass.places;
    int32_t* const other = pass.sorted == arrays ? arrays + 2 * n : arrays;
    pass.sorted = other;
    pass.places = other + n;
  }
  return {pass.ids, pass.rows};
}

}  // namespace espalier::kernels::ESPALIER_GPU
