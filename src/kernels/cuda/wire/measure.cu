// Computes the carried bytes of buckets. A warp measures a bucket, or a part of 4,096 values of a
// larger one. One thread then computes the carried bytes from all parts. The double sum of `sign`
// has the CPU's order of additions: 16 sums side by side, over the whole bucket if the CPU measures
// it whole.
#include "src/kernels/cuda/simt/reduce.h"
#include "src/kernels/cuda/wire/message.h"

namespace espalier::kernels::ESPALIER_GPU {
namespace {

using wire::Percentiles;

constexpr unsigned kWarps = 8;
constexpr int64_t kPart = 4096;
constexpr int64_t kLargeUnit = 65536;  ///< values; the CPU measures larger buckets in parts

/// True if the carried bytes are a table from sorted values.
template <class Codec>
constexpr bool kIsTable = std::is_same_v<Codec, Percentiles>;

struct Parts {
  Message message;
  Measured* found;  ///< [buckets, parts]; null: one part, whose warp also writes the carried bytes
  int64_t parts;
  bool whole;  ///< parts begin at aligned quads
};

/// Measurements of one lane.
struct Extremes {
  uint32_t largest = 0;  ///< twice the bits of a magnitude
  int32_t low = INT32_MAX, high = INT32_MIN;
};

__device__ __forceinline__ void add_magnitude(Extremes& found, float x) {
  const uint32_t twice = __float_as_uint(x) << 1;
  found.largest = twice > found.largest ? twice : found.largest;
}
__device__ __forceinline__ void add_ordered(Extremes& found, float x) {
  const int32_t ordered = wire::ordered_bits(__float_as_int(x));
  found.low = ordered < found.low ? ordered : found.low;
  found.high = ordered > found.high ? ordered : found.high;
}

/// Called by a warp; each lane returns the extremes of its own values. kRange: least and largest
/// value; otherwise the largest magnitude.
template <bool kRange>
__device__ __forceinline__ Extremes extremes_of(const float* x, int64_t n, bool whole) {
  constexpr int kTogether = 4;  // quads that a lane loads at a time
  Extremes found;
  const auto add = [&](float value) {
    if constexpr (kRange) {
      add_ordered(found, value);
    } else {
      add_magnitude(found, value);
    }
  };
  int64_t i = 4 * (threadIdx.x % 32);
  for (; whole && i + 128 * (kTogether - 1) < n / 4 * 4; i += 128 * kTogether) {
    Quad q[kTogether];
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      q[j] = load_quad<true>(x, i + 128 * j, 4);
    }
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      add(q[j].x[0]);
      add(q[j].x[1]);
      add(q[j].x[2]);
      add(q[j].x[3]);
    }
  }
#pragma unroll 1
  for (; i < n; i += 128) {
    const int count = static_cast<int>(least(4, n - i));
    const Quad q = load_quad(x, i, count);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      add(q.x[k < count ? k : 0]);
    }
  }
  return found;
}

/// For `sign`. Lane j < 16 sums |x[j]|, |x[j + 16]|, …; all lanes receive the sum of those 16,
/// added in order. Each lane loads values of rows of 32; a shuffle moves the upper half to lanes
/// below 16.
__device__ __forceinline__ Measured sum_of_magnitudes(const float* x, int64_t n) {
  constexpr int kTogether = 8;
  const int64_t lane = threadIdx.x % 32;
  Extremes found;
  double own = 0;
  for (int64_t row = 0; row < n; row += 32 * kTogether) {
    float values[kTogether];
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      const int64_t i = row + 32 * j + lane;
      values[j] = i < n ? x[i] : 0.0F;
    }
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      add_magnitude(found, values[j]);
      own += fabsf(values[j]);
      own += fabsf(__shfl_down_sync(kAllLanes, values[j], 16));
    }
  }
  Measured made;
  made.largest = warp_max(static_cast<int32_t>(found.largest >> 1));
  for (int j = 0; j < 16; ++j) {
    made.sum += __shfl_sync(kAllLanes, own, j);
  }
  return made;
}

