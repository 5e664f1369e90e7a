// The Eden codec: one block per bucket, in shared memory.
#include "src/kernels/cuda/simt/philox.h"
#include "src/kernels/cuda/simt/reduce.h"
#include "src/kernels/cuda/wire/message.h"
#include "src/kernels/cuda/wire/pack.h"

namespace espalier::kernels::ESPALIER_GPU {
namespace {

using wire::Eden;

constexpr int kThreads = Eden::kSums;
static_assert(Eden::kMaxBucket * sizeof(float) <= 32 << 10, "shared memory of any device");

struct Bucket {
  int64_t first;
  float* x;
  std::byte* wire;
  int n, p, bits;
  __device__ explicit Bucket(const Message& message) {
    first = blockIdx.x * message.bucket;
    x = message.x + first;
    wire = message.carried_by(blockIdx.x);
    n = static_cast<int>(least(message.bucket, message.n - first));
    p = 1;
    while (p < n) {
      p *= 2;
    }
    bits = message.format.bits;
  }
  __device__ std::byte* codes(int group) const { return wire + Eden::kHeader + group * bits; }
  /// Bytes of eight codes, or of all p if p < 8.
  __device__ int group_bytes() const { return p < 8 ? (p * bits + 7) / 8 : bits; }
};

/// Calls body(i, word of signs) for this thread's elements below n. 32 neighbours share one random
/// word.
template <class Body>
__device__ __forceinline__ void for_signs(uint32_t seed, int n, const Body& body) {
  for (int i = static_cast<int>(threadIdx.x); i < n; i += kThreads) {
    const Words words = philox_words(seed, static_cast<uint64_t>(i / 128));
    const int w = i / 32 % 4;
    body(i, w == 0   ? words.word[0]
            : w == 1 ? words.word[1]
            : w == 2 ? words.word[2]
                     : words.word[3]);
  }
}

/// The unnormalised Walsh-Hadamard transform of x[0 … p), in place. Ends with a barrier.
__device__ void transform(float* x, int p) {
  for (int stride = 1; stride < p; stride *= 2) {
    __syncthreads();
    for (int j = static_cast<int>(threadIdx.x); j < p / 2; j += kThreads) {
      const int low = j / stride * 2 * stride + j % stride;
      const float a = x[low];
      const float b = x[low + stride];
      x[low] = a + b;
      x[low + stride] = a - b;
    }
  }
  __syncthreads();
}

/// Sum over the block; every thread receives it.
__device__ double sum_by_halves(double own) {
  __shared__ double sums[Eden::kSums];
  __syncthreads();  // sums may still be in use by the previous call
  sums[threadIdx.x] = own;
  for (unsigned half = Eden::kSums / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) {
      sums[threadIdx.x] += sums[threadIdx.x + half];
    }
  }
  __syncthreads();
  return sums[0];
}

__device__ __forceinline__ uint32_t code_of(float z, int bits) {
  return Eden::code(z, bits, [bits](int k) { return Eden::middle(bits, k); });
}

__global__ void __launch_bounds__(kThreads)
    encode_rotated(Message message, uint64_t key, int64_t number) {
  const Bucket bucket(message);
  float* r = dynamic_shared<float>();
  const uint32_t seed = Eden::seed_of(key, number + bucket.first);
  int largest = 0;
  for (int i = static_cast<int>(threadIdx.x); i < bucket.n; i += kThreads) {
    const int magnitude = __float_as_int(bucket.x[i]) & 0x7fffffff;
    largest = magnitude > largest ? magnitude : largest;
  }
  Measured found;
  found.largest = block_max(largest, 0);
  const bool empty = wire::is_bad(found) || found.largest == 0;
  const wire::Scaling to = Eden::scaling_of(empty ? 1.0F : wire::largest_of(found));
  for (int i = static_cast<int>(threadIdx.x); i < bucket.p; i += kThreads) {
    r[i] = 0;
  }
  if (!empty) {
    for_signs(seed, bucket.n, [&](int i, uint32_t word) {
      r[i] = Eden::with_sign(wire::scaled(bucket.x[i], to), word, i % 32);
    });
  }
  transform(r, bucket.p);
  double own = 0;
  for (int i = static_cast<int>(threadIdx.x); i < bucket.p; i += kThreads) {
    own += static_cast<double>(r[i]) * static_cast<double>(r[i]);
  }
  const double squares = sum_by_halves(own);
  const float factor = empty ? 0.0F : Eden::to_normal(squares, bucket.p);
  own = 0;
  for (int i = static_cast<int>(threadIdx.x); i < bucket.p; i += kThreads) {
    const float q = Eden::value(code_of(r[i] * factor, bucket.bits), bucket.bits);
    own += static_cast<double>(r[i]) * static_cast<double>(q);
  }
  const double product = sum_by_halves(own);
  for (int group = static_cast<int>(threadIdx.x); 8 * group < bucket.p; group += kThreads) {
    uint64_t codes = 0;
    for (int k = 0; k < 8 && 8 * group + k < bucket.p; ++k) {
      const uint64_t code = code_of(r[8 * group + k] * factor, bucket.bits);
      codes |= empty ? 0 : code << (8 * k);
    }
    store_bytes(bucket.codes(group), closed(codes, bucket.bits), bucket.group_bytes());
  }
  if (threadIdx.x == 0) {
    const uint32_t none = wire::is_bad(found) ? kNaNBits : 0U;
    put_word(bucket.wire, empty ? none : bits_of(Eden::scale_of(squares, product, bucket.p, to)));
    put_word(bucket.wire + 4, seed);
  }
}

__global__ void __launch_bounds__(kThreads) decode_rotated(Message message, bool accumulate) {
  const Bucket bucket(message);
  float* q = dynamic_shared<float>();
  for (int group = static_cast<int>(threadIdx.x); 8 * group < bucket.p; group += kThreads) {
    const uint64_t codes =
        opened(load_bytes(bucket.codes(group), bucket.group_bytes()), bucket.bits);
    for (int k = 0; k < 8 && 8 * group + k < bucket.p; ++k) {
      q[8 * group + k] = Eden::value(static_cast<uint32_t>(codes >> (8 * k)) & 255U, bucket.bits);
    }
  }
  const float scale = get_float(bucket.wire);
  const float inverse_root = Eden::inverse_root(bucket.p);
  transform(q, bucket.p);
  for_signs(get_word(bucket.wire + 4), bucket.n, [&](int i, uint32_t word) {
    const float one = Eden::decoded(Eden::with_sign(q[i], word, i % 32), inverse_root, scale);
    bucket.x[i] = accumulate ? bucket.x[i] + one : one;
  });
}

Launch shape_of(const char* name, const Message& message) {
  return {.name = name,
          .grid = blocks_for(message.buckets, 1),
          .block = kThreads,
          .shared_bytes = static_cast<size_t>(Eden::padded(message.bucket)) * sizeof(float)};
}

}  // namespace

template <>
void encode_whole<Eden>(Stream& stream, const Message& message, const EncodeArgs& args) {
  launch(encode_rotated, shape_of("encode_eden", message), stream, message, args.key, args.first);
}

template <>
void decode_whole<Eden>(Stream& stream, const Message& message, bool accumulate) {
  launch(decode_rotated, shape_of("decode_eden", message), stream, message, accumulate);
}

}  // namespace espalier::kernels::ESPALIER_GPU
