// A block a bucket. The kept-th largest magnitude is found bit by bit, as on the CPU: count what is
// not below a number, and keep its last bit if these are enough. Then values are written in their
// order: how many are kept before each is counted by votes.
#include "src/kernels/cuda/wire_topk.h"

#include "src/kernels/cuda/reduce.h"

namespace espalier::kernels::ESPALIER_GPU {
namespace {

constexpr unsigned kThreads = 256;
constexpr uint16_t kNaN16 = 0x7fc0;
constexpr uint16_t kLargest16 = 0x7f7f;

struct Bucket {
  float* x;
  std::byte* wire;
  int64_t n, kept;
  __device__ explicit Bucket(const Message& message) {
    const int64_t first = blockIdx.x * message.bucket;
    x = message.x + first;
    wire = message.carried_by(blockIdx.x);
    n = least(message.bucket, message.n - first);
    kept = least(message.kept, n);
  }
};

__device__ __forceinline__ uint32_t magnitude_of(float x) {
  return __float_as_uint(x) & 0x7fffffffU;
}

/// By the block, as all functions here.
__device__ int count_from(const Bucket& bucket, uint32_t bits) {
  int count = 0;
  for (int64_t i = threadIdx.x; i < bucket.n; i += blockDim.x) {
    count += magnitude_of(bucket.x[i]) >= bits ? 1 : 0;
  }
  return block_sum(count);
}

/// Magnitudes above `bits` are kept, and the first `ties` of those that are equal.
struct Threshold {
  uint32_t bits = 0;
  int64_t ties = 0;
};
__device__ Threshold threshold_of(const Bucket& bucket, uint32_t largest) {
  Threshold found;
  int64_t present = bucket.n;  // magnitudes from found.bits up, at least `kept`
  for (int bit = 30; bit >= 0 && present > bucket.kept; --bit) {
    const uint32_t bits = found.bits | 1U << bit;
    const int count = bits > largest ? 0 : count_from(bucket, bits);
    if (count >= bucket.kept) {
      found.bits = bits;
      present = count;
    }
  }
  found.ties = present == bucket.kept ? bucket.n : bucket.kept - count_from(bucket, found.bits + 1);
  return found;
}

/// Of the threads before this one, how many have the flag; `all` of the block have it.
struct Counted {
  int before, all;
};
__device__ Counted count_flags(bool flag) {
  __shared__ int of_warp[32];
  const unsigned lane = threadIdx.x % 32;
  const unsigned votes = __ballot_sync(kAllLanes, flag ? 1 : 0);
  __syncthreads();  // of_warp may still be read from the last time
  if (lane == 0) {
    of_warp[threadIdx.x / 32] = __popc(votes);
  }
  __syncthreads();
  Counted made{__popc(votes & ((1U << lane) - 1)), 0};
  for (unsigned warp = 0; warp < blockDim.x / 32; ++warp) {
    made.before += warp < threadIdx.x / 32 ? of_warp[warp] : 0;
    made.all += of_warp[warp];
  }
  return made;
}

__device__ __forceinline__ void put(std::byte* wire, int64_t number, int64_t place,
                                    unsigned value) {
  put_half(wire + 4 * number, static_cast<unsigned>(place));
  put_half(wire + 4 * number + 2, value);
}

/// To nearest even, but no finite number becomes infinite.
__device__ __forceinline__ unsigned rounded(float x) {
  const unsigned bits = to_bf16_bits(x);
  return (bits & 0x7fffU) > kLargest16 ? kLargest16 | (bits & 0x8000U) : bits;
}

__device__ void write_kept(const Bucket& bucket, const Threshold& threshold) {
  int64_t written = 0;
  int64_t ties = 0;
  for (int64_t tile = 0; tile < bucket.n; tile += blockDim.x) {
    const int64_t i = tile + threadIdx.x;
    const float x = i < bucket.n ? bucket.x[i] : 0.0F;
    const uint32_t magnitude = magnitude_of(x);
    const bool equal = i < bucket.n && magnitude == threshold.bits;
    const Counted equals = count_flags(equal);
    const bool above = i < bucket.n && magnitude > threshold.bits;
    const bool keeps = above || (equal && ties + equals.before < threshold.ties);
    const Counted kept = count_flags(keeps);
    if (keeps) {
      put(bucket.wire, written + kept.before, i, rounded(x));
    }
    written += kept.all;
    ties += equals.all;
  }
}

__global__ void __launch_bounds__(kThreads) encode_largest(Message message) {
  const Bucket bucket(message);
  int largest = 0;
  for (int64_t i = threadIdx.x; i < bucket.n; i += blockDim.x) {
    const int magnitude = static_cast<int>(magnitude_of(bucket.x[i]));
    largest = magnitude > largest ? magnitude : largest;
  }
  const auto most_bits = static_cast<uint32_t>(block_max(largest, 0));
  if (most_bits < kInfinite) {
    write_kept(bucket, threshold_of(bucket, most_bits));
    return;
  }
  for (int64_t k = threadIdx.x; k < bucket.kept; k += blockDim.x) {
    put(bucket.wire, k, k, kNaN16);
  }
}

/// Places ascend within the bucket, values are finite.
__device__ bool sound(const Bucket& bucket) {
  int wrong = 0;
  for (int64_t k = threadIdx.x; k < bucket.kept; k += blockDim.x) {
    const int before = k == 0 ? -1 : get_half(bucket.wire + 4 * (k - 1));
    const int place = get_half(bucket.wire + 4 * k);
    const unsigned value = get_half(bucket.wire + 4 * k + 2);
    wrong += place <= before || place >= bucket.n || (value & 0x7fffU) > kLargest16 ? 1 : 0;
  }
  return block_sum(wrong) == 0;
}

__global__ void __launch_bounds__(kThreads) decode_largest(Message message, bool accumulate) {
  const Bucket bucket(message);
  const bool good = sound(bucket);
  if (!good || !accumulate) {
    const float fill = good ? 0.0F : not_a_number();
    for (int64_t i = threadIdx.x; i < bucket.n; i += blockDim.x) {
      bucket.x[i] = fill;
    }
  }
  __syncthreads();
  for (int64_t k = threadIdx.x; good && k < bucket.kept; k += blockDim.x) {
    float& y = bucket.x[get_half(bucket.wire + 4 * k)];
    const float value = from_bf16(get_half(bucket.wire + 4 * k + 2));
    y = accumulate ? y + value : value;
  }
}

}  // namespace

void encode_topk(Stream& stream, const Message& message) {
  launch(encode_largest,
         {.name = "encode_topk", .grid = blocks_for(message.buckets, 1), .block = kThreads}, stream,
         message);
}

void decode_topk(Stream& stream, const Message& message, bool accumulate) {
  launch(decode_largest,
         {.name = "decode_topk", .grid = blocks_for(message.buckets, 1), .block = kThreads}, stream,
         message, accumulate);
}

}  // namespace espalier::kernels::ESPALIER_GPU
