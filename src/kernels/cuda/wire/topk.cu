// The top-k codec, one block per bucket.
//
// - The kept-th largest magnitude is found digit by digit (11, 10 and 10 bits): shared memory
//   counts the values with each digit, among those with the digits already found.
// - Kept values are then written in order. The index of a value is the number of kept values before
//   it: a thread has eight neighbours of a tile, and a scan counts those of earlier threads.
#include "src/kernels/cuda/simt/reduce.h"
#include "src/kernels/cuda/wire/message.h"

namespace espalier::kernels::ESPALIER_GPU {
namespace {

using wire::Topk;

constexpr unsigned kThreads = 1024;
constexpr int kDigits = 2048;  ///< upper bound
constexpr int kTile = 8;       ///< values per thread

struct Bucket {
  float* x;
  std::byte* wire;
  int64_t n, kept;
  bool whole;  ///< all quads are aligned
  __device__ explicit Bucket(const Message& message) {
    const int64_t first = blockIdx.x * message.bucket;
    x = message.x + first;
    wire = message.carried_by(blockIdx.x);
    n = least(message.bucket, message.n - first);
    kept = least(message.format.kept, n);
    whole = aligned(x, 16);
  }
};

__device__ __forceinline__ uint32_t magnitude_bits(float x) {
  return __float_as_uint(x) & 0x7fffffffU;
}

/// Calls visit(value, there) for the thread's values; loads several quads at a time.
template <class Visit>
__device__ __forceinline__ void for_values(const Bucket& bucket, const Visit& visit) {
  constexpr int kTogether = 4;
  const int64_t step = 4 * int64_t{blockDim.x};
  for (int64_t first = 4 * int64_t{threadIdx.x}; first < bucket.n; first += kTogether * step) {
    Quad q[kTogether];
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      const int64_t i = first + j * step;
      q[j] = i + 4 <= bucket.n && bucket.whole ? load_quad<true>(bucket.x, i, 4)
                                               : load_quad(bucket.x, i, bucket.n - i);
    }
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        visit(q[j].x[k], first + j * step + k < bucket.n);
      }
    }
  }
}

/// Inclusive prefix sum over the threads of the block.
__device__ int sum_up_to(int value) {
  const auto lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
  for (int lanes = 1; lanes < 32; lanes *= 2) {
    const int before = __shfl_up_sync(kAllLanes, value, lanes);
    value += lane >= lanes ? before : 0;
  }
  __shared__ int of_warp[32];
  __syncthreads();  // of_warp may still be in use by the previous call
  if (lane == 31) {
    of_warp[threadIdx.x / 32] = value;
  }
  __syncthreads();
  const int warp = static_cast<int>(threadIdx.x / 32);
  return value + warp_sum(lane < warp ? of_warp[lane] : 0);
}

/// Considers the magnitudes whose bits from `shift + bits` up equal `above`. Returns the `bits`-bit
/// digit of the wanted-th largest; `wanted` becomes its rank among those with that digit. Called by
/// the block.
__device__ uint32_t digit_of(const Bucket& bucket, uint32_t above, int shift, int bits,
                             int& wanted) {
  __shared__ int count[kDigits];
  __shared__ int found[2];
  const int digits = 1 << bits;
  for (int i = static_cast<int>(threadIdx.x); i < digits; i += static_cast<int>(blockDim.x)) {
    count[i] = 0;
  }
  __syncthreads();
  for_values(bucket, [&](float x, bool there) {
    const uint32_t magnitude = magnitude_bits(x);
    if (there && magnitude >> (shift + bits) == above) {
      atomicAdd(&count[magnitude >> shift & static_cast<uint32_t>(digits - 1)], 1);
    }
  });
  __syncthreads();
  // Each thread counts neighbouring digits, from the largest down; together they cover all digits.
  const int each = (digits + static_cast<int>(blockDim.x) - 1) / static_cast<int>(blockDim.x);
  const int first = digits - 1 - each * static_cast<int>(threadIdx.x);
  int own = 0;
  for (int digit = first; digit > first - each && digit >= 0; --digit) {
    own += count[digit];
  }
  int before = sum_up_to(own) - own;
  for (int digit = first; digit > first - each && digit >= 0; --digit) {
    if (before < wanted && wanted <= before + count[digit]) {
      found[0] = digit;
      found[1] = wanted - before;
    }
    before += count[digit];
  }
  __syncthreads();
  const auto digit = static_cast<uint32_t>(found[0]);
  wanted = found[1];
  __syncthreads();  // the next call writes count and found
  return digit;
}

/// Kept are the magnitudes above `bits`, and the first `ties` of those equal to it.
struct Threshold {
  uint32_t bits = 0;
  int ties = 0;
};
/// Requires kept > 0.
__device__ Threshold threshold_of(const Bucket& bucket) {
  int wanted = static_cast<int>(bucket.kept);
  const uint32_t high = digit_of(bucket, 0, 20, 11, wanted);
  const uint32_t middle = digit_of(bucket, high, 10, 10, wanted);
  const uint32_t low = digit_of(bucket, high << 10 | middle, 0, 10, wanted);
  return {high << 20 | middle << 10 | low, wanted};
}

