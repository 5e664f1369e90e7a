// Attention of new tokens over cached keys and values: one pass over the cache, which memory
// bounds.
//
// A unit of work is a sequence, a head of the cache and a slice of kSlice keys; it leaves the
// maximum of its scores, the sum of their exponentials and the weighted sum of values. A second
// pass combines the slices of each query head in order. A slice that few keys fill is computed by
// the same code, so no bit depends on the number of threads or on other sequences.
#include <cstring>

#include "src/kernels/cpu/simd/loops.h"
#include "src/kernels/cpu/simd/reduce.h"
#include "src/kernels/cpu/simd/vector.h"
#include "src/kernels/cpu/support.h"
#include "src/kernels/cpu/table.h"

namespace espalier::kernels::ESPALIER_ISA {
namespace {

constexpr int64_t kSlice = 256;       ///< keys
constexpr int64_t kValueVectors = 8;  ///< of a head's width: sums that stay in registers

struct CacheShape {
  int64_t sequences, heads, kv_heads, capacity, width;
  int64_t slices;   ///< of the longest sequence
  int64_t partial;  ///< floats of a slice's result: values, then maximum and sum
  float scale;

  int64_t group() const { return heads / kv_heads; }
  int64_t keys_of(int64_t sequence, int64_t kv_head) const {
    return (sequence * kv_heads + kv_head) * capacity * width;
  }
  float* result(float* partials, int64_t sequence, int64_t head, int64_t slice) const {
    return partials + ((sequence * heads + head) * slices + slice) * partial;
  }
};

CacheShape shape_of(const CachedAttentionArgs& args, int64_t longest) {
  const int64_t width = args.keys.shape[3];
  return {.sequences = args.keys.shape[0],
          .heads = args.q.cols() / width,
          .kv_heads = args.keys.shape[1],
          .capacity = args.keys.shape[2],
          .width = width,
          .slices = divide_up(longest, kSlice),
          .partial = divide_up(width, 16) * 16 + 16,
          .scale = args.scale > 0 ? args.scale : 1.0F / __builtin_sqrtf(static_cast<float>(width))};
}

/// The scores of kLanes keys, `key(i)` each.
template <class T, class Key>
[[gnu::always_inline]] inline Vector scores_of(const T* q, int64_t width, const Key& key) {
  Vector sum[kLanes] = {};
  int64_t d = 0;
  for (; d + kLanes <= width; d += kLanes) {
    const Vector query = read_vector(q + d);
    for (int64_t i = 0; i < kLanes; ++i) {
      sum[i] += query * read_vector(key(i) + d);
    }
  }
  if (d < width) {
    const Vector query = read_vector(q + d, width - d);
    for (int64_t i = 0; i < kLanes; ++i) {
      sum[i] += query * read_vector(key(i) + d, width - d);
    }
  }
  Vector quarters[kLanes / 4];
  for (int64_t i = 0; i < kLanes / 4; ++i) {
    quarters[i] = quarter_sums(sum[4 * i], sum[4 * i + 1], sum[4 * i + 2], sum[4 * i + 3]);
  }
  return across_quarters(quarters);
}

/// out[0, n) = the sum of p[j] values[j, 0..n) over the keys, for n columns.
template <class T>
[[gnu::always_inline]] inline void weigh_values(const float* p, int64_t keys, const T* values,
                                                int64_t width, int64_t n, float* out) {
  Vector sum[kValueVectors] = {};
  if (n == kValueVectors * kLanes) {
    for (int64_t j = 0; j < keys; ++j) {
      for (int64_t v = 0; v < kValueVectors; ++v) {
        sum[v] += p[j] * read_vector(values + j * width + v * kLanes);
      }
    }
  } else {
    for (int64_t j = 0; j < keys; ++j) {
      for (int64_t v = 0; v * kLanes < n; ++v) {
        sum[v] +=
            p[j] * read_vector(values + j * width + v * kLanes, least(kLanes, n - v * kLanes));
      }
    }
  }
  for (int64_t v = 0; v * kLanes < n; ++v) {
    write_vector(out + v * kLanes, sum[v], least(kLanes, n - v * kLanes));
  }
}

/// One query over n <= kSlice keys. Width: that of a head, known to the compiler, or 0.
template <int64_t Width, class T>
void attend_slice(const CacheShape& s, const T* q, const T* keys, const T* values, int64_t n,
                  float* result) {
  const int64_t width = Width > 0 ? Width : s.width;
  alignas(64) float scores[kSlice + kLanes];
  int64_t j = 0;
  for (; j + kLanes <= n; j += kLanes) {
    const T* const block = keys + j * width;
    write_vector(scores + j, s.scale * scores_of(
                                           q, width, [&](int64_t i) __attribute__((always_inline)) {
                                             return block + i * width;
                                           }));
  }
  if (j < n) {  // keys that do not exist repeat the last one
    write_vector(scores + j, s.scale * scores_of(
                                           q, width, [&](int64_t i) __attribute__((always_inline)) {
                                             return keys + least(j + i, n - 1) * width;
                                           }));
  }
  const float top = maximum_over(scores, n, -3.40282347e38F);
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    scores[i] = exp_below(scores[i] - top);
  }
  constexpr int64_t kColumns = kValueVectors * kLanes;
  for (int64_t d = 0; d < width; d += kColumns) {
    weigh_values(scores, n, values + d, width, least(kColumns, width - d), result + d);
  }
  float* const numbers = result + s.partial - 16;
  numbers[0] = top;
  numbers[1] = sum_over(scores, n, [](auto x) { return x; });
}

/// Adds up the slices of a query head, in order.
template <class T>
void combine(const CacheShape& s, float* results, int64_t slices, T* out) {
  float top = -3.40282347e38F;
  for (int64_t i = 0; i < slices; ++i) {
    const float other = results[(i + 1) * s.partial - 16];
    top = other > top ? other : top;
  }
  float total = 0;
  for (int64_t i = 0; i < slices; ++i) {
    float* const result = results + i * s.partial;
    const float* numbers = result + s.partial - 16;
    const float weight = exp_below(numbers[0] - top);
    total += weight * numbers[1];
#pragma omp simd
    for (int64_t d = 0; d < s.width; ++d) {
      result[d] *= weight;
    }
    for (int64_t d = 0; i > 0 && d < s.width; ++d) {
      results[d] += result[d];
    }
  }
  const float inverse = 1.0F / total;
  for (int64_t d = 0; d < s.width; ++d) {
    store(out + d, results[d] * inverse);
  }
}

int64_t longest_of(const Tensor& lengths) {
  int64_t longest = 1;
  for (int64_t b = 0; b < lengths.count(); ++b) {
    longest = most(longest, elements<int32_t>(lengths)[b]);
  }
  return longest;
}

}  // namespace