/// Called by a warp; every lane receives the result.
template <Find kFind>
__device__ __forceinline__ Measured measure(const float* x, int64_t n, bool whole) {
  if constexpr (kFind == Find::magnitudes) {
    return sum_of_magnitudes(x, n);
  }
  Measured made;
  if constexpr (kFind == Find::range) {
    const Extremes found = extremes_of<true>(x, n, whole);
    made.low = warp_min(found.low);
    made.high = warp_max(found.high);
  } else {
    made.largest = warp_max(static_cast<int32_t>(extremes_of<false>(x, n, whole).largest >> 1));
  }
  return made;
}

/// Writes the carried bytes of bucket `number`, which has n values. Called by one thread.
template <class Codec>
__device__ __forceinline__ void carry(const Message& message, const Measured& found, int64_t n,
                                      int64_t number) {
  const Carried carried = Codec::carry(message.format, found, n, *message.tables);
  std::byte* wire = message.carried_by(number);
  put_word(wire, carried.word[0]);
  if (message.carried >= 8) {
    put_word(wire + 4, carried.word[1]);
  }
}

/// Number of values of the part of bucket `number` that starts at value `begin`.
__device__ __forceinline__ int64_t part_length(const Parts& args, int64_t number, int64_t begin) {
  const int64_t end = least(args.message.n, (number + 1) * args.message.bucket);
  return least(args.parts == 1 ? args.message.bucket : kPart, end - begin);
}

template <class Codec>
__global__ void __launch_bounds__(32 * kWarps) measure_parts(Parts args) {
  const int64_t i = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (i >= args.message.buckets * args.parts) {
    return;
  }
  const int64_t number = quotient(i, args.parts);
  const int64_t begin = number * args.message.bucket + (i - number * args.parts) * kPart;
  const int64_t n = part_length(args, number, begin);
  const Measured found =
      n > 0 ? measure<Codec::kFind>(args.message.x + begin, n, args.whole) : Measured{};
  if (threadIdx.x % 32 != 0) {
    return;
  }
  if constexpr (!kIsTable<Codec>) {
    if (args.found == nullptr) {
      carry<Codec>(args.message, found, n, number);
      return;
    }
  }
  args.found[i] = found;
}

/// One warp per bucket.
template <class Codec>
__global__ void __launch_bounds__(32) carry_parts(Parts args) {
  const int64_t number = blockIdx.x;
  const Measured* parts = args.found + number * args.parts;
  Measured all;
  for (int64_t i = threadIdx.x; i < args.parts; i += 32) {
    all.largest = parts[i].largest > all.largest ? parts[i].largest : all.largest;
    all.low = parts[i].low < all.low ? parts[i].low : all.low;
    all.high = parts[i].high > all.high ? parts[i].high : all.high;
  }
  all.largest = warp_max(all.largest);
  all.low = warp_min(all.low);
  all.high = warp_max(all.high);
  if (threadIdx.x != 0) {
    return;
  }
  for (int64_t i = 0; i < args.parts && Codec::kFind == Find::magnitudes; ++i) {
    all.sum += parts[i].sum;
  }
  const int64_t begin = number * args.message.bucket;
  const int64_t n = least(args.message.n, begin + args.message.bucket) - begin;
  carry<Codec>(args.message, all, n, number);
}

/// Sorts in ascending order; `size` is a power of two.
__device__ void sort_block(uint32_t* keys, int size) {
  for (int run = 2; run <= size; run *= 2) {
    for (int step = run / 2; step > 0; step /= 2) {
      __syncthreads();
      for (int i = static_cast<int>(threadIdx.x); i < size / 2; i += static_cast<int>(blockDim.x)) {
        const int low = i / step * 2 * step + i % step;
        const int high = low + step;
        const bool ascends = (low & run) == 0;
        const uint32_t a = keys[low];
        const uint32_t b = keys[high];
        keys[low] = (a < b) == ascends ? a : b;
        keys[high] = (a < b) == ascends ? b : a;
      }
    }
  }
  __syncthreads();
}