__device__ void write_kept(const Bucket& bucket, const Threshold& threshold) {
  const int64_t tile = kTile * int64_t{blockDim.x};
  __shared__ int all;
  int above = 0;  // count of the tiles before
  int equal = 0;
  for (int64_t begin = 0; begin < bucket.n; begin += tile) {
    const int64_t first = begin + kTile * int64_t{threadIdx.x};
    Quad q[2];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      q[j] = load_quad(bucket.x, first + 4 * j, bucket.n - first - 4 * j);
    }
    const auto is = [&](int k) {  // 1: above; 65,536: equal
      const uint32_t magnitude = magnitude_bits(q[k / 4].x[k % 4]);
      const int equals = magnitude == threshold.bits ? 1 << 16 : 0;
      return first + k >= bucket.n ? 0 : magnitude > threshold.bits ? 1 : equals;
    };
    int own = 0;
#pragma unroll
    for (int k = 0; k < kTile; ++k) {
      own += is(k);
    }
    const int up_to = sum_up_to(own);
    if (threadIdx.x == blockDim.x - 1) {
      all = up_to;
    }
    int more = up_to - own;
#pragma unroll
    for (int k = 0; k < kTile; ++k) {
      const int equals = equal + (more >> 16);
      const int what = is(k);
      if (what == 1 || (what > 1 && equals < threshold.ties)) {
        const int ties = equals < threshold.ties ? equals : threshold.ties;
        put_word(bucket.wire + 4 * (above + (more & 0xffff) + ties),
                 Topk::entry(first + k, Topk::rounded_value(q[k / 4].x[k % 4])));
      }
      more += what;
    }
    __syncthreads();
    above += all & 0xffff;
    equal += all >> 16;
  }
}

__global__ void __launch_bounds__(kThreads) encode_largest(Message message) {
  const Bucket bucket(message);
  int largest = 0;
  for_values(bucket, [&](float x, bool) {
    const int magnitude = static_cast<int>(magnitude_bits(x));
    largest = magnitude > largest ? magnitude : largest;
  });
  const auto most_bits = static_cast<uint32_t>(block_max(largest, 0));
  if (most_bits < kInfiniteBits) {
    write_kept(bucket, threshold_of(bucket));
    return;
  }
  for (int64_t k = threadIdx.x; k < bucket.kept; k += blockDim.x) {
    put_word(bucket.wire + 4 * k, Topk::entry(k, Topk::kNaN));
  }
}

/// True if places ascend within the bucket and values are finite.
__device__ bool is_valid(const Bucket& bucket) {
  int wrong = 0;
  for (int64_t k = threadIdx.x; k < bucket.kept; k += blockDim.x) {
    const int before = k == 0 ? -1 : Topk::place_of(get_word(bucket.wire + 4 * (k - 1)));
    wrong += Topk::follows(get_word(bucket.wire + 4 * k), before, bucket.n) ? 0 : 1;
  }
  return block_sum(wrong) == 0;
}

__device__ void fill_bucket(const Bucket& bucket, float value) {
  const Quad q{{value, value, value, value}};
  for (int64_t i = 4 * int64_t{threadIdx.x}; i < bucket.n; i += 4 * int64_t{blockDim.x}) {
    if (bucket.whole && i + 4 <= bucket.n) {
      store_quad<true>(bucket.x, i, 4, q);
    } else {
      store_quad(bucket.x, i, bucket.n - i, q);
    }
  }
}

__global__ void __launch_bounds__(kThreads) decode_largest(Message message, bool accumulate) {
  const Bucket bucket(message);
  const bool valid = is_valid(bucket);
  if (!valid || !accumulate) {
    fill_bucket(bucket, valid ? 0.0F : not_a_number());
  }
  __syncthreads();
  for (int64_t k = threadIdx.x; valid && k < bucket.kept; k += blockDim.x) {
    const uint32_t entry = get_word(bucket.wire + 4 * k);
    float& y = bucket.x[Topk::place_of(entry)];
    const float value = Topk::value_of(entry);
    y = accumulate ? y + value : value;
  }
}

/// About 16 values per thread.
unsigned threads_for(const Message& message) {
  return threads_for_row(divide_up(message.bucket, 4), kThreads);
}

}  // namespace

template <>
void encode_whole<Topk>(Stream& stream, const Message& message, const EncodeArgs&) {
  launch(encode_largest,
         {.name = "encode_topk",
          .grid = blocks_for(message.buckets, 1),
          .block = threads_for(message)},
         stream, message);
}

template <>
void decode_whole<Topk>(Stream& stream, const Message& message, bool accumulate) {
  launch(decode_largest,
         {.name = "decode_topk",
          .grid = blocks_for(message.buckets, 1),
          .block = threads_for(message)},
         stream, message, accumulate);
}

}  // namespace espalier::kernels::ESPALIER_GPU
