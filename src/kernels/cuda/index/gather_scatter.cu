// Gather and scatter. A bitmap is read in tiles of 2,048 dense elements: one tile per warp, 64
// elements per lane.
//
// - The places of a tile's kept elements are listed in order in shared memory. So kept elements are
//   spread evenly over the lanes. Each lane issues several loads before it uses the first.
// - Scatter assembles a tile in shared memory and stores it 16 bytes per lane.
// - A list already contains the places.
#include "src/kernels/cuda/index/positions.h"

#include "src/kernels/cuda/simt/reduce.h"
#include "src/kernels/cuda/table.h"

namespace espalier::kernels::ESPALIER_GPU {
namespace {

constexpr unsigned kWarps = 4;
constexpr int64_t kGroup = 512;  ///< dense elements per prefix count
constexpr int64_t kTile = 2048;
constexpr int kTogether = 8;          ///< kept elements that a thread loads at a time
constexpr int64_t kListBlock = 2048;  ///< kept elements of a block
constexpr unsigned kListThreads = 256;

/// A gather or scatter between dense and kept elements.
struct BitmapMove {
  Elements dense, packed;
  const uint64_t* bitmap;
  const uint32_t* prefix_counts;
  int64_t size;
  bool flag;  ///< gather: add to the previous values; scatter: dense is aligned to 16 bytes
};

/// Division of elements among threads: each thread has element `own` of every `all`.
struct Turn {
  int own, all;
};

__device__ __forceinline__ float value_of(DType type, uint32_t bits) {
  return type == DType::fp32 ? __uint_as_float(bits) : from_half(type, bits);
}

/// bits[j] = bits of element index(j) if `wanted(j)`, else 0. All loads are issued together.
template <class Index, class Wanted>
__device__ __forceinline__ void load_bits(const Elements& e, uint32_t (&bits)[kTogether],
                                          const Index& index, const Wanted& wanted) {
  if (e.half()) {
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      bits[j] = wanted(j) ? static_cast<const uint16_t*>(e.data)[index(j)] : 0U;
    }
  } else {
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      bits[j] = wanted(j) ? static_cast<const uint32_t*>(e.data)[index(j)] : 0U;
    }
  }
}

/// packed[k] (+)= dense[place(k)] for k < count.
template <class Place>
__device__ __forceinline__ void gather_kept(const Elements& dense, const Elements& packed,
                                            bool accumulate, Turn turn, int count,
                                            const Place& place) {
  for (int first = turn.own; first < count; first += kTogether * turn.all) {
    const auto number = [&](int j) { return first + j * turn.all; };
    const auto wanted = [&](int j) { return number(j) < count; };
    int places[kTogether];
    uint32_t before[kTogether] = {};
    uint32_t bits[kTogether];
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      places[j] = wanted(j) ? place(number(j)) : 0;
    }
    if (accumulate) {
      load_bits(packed, before, number, wanted);
    }
    load_bits(
        dense, bits, [&](int j) { return places[j]; }, wanted);
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      if (wanted(j)) {
        const float old = accumulate ? value_of(packed.type, before[j]) : 0.0F;
        store(packed, number(j), value_of(dense.type, bits[j]) + old);
      }
    }
  }
}

/// dense[place(k)] = packed[k] for k < count.
template <class Place>
__device__ __forceinline__ void scatter_kept(const Elements& packed, const Elements& dense,
                                             Turn turn, int count, const Place& place) {
  for (int first = turn.own; first < count; first += kTogether * turn.all) {
    const auto number = [&](int j) { return first + j * turn.all; };
    const auto wanted = [&](int j) { return number(j) < count; };
    int places[kTogether];
    uint32_t bits[kTogether];
    load_bits(packed, bits, number, wanted);
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      places[j] = wanted(j) ? place(number(j)) : 0;
    }
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      if (wanted(j)) {
        store(dense, places[j], value_of(packed.type, bits[j]));
      }
    }
  }
}

/// The part of the dense elements that a warp processes.
struct Tile {
  int64_t dense = 0;   ///< index of its first element
  int64_t packed = 0;  ///< number of its first kept element
  int kept = 0;
};

/// to[k] = first + place of the k-th bit; returns the address after the last.
__device__ __forceinline__ uint16_t* list_bits(uint32_t bits, int first, uint16_t* to) {
  while (bits != 0) {
    const uint32_t lowest = bits & (0U - bits);
    *to++ = static_cast<uint16_t>(first + 31 - __clz(static_cast<int>(lowest)));
    bits ^= lowest;
  }
  return to;
}