/// Percentiles of the magnitudes, of at most 2,048 of them. One block per bucket.
__global__ void __launch_bounds__(256) carry_percentiles(Parts args, int size) {
  const Message& message = args.message;
  auto* keys = dynamic_shared<uint32_t>();
  const int64_t begin = blockIdx.x * message.bucket;
  const int64_t n = least(message.n, begin + message.bucket) - begin;
  const float* x = message.x + begin;
  std::byte* wire = message.carried_by(blockIdx.x);
  const int64_t count = int64_t{1} << (message.format.bits - 1);
  const Measured* found = args.found + blockIdx.x * args.parts;
  int largest = 0;
  for (int64_t i = threadIdx.x; i < args.parts; i += blockDim.x) {
    largest = found[i].largest > largest ? found[i].largest : largest;
  }
  const bool bad = static_cast<uint32_t>(block_max(largest, 0)) >= kInfiniteBits;
  const int64_t stride = Percentiles::stride_of(n);
  const int64_t taken = (n + stride - 1) / stride;
  for (int64_t i = threadIdx.x; i < size; i += blockDim.x) {
    keys[i] = i < taken ? __float_as_uint(x[i * stride]) & 0x7fffffffU : 0xffffffffU;
  }
  sort_block(keys, size);
  for (int64_t k = threadIdx.x; k < count; k += blockDim.x) {
    put_word(wire + 4 * k, bad ? kNaNBits : keys[Percentiles::place_of(k + 1, taken, count)]);
  }
}

/// Size of the array to sort, a power of two.
int numbers_of(int64_t bucket) {
  int size = 1;
  while (size < bucket && size < Percentiles::kMaxNumbers) {
    size *= 2;
  }
  return size;
}

template <class Codec>
void carry_all(Stream& stream, const Parts& parts) {
  const unsigned buckets = blocks_for(parts.message.buckets, 1);
  if constexpr (kIsTable<Codec>) {
    const int size = numbers_of(parts.message.bucket);
    launch(carry_percentiles,
           {.name = "carry_percentiles",
            .grid = buckets,
            .block = size > 64 ? 256U : 32U,
            .shared_bytes = static_cast<size_t>(size) * sizeof(uint32_t)},
           stream, parts, size);
  } else {
    launch(carry_parts<Codec>, {.name = "carry_buckets", .grid = buckets, .block = 32}, stream,
           parts);
  }
}

template <class Codec>
void measure_as(Stream& stream, const Message& message) {
  const int64_t bucket = message.bucket;
  const int64_t unit = bucket == message.n || bucket % 8 == 0 ? bucket : 8 * bucket;
  const bool whole = Codec::kFind == Find::magnitudes && unit <= kLargeUnit;
  Parts parts{message, nullptr, whole ? 1 : divide_up(bucket, kPart),
              has_whole_quads(message.x) && (message.buckets == 1 || bucket % 4 == 0)};
  const int64_t all = message.buckets * parts.parts;
  const bool carries_at_once = parts.parts == 1 && !kIsTable<Codec>;
  if (!carries_at_once) {
    parts.found =
        reinterpret_cast<Measured*>(stream.workspace(static_cast<size_t>(all) * sizeof(Measured)));
  }
  launch(measure_parts<Codec>,
         {.name = "measure_buckets", .grid = blocks_for(all, kWarps), .block = 32 * kWarps}, stream,
         parts);
  if (!carries_at_once) {
    carry_all<Codec>(stream, parts);
  }
}

}  // namespace

#define ESPALIER_WIRE_MEASURE(code, Codec)                                     \
  template <>                                                                  \
  void measure_buckets<wire::Codec>(Stream & stream, const Message& message) { \
    if constexpr (wire::Codec::kEntry.form == WireForm::codes) {               \
      measure_as<wire::Codec>(stream, message);                                \
    }                                                                          \
  }
ESPALIER_WIRE_CODECS(ESPALIER_WIRE_MEASURE)
#undef ESPALIER_WIRE_MEASURE

}  // namespace espalier::kernels::ESPALIER_GPU