void cache_tokens(Stream& stream, const CacheTokensArgs& args) {
  const int64_t tokens = args.qkv.shape[1];
  const int64_t kv_heads = args.keys.shape[1];
  const int64_t capacity = args.keys.shape[2];
  const int64_t width = args.keys.shape[3];
  const int64_t rows = kv_heads * width;  // elements of all keys of a token
  with_type(args.qkv.dtype, [&](auto type) {
    using T = decltype(type);
    for_rows(stream.threads(), args.qkv.rows(), 2 * rows, [&](int64_t row) {
      const int64_t sequence = row / tokens;
      const int64_t t = row % tokens;
      const int64_t count = elements<int32_t>(args.counts)[sequence];
      if (t >= count || t < count - capacity) {
        return;
      }
      const int64_t slot = (elements<int32_t>(args.first)[sequence] + t) % capacity;
      const T* const from = row_of<T>(args.qkv, row) + args.qkv.cols() - 2 * rows;
      for (int64_t head = 0; head < kv_heads; ++head) {
        const int64_t to = ((sequence * kv_heads + head) * capacity + slot) * width;
        std::memcpy(elements<T>(args.keys) + to, from + head * width,
                    static_cast<size_t>(width) * sizeof(T));
        std::memcpy(elements<T>(args.values) + to, from + rows + head * width,
                    static_cast<size_t>(width) * sizeof(T));
      }
    });
  });
}

void cached_attention(Stream& stream, const CachedAttentionArgs& args) {
  if (args.q.rows() == 0) {
    return;
  }
  const bool dry = cpu::is_dry(stream);
  const CacheShape most_keys = shape_of(args, args.keys.shape[2]);
  const auto floats = [](const CacheShape& s) {
    return s.sequences * s.heads * s.slices * s.partial;
  };
  auto* const partials = reinterpret_cast<float*>(
      cpu::workspace(stream, static_cast<size_t>(floats(most_keys)) * sizeof(float)));
  if (dry) {
    return;
  }
  const auto* const lengths = elements<int32_t>(args.lengths);
  cpu::require_cached(args.lengths);
  const int64_t capacity = args.keys.shape[2];
  const auto length_of = [&](int64_t sequence) { return least(lengths[sequence], capacity); };
  const CacheShape s = shape_of(args, least(longest_of(args.lengths), capacity));
  const int64_t units = s.sequences * s.kv_heads * s.slices;
  const int64_t work = 2 * units * least(kSlice, s.capacity) * s.width;
  with_type(args.q.dtype, [&](auto type) {
    using T = decltype(type);
    const T* const keys = elements<const T>(args.keys);
    const T* const values = elements<const T>(args.values);
    for_blocks(stream.threads(), units, work, [&](int64_t unit) {
      const int64_t slice = unit % s.slices;
      const int64_t kv_head = unit / s.slices % s.kv_heads;
      const int64_t sequence = unit / s.slices / s.kv_heads;
      const int64_t first = slice * kSlice;
      const int64_t n = least(kSlice, length_of(sequence) - first);
      const int64_t at = s.keys_of(sequence, kv_head) + first * s.width;
      for (int64_t g = 0; n > 0 && g < s.group(); ++g) {
        const int64_t head = kv_head * s.group() + g;
        const auto attend = s.width == 64    ? attend_slice<64, T>
                            : s.width == 128 ? attend_slice<128, T>
                                             : attend_slice<0, T>;
        attend(s, row_of<const T>(args.q, sequence) + head * s.width, keys + at, values + at, n,
               s.result(partials, sequence, head, slice));
      }
    });
    for_blocks(stream.threads(), s.sequences * s.heads, floats(s), [&](int64_t number) {
      const int64_t sequence = number / s.heads;
      const int64_t head = number % s.heads;
      combine(s, s.result(partials, sequence, head, 0), divide_up(length_of(sequence), kSlice),
              row_of<T>(args.out, sequence) + head * s.width);
    });
  });
}

}  // namespace espalier::kernels::ESPALIER_ISA
