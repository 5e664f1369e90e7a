// Gather and scatter. A list of positions is read by quads. A bitmap is read by groups of 512
// elements, for each of which a rank is stored: a warp a group, a quad of dense elements a lane,
// and a quad's place among the kept ones is its rank plus the bits before it.
#include "src/kernels/cuda/index.h"

#include "src/kernels/cuda/elementwise.h"
#include "src/kernels/cuda/table.h"
#include "src/kernels/verify.h"

namespace espalier::kernels::ESPALIER_GPU {
namespace {

constexpr unsigned kWarps = 8;
constexpr int64_t kGroup = 512;

struct ListGather {
  Elements dense, packed;
  const int32_t* list;
  int64_t base;
  bool accumulate;

  bool aligned() const { return has_whole_quads(packed) && has_whole_quads(list); }
  struct Loaded {
    Quad dense, packed;
  };
  template <bool kWhole>
  __device__ __forceinline__ Loaded load(int64_t i, int64_t count) const {
    const Places places = load_places<kWhole>(list, i, count);
    Loaded made{{}, accumulate ? load_quad<kWhole>(packed, i, count) : Quad{}};
    for (int k = 0; k < 4; ++k) {
      made.dense.x[k] =
          k < count ? espalier::kernels::ESPALIER_GPU::load(dense, places.at[k] - base) : 0.0F;
    }
    return made;
  }
  template <bool kWhole>
  __device__ __forceinline__ void store(int64_t i, int64_t count, const Loaded& from) const {
    Quad sum = from.packed;
    for (int k = 0; k < 4; ++k) {
      sum.x[k] += from.dense.x[k];
    }
    store_quad<kWhole>(packed, i, count, sum);
  }
};

/// One side of a move between dense and kept elements.
struct BitmapMove {
  Elements dense, packed;
  const uint64_t* bitmap;
  const uint32_t* ranks;
  int64_t size;
  bool flag;  ///< gather: add to what is there; scatter: pruned elements become zero
};

/// Four dense elements, from `dense` on: which are kept, and the place of the first of those.
struct Four {
  int64_t dense, count;  ///< count <= 0: beyond the end
  unsigned kept;
  int64_t place;
};

/// visit(four) for this lane's quads of a warp's group.
template <class Visit>
__device__ __forceinline__ void for_group(const BitmapMove& args, const Visit& visit) {
  const int64_t group = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  const int64_t words = (args.size + 63) / 64;
  const unsigned lane = threadIdx.x % 32;
  if (group * kGroup >= args.size) {
    return;
  }
  int64_t before = args.ranks[group] - args.ranks[0];
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    const int64_t word = 8 * group + 2 * step;
    const uint64_t low = word < words ? args.bitmap[word] : 0;
    const uint64_t high = word + 1 < words ? args.bitmap[word + 1] : 0;
    const unsigned shift = lane % 16 * 4;
    const uint64_t own = lane < 16 ? low : high;
    Four four{.dense = 64 * word + 4 * lane, .count = 0, .kept = 0, .place = before};
    four.count = args.size - four.dense;
    four.kept = static_cast<unsigned>(own >> shift) & 15U;
    if (four.count < 4) {  // the bitmap may go on with what is another array's
      four.kept &= four.count > 0 ? (1U << four.count) - 1 : 0U;
    }
    four.place += __popcll(own & ((uint64_t{1} << shift) - 1)) + (lane < 16 ? 0 : __popcll(low));
    before += __popcll(low) + __popcll(high);
    visit(four);
  }
}

__global__ void __launch_bounds__(32 * kWarps) gather_bitmap(BitmapMove args) {
  for_group(args, [&](const Four& four) {
    const Quad q = four.kept != 0 ? load_quad(args.dense, four.dense, four.count) : Quad{};
    int64_t place = four.place;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if ((four.kept >> k & 1U) != 0) {
        store(args.packed, place, q.x[k] + (args.flag ? load(args.packed, place) : 0.0F));
        ++place;
      }
    }
  });
}

__global__ void __launch_bounds__(32 * kWarps) scatter_bitmap(BitmapMove args) {
  for_group(args, [&](const Four& four) {
    Quad q{};
    int64_t place = four.place;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if ((four.kept >> k & 1U) != 0) {
        q.x[k] = load(args.packed, place++);
      }
    }
    if (args.flag || four.kept == 15U) {
      store_quad(args.dense, four.dense, four.count, q);
      return;
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if ((four.kept >> k & 1U) != 0) {
        store(args.dense, four.dense + k, q.x[k]);
      }
    }
  });
}

