#pragma once
// State of a kept element in the fused optimizers, besides its gradient: moments in fp32 or in 8
// bits, and the master copy in fp32, in two 16-bit halves, or in 16 bits with random rounding.
#include "src/kernels/cuda/optimizer/dynamic_code.h"
#include "src/kernels/cuda/simt/elements.h"
#include "src/kernels/cuda/simt/philox.h"
#include "src/kernels/rules/master.h"

namespace espalier::kernels::ESPALIER_GPU {

static_assert(kQuantizeBlock == 2 * 4 * 32);

/// fp32 values, or codes with one scale per block; all null if absent.
struct Moment {
  float* values = nullptr;
  uint8_t* codes = nullptr;
  float* scales = nullptr;
};

inline Moment moment_of(const Tensor& moment, const Tensor& scales) {
  if (moment.dtype == DType::uint8) {
    return {nullptr, static_cast<uint8_t*>(moment.data), static_cast<float*>(scales.data)};
  }
  return {static_cast<float*>(moment.data), nullptr, nullptr};
}

/// Loads a quad in its stored form: numbers, or codes in the first word and their scale in the
/// second.
template <bool kWhole = false>
__device__ __forceinline__ RawQuad load_raw(const Moment& moment, int64_t i, int64_t count) {
  RawQuad raw{};
  if (moment.codes != nullptr) {
    raw.word[0] = __uint_as_float(load_codes<kWhole>(moment.codes, i, count));
    raw.word[1] = kWhole || count > 0 ? moment.scales[i / kQuantizeBlock] : 0.0F;
  } else if (moment.values != nullptr) {
    const Quad q = load_quad<kWhole>(moment.values, i, count);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      raw.word[k] = q.x[k];
    }
  }
  return raw;
}
template <DynamicMap kMap>
__device__ __forceinline__ Quad quad_of(const Moment& moment, const RawQuad& raw,
                                        const CodeTable<kMap>& table) {
  if (moment.codes != nullptr) {
    return table.decode(__float_as_uint(raw.word[0]), raw.word[1]);
  }
  return {{raw.word[0], raw.word[1], raw.word[2], raw.word[3]}};
}
inline bool has_whole_quads(const Moment& moment) {
  return has_whole_quads(moment.values) && has_whole_quads(moment.codes);
}
template <DynamicMap kMap>
__device__ __forceinline__ Quad load_moment(const Moment& moment, int64_t i, int64_t count) {
  const RawQuad raw = load_raw(moment, i, count);
  if (moment.codes != nullptr) {
    return decode_quad<kMap>(__float_as_uint(raw.word[0]), raw.word[1]);
  }
  return {{raw.word[0], raw.word[1], raw.word[2], raw.word[3]}};
}

/// Stores both quads of a lane, at `i` and at i + 128; `count` elements are left from `i`. Lanes
/// beyond the end take part with zeros.
template <bool kWhole, DynamicMap kMap>
__device__ __forceinline__ void store_moment(const Moment& moment, int64_t i, int64_t count,
                                             const Quad (&q)[2], const CodeTable<kMap>& table) {
  if (moment.codes == nullptr) {
    if (moment.values != nullptr) {
      store_quad<kWhole>(moment.values, i, count, q[0]);
      store_quad<kWhole>(moment.values, i + 128, count - 128, q[1]);
    }
    return;
  }
  const BlockScale scale = warp_scale(q[0], q[1]);
  store_codes<kWhole>(moment.codes, i, count, table.encode(q[0], scale.inverse));
  store_codes<kWhole>(moment.codes, i + 128, count - 128, table.encode(q[1], scale.inverse));
  if (threadIdx.x % 32 == 0) {
    moment.scales[i / kQuantizeBlock] = scale.scale;
  }
}

/// Code tables of both moments.
struct CodeTables {
  CodeTable<DynamicMap::with_sign> first;
  CodeTable<DynamicMap::without_sign> second;
};

/// The master copy: `value` alone, or `value` and the 16 bits below it; see UpdateArgs.
struct Master {
  Elements value;
  uint16_t* low;
};

inline bool has_whole_quads(const Master& master) {
  return has_whole_quads(master.value) && has_whole_quads(master.low);
}

__device__ __forceinline__ float join(DType half, float high, unsigned low) {
  return half == DType::fp16 ? join_number<fp16>(high, static_cast<uint16_t>(low))
                             : join_number<bf16>(high, static_cast<uint16_t>(low));
}

/// A quad of the master copy in its stored form.
struct RawMaster {
  RawQuad value;
  uint2 low;
};
template <bool kWhole = false>
__device__ __forceinline__ RawMaster load_raw(const Master& master, int64_t i, int64_t count) {
  return {load_raw<kWhole>(master.value, i, count),
          master.low != nullptr ? load_halves<kWhole>(master.low + i, count) : make_uint2(0, 0)};
}
__device__ __forceinline__ Quad quad_of(const Master& master, const RawMaster& raw) {
  Quad w = quad_of(master.value.type, raw.value);
  if (master.low == nullptr) {
    return w;
  }
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const unsigned bits = (k < 2 ? raw.low.x : raw.low.y) >> 16 * (k % 2);
    w.x[k] = join(master.value.type, w.x[k], bits & 0xffffU);
  }
  return w;
}
__device__ __forceinline__ Quad load_master(const Master& master, int64_t i, int64_t count) {
  return quad_of(master, load_raw(master, i, count));
}

/// Writes w. Returns the stored values: the upper halves, or with `joined` both halves joined.
template <bool kWhole>
__device__ __forceinline__ Quad store_master(const Master& master, int64_t i, int64_t count,
                                             const Quad& w, bool joined) {
  if (master.low == nullptr) {
    store_quad<kWhole>(master.value, i, count, w);
    return w;
  }
  Quad high;
  unsigned low[4];
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const auto take = [&](const auto& halves) {
      high.x[k] = number_of(halves.high);
      low[k] = halves.low;
    };
    master.value.type == DType::fp16 ? take(split<fp16>(w.x[k])) : take(split<bf16>(w.x[k]));
  }
  store_quad<kWhole>(master.value, i, count, high);
  store_halves<kWhole>(master.low + i, count,
                       make_uint2(low[0] | low[1] << 16, low[2] | low[3] << 16));
  if (joined) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      high.x[k] = join(master.value.type, high.x[k], low[k]);
    }
  }
  return high;
}

/// Writes w to 16-bit values without low halves; returns the stored values.
template <bool kWhole>
__device__ __forceinline__ Quad store_at_random(const Elements& value, int64_t i, int64_t count,
                                                const Quad& w, const RandomRounding& rounding) {
  const Words words = words_of_quad(rounding.key, rounding.first + i);
  Quad stored;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    stored.x[k] = value.type == DType::fp16
                      ? number_of(round_at_random<fp16>(w.x[k], words.word[k]))
                      : number_of(round_at_random<bf16>(w.x[k], words.word[k]));
  }
  store_quad<kWhole>(value, i, count, stored);
  return stored;
}

}  // namespace espalier::kernels::ESPALIER_GPU