/// places[k] = place of kept element k in the tile. Called by whole warps.
__device__ __forceinline__ Tile read_tile(const BitmapMove& args, int64_t dense, uint16_t* places) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int first = 64 * lane;
  const int size = static_cast<int>(least(kTile, args.size - dense));
  uint64_t bits = first < size ? args.bitmap[dense / 64 + lane] : 0;
  const uint32_t prefix = args.prefix_counts[dense / kGroup];
  const uint32_t first_prefix = args.prefix_counts[0];
  if (first < size && size - first < 64) {  // the bitmap may continue with another array's bits
    bits &= (uint64_t{1} << (size - first)) - 1;
  }
  const int count = __popcll(bits);
  int up_to = count;
#pragma unroll
  for (int lanes = 1; lanes < 32; lanes *= 2) {
    const int before = __shfl_up_sync(kAllLanes, up_to, lanes);
    up_to += lane >= lanes ? before : 0;
  }
  const int kept = __shfl_sync(kAllLanes, up_to, 31);
  uint16_t* const to = list_bits(static_cast<uint32_t>(bits), first, places + (up_to - count));
  list_bits(static_cast<uint32_t>(bits >> 32), first + 32, to);
  __syncwarp();
  return {dense, int64_t{prefix} - first_prefix, kept};
}

/// Calls body(first dense element of the warp, warp number in the block, turn) if the warp has
/// elements.
template <class Body>
__device__ __forceinline__ void for_tile(int64_t size, const Body& body) {
  const auto warp = static_cast<int>(threadIdx.x / 32);
  const int64_t dense = (int64_t{blockIdx.x} * kWarps + warp) * kTile;
  if (dense < size) {
    body(dense, warp, Turn{static_cast<int>(threadIdx.x % 32), 32});
  }
}

__global__ void __launch_bounds__(32 * kWarps) gather_bitmap(BitmapMove args) {
  __shared__ uint16_t places[kWarps][kTile];
  for_tile(args.size, [&](int64_t dense, int warp, Turn turn) {
    const Tile tile = read_tile(args, dense, places[warp]);
    gather_kept(elements_from(args.dense, tile.dense), elements_from(args.packed, tile.packed),
                args.flag, turn, tile.kept, [&](int k) { return int{places[warp][k]}; });
  });
}

__global__ void __launch_bounds__(32 * kWarps) scatter_bitmap(BitmapMove args) {
  __shared__ uint16_t places[kWarps][kTile];
  for_tile(args.size, [&](int64_t dense, int warp, Turn turn) {
    const int bytes = static_cast<int>(kTile) * args.dense.bytes_each();
    auto* const made = dynamic_shared<uint4>() + warp * (bytes / 16);
#pragma unroll 4
    for (int i = turn.own; i < bytes / 16; i += turn.all) {
      made[i] = make_uint4(0, 0, 0, 0);
    }
    const Tile tile = read_tile(args, dense, places[warp]);  // its barrier follows all the zeros
    scatter_kept(elements_from(args.packed, tile.packed), {made, args.dense.type}, turn, tile.kept,
                 [&](int k) { return int{places[warp][k]}; });
    __syncwarp();
    const Elements out = elements_from(args.dense, tile.dense);
    if (args.flag && args.size - dense >= kTile) {
#pragma unroll 4
      for (int i = turn.own; i < bytes / 16; i += turn.all) {
        static_cast<uint4*>(out.data)[i] = made[i];
      }
      return;
    }
    const Elements in{made, args.dense.type};
    for (int64_t i = turn.own; i < least(kTile, args.size - dense); i += turn.all) {
      store(out, i, load(in, i));
    }
  });
}

__global__ void __launch_bounds__(32 * kWarps) write_bitmap(BitmapMove args) {
  __shared__ uint16_t places[kWarps][kTile];
  for_tile(args.size, [&](int64_t dense, int warp, Turn turn) {
    const Tile tile = read_tile(args, dense, places[warp]);
    scatter_kept(elements_from(args.packed, tile.packed), elements_from(args.dense, tile.dense),
                 turn, tile.kept, [&](int k) { return int{places[warp][k]}; });
  });
}

__global__ void __launch_bounds__(32 * kWarps) write_list(BitmapMove args, int32_t* list) {
  __shared__ uint16_t places[kWarps][kTile];
  for_tile(args.size, [&](int64_t dense, int warp, Turn turn) {
    const Tile tile = read_tile(args, dense, places[warp]);
    for (int k = turn.own; k < tile.kept; k += turn.all) {
      list[tile.packed + k] = static_cast<int32_t>(dense) + places[warp][k];
    }
  });
}