__global__ void __launch_bounds__(32 * kWarps) write_list(BitmapMove args, int32_t* list) {
  for_group(args, [&](const Four& four) {
    int64_t place = four.place;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if ((four.kept >> k & 1U) != 0) {
        list[place++] = static_cast<int32_t>(four.dense + k);
      }
    }
  });
}

constexpr int64_t kListBlock = 2048;

/// Block i has kept elements [i, i + 1) kListBlock and the dense ones from its first on to the next
/// block's first: zeroed, then written while they are in the L2 cache.
__global__ void __launch_bounds__(256)
    scatter_list(Elements packed, Elements dense, Positions positions) {
  const int64_t first = blockIdx.x * kListBlock;
  const int64_t end = least(positions.count, first + kListBlock);
  const int64_t base = positions.first;
  const int64_t dense_first = first == 0 ? 0 : positions.list[first] - base;
  const int64_t dense_end = end == positions.count ? positions.size : positions.list[end] - base;
  // Quads that are aligned whatever the first element is.
  for (int64_t i = dense_first / 4 * 4 + 4 * int64_t{threadIdx.x}; i < dense_end;
       i += 4 * int64_t{blockDim.x}) {
    const int64_t from = most(i, dense_first);
    store_quad(dense, from, least(dense_end, i + 4) - from, Quad{});
  }
  __syncthreads();
  for (int64_t i = first + 4 * int64_t{threadIdx.x}; i < end; i += 4 * int64_t{blockDim.x}) {
    const int64_t count = least(4, end - i);
    const Places places = load_places(positions.list, i, count);
    const Quad q = load_quad(packed, i, count);
    for (int k = 0; k < count; ++k) {
      store(dense, places.at[k] - base, q.x[k]);
    }
  }
}

void move_bitmap(Stream& stream, void (*kernel)(BitmapMove), const char* name,
                 const BitmapMove& move) {
  launch(kernel,
         {.name = name, .grid = blocks_for(move.size, kWarps * kGroup), .block = 32 * kWarps},
         stream, move);
}

}  // namespace

void list_bitmap(Stream& stream, const Positions& positions, int32_t* list) {
  const BitmapMove all{{}, {}, positions.bitmap, positions.ranks, positions.size, false};
  launch(write_list,
         {.name = "list_bitmap",
          .grid = blocks_for(positions.size, kWarps * kGroup),
          .block = 32 * kWarps},
         stream, all, list);
}

void write_kept(Stream& stream, const Tensor& packed, const Tensor& dense,
                const Positions& positions) {
  move_bitmap(stream, scatter_bitmap, "write_kept",
              {elements(dense), elements(packed), positions.bitmap, positions.ranks, positions.size,
               false});
}

void gather(Stream& stream, const GatherArgs& args) {
  verify(args);
  const Positions& p = args.positions;
  if (p.bitmap != nullptr) {
    move_bitmap(
        stream, gather_bitmap, "gather",
        {elements(args.dense), elements(args.packed), p.bitmap, p.ranks, p.size, args.accumulate});
  } else if (p.list != nullptr) {
    const ListGather move{elements(args.dense), elements(args.packed), p.list, p.first,
                          args.accumulate};
    for_each_quad("gather", stream, move, p.count);
  } else if (p.count > 0) {
    cast(stream, {args.dense, args.packed, args.accumulate});
  }
}

void scatter(Stream& stream, const ScatterArgs& args) {
  verify(args);
  const Positions& p = args.positions;
  if (p.bitmap != nullptr) {
    move_bitmap(stream, scatter_bitmap, "scatter",
                {elements(args.dense), elements(args.packed), p.bitmap, p.ranks, p.size, true});
  } else if (p.count == 0) {
    fill(stream, {args.dense, 0});
  } else if (p.list != nullptr) {
    launch(scatter_list, {.name = "scatter", .grid = blocks_for(p.count, kListBlock)}, stream,
           elements(args.packed), elements(args.dense), p);
  } else {
    cast(stream, {args.packed, args.dense});
  }
}

}  // namespace espalier::kernels::ESPALIER_GPU