__device__ __forceinline__ Turn turn_in_block() {
  return {static_cast<int>(threadIdx.x), static_cast<int>(kListThreads)};
}

__global__ void __launch_bounds__(kListThreads)
    gather_list(Elements dense, Elements packed, Positions positions, bool accumulate) {
  const int64_t first = blockIdx.x * kListBlock;
  const int32_t* list = positions.list + first;
  const auto base = static_cast<int32_t>(positions.first);
  gather_kept(dense, elements_from(packed, first), accumulate, turn_in_block(),
              static_cast<int>(least(kListBlock, positions.count - first)),
              [&](int k) { return list[k] - base; });
}

/// Block i processes kept elements [i, i + 1) kListBlock, and the dense elements from its first
/// kept one to the next block's first. It zeroes the dense elements, then writes the kept ones
/// while they are in the L2 cache. `whole`: dense has whole quads.
__global__ void __launch_bounds__(kListThreads)
    scatter_list(Elements packed, Elements dense, Positions positions, bool whole) {
  const int64_t first = blockIdx.x * kListBlock;
  const int64_t end = least(positions.count, first + kListBlock);
  const int32_t* list = positions.list + first;
  const auto base = static_cast<int32_t>(positions.first);
  const int64_t dense_first = first == 0 ? 0 : list[0] - base;
  const int64_t dense_end = end == positions.count ? positions.size : list[end - first] - base;
  // These quads are aligned for any first element.
  for (int64_t i = dense_first / 4 * 4 + 4 * int64_t{threadIdx.x}; i < dense_end;
       i += 4 * int64_t{kListThreads}) {
    if (whole && i >= dense_first && i + 4 <= dense_end) {
      store_quad<true>(dense, i, 4, Quad{});
    } else {
      const int64_t from = most(i, dense_first);
      store_quad(dense, from, least(dense_end, i + 4) - from, Quad{});
    }
  }
  __syncthreads();
  scatter_kept(elements_from(packed, first), dense, turn_in_block(), static_cast<int>(end - first),
               [&](int k) { return list[k] - base; });
}

Launch tiles(const char* name, int64_t size, size_t shared_bytes = 0) {
  return {.name = name,
          .grid = blocks_for(size, kWarps * kTile),
          .block = 32 * kWarps,
          .shared_bytes = shared_bytes};
}

}  // namespace

void list_bitmap(Stream& stream, const Positions& positions, int32_t* list) {
  const BitmapMove all{{}, {}, positions.bitmap, positions.prefix_counts, positions.size, false};
  launch(write_list, tiles("list_bitmap", positions.size), stream, all, list);
}

void write_kept(Stream& stream, const Tensor& packed, const Tensor& dense,
                const Positions& positions) {
  const BitmapMove move{elements(dense),         elements(packed), positions.bitmap,
                        positions.prefix_counts, positions.size,   false};
  launch(write_bitmap, tiles("write_kept", positions.size), stream, move);
}

void gather(Stream& stream, const GatherArgs& args) {
  const Positions& p = args.positions;
  if (p.bitmap != nullptr) {
    const BitmapMove move{
        elements(args.dense), elements(args.packed), p.bitmap, p.prefix_counts, p.size,
        args.accumulate};
    launch(gather_bitmap, tiles("gather", p.size), stream, move);
  } else if (p.list != nullptr) {
    launch(gather_list,
           {.name = "gather", .grid = blocks_for(p.count, kListBlock), .block = kListThreads},
           stream, elements(args.dense), elements(args.packed), p, args.accumulate);
  } else if (p.count > 0) {
    cast(stream, {args.dense, args.packed, args.accumulate});
  }
}

void scatter(Stream& stream, const ScatterArgs& args) {
  const Positions& p = args.positions;
  const Elements dense = elements(args.dense);
  if (p.bitmap != nullptr) {
    const bool aligned = reinterpret_cast<uintptr_t>(dense.data) % 16 == 0;
    const BitmapMove move{dense, elements(args.packed), p.bitmap, p.prefix_counts, p.size, aligned};
    const auto bytes = static_cast<size_t>(kTile) * static_cast<size_t>(dense.bytes_each());
    launch(scatter_bitmap, tiles("scatter", p.size, kWarps * bytes), stream, move);
  } else if (p.count == 0) {
    fill(stream, {args.dense, 0});
  } else if (p.list != nullptr) {
    launch(scatter_list,
           {.name = "scatter", .grid = blocks_for(p.count, kListBlock), .block = kListThreads},
           stream, elements(args.packed), dense, p, has_whole_quads(dense));
  } else {
    cast(stream, {args.packed, args.dense});
  }
}

}  // namespace espalier::kernels::ESPALIER_GPU
