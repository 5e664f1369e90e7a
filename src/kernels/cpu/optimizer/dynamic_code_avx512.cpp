// Exponents select the line. The exponent of p + 1/2 selects the decade. The exponent of a value,
// without its last bit, selects two octaves, which contain at most one border of decades and so two
// lines. The low four bits of either are the index of a permute.
#include <immintrin.h>

#include "src/kernels/cpu/optimizer/dynamic_code.h"

namespace espalier::kernels::ESPALIER_ISA {
namespace {

constexpr int64_t kLanes = 16;

/// Tables of permutes.
struct DecodeTable {
  float slope[16], start[16];
};
struct EncodeTable {
  float steepness[16], offset[16];              ///< of the lower decade
  float steepness_above[16], offset_above[16];  ///< of the upper one; if none, of the lower one
};

template <DynamicMap kMap>
consteval DecodeTable decode_table() {
  using Lines = DynamicLines<kMap>;
  DecodeTable table{};  // all zero: below decade 0
  for (int j = 0; j < 7; ++j) {
    const int exponent = 127 + j + Lines::kLevel;
    table.slope[exponent % 16] = Lines::line(j).slope;
    table.start[exponent % 16] = Lines::line(j).start;
  }
  table.start[(127 + 7 + Lines::kLevel) % 16] = 1;
  return table;
}

template <DynamicMap kMap>
consteval EncodeTable encode_table() {
  using Lines = DynamicLines<kMap>;
  EncodeTable table{};
  double from = 0x1p-31;  // exponent 96, index 48; smaller numbers are below all codes
  for (int pair = 48; pair < 64; ++pair, from *= 4) {
    int lower = 0;
    while (lower < 6 && Lines::decade(lower) <= from) {
      ++lower;
    }
    const bool border = lower < 6 && Lines::decade(lower) < 4 * from;
    const DynamicLine line = Lines::line(lower);
    const DynamicLine above = Lines::line(border ? lower + 1 : lower);
    table.steepness[pair % 16] = line.steepness;
    table.offset[pair % 16] = line.offset;
    table.steepness_above[pair % 16] = above.steepness;
    table.offset_above[pair % 16] = above.offset;
  }
  return table;
}

template <DynamicMap kMap>
class Decoder {
  using Lines = DynamicLines<kMap>;
  static constexpr DecodeTable kTable = decode_table<kMap>();

 public:
  explicit Decoder(float scale) : scale_(_mm512_set1_ps(scale)) {}

  [[gnu::always_inline]] __m512 operator()(__m128i codes) const {
    const __m512i first = _mm512_set1_epi32(Lines::kSigned ? 127 : -1);
    const __m512 p = _mm512_cvtepi32_ps(_mm512_sub_epi32(_mm512_cvtepu8_epi32(codes), first));
    const __m512 middle = _mm512_add_ps(_mm512_abs_ps(p), _mm512_set1_ps(0.5F));
    const __m512i level = _mm512_srli_epi32(_mm512_castps_si512(middle), 23);
    const __m512 value = _mm512_fmadd_ps(middle, _mm512_permutexvar_ps(level, slope_),
                                         _mm512_permutexvar_ps(level, start_));
    const __m512 sign = _mm512_and_ps(p, _mm512_set1_ps(-0.0F));
    return _mm512_mul_ps(_mm512_or_ps(value, sign), scale_);
  }

 private:
  __m512 scale_;
  __m512 slope_ = _mm512_loadu_ps(kTable.slope);
  __m512 start_ = _mm512_loadu_ps(kTable.start);
};

template <DynamicMap kMap>
class Encoder {
  using Lines = DynamicLines<kMap>;
  static constexpr EncodeTable kTable = encode_table<kMap>();

 public:
  explicit Encoder(float inverse) : inverse_(_mm512_set1_ps(inverse)) {}

  [[gnu::always_inline]] __m128i operator()(__m512 number) const {
    const __m512 x = _mm512_mul_ps(number, inverse_);
    const __m512 magnitude = _mm512_abs_ps(x);
    // min returns its second operand for NaN.
    const __m512 p = nearest(_mm512_min_ps(magnitude, _mm512_set1_ps(Lines::kBelowOne)));
    const __mmask16 one = _mm512_cmp_ps_mask(x, _mm512_set1_ps(Lines::kNearOne), _CMP_GE_OQ);
    __m512i code;
    if constexpr (Lines::kSigned) {
      const __m512 sign = _mm512_and_ps(x, _mm512_set1_ps(-0.0F));
      code = _mm512_add_epi32(_mm512_cvttps_epi32(_mm512_or_ps(p, sign)), _mm512_set1_epi32(127));
    } else {
      const __m512i least = _mm512_maskz_set1_epi32(
          _mm512_cmp_ps_mask(magnitude, _mm512_setzero_ps(), _CMP_GT_OQ), 1);
      code =
          _mm512_max_epi32(_mm512_add_epi32(_mm512_cvttps_epi32(p), _mm512_set1_epi32(-1)), least);
    }
    return _mm512_cvtepi32_epi8(_mm512_mask_mov_epi32(code, one, _mm512_set1_epi32(255)));
  }

 private:
  /// Like in dynamic_code_plain.cpp; zero below the smallest magnitude.
  [[gnu::always_inline]] __m512 nearest(__m512 x) const {
    const __m512i octaves = _mm512_srli_epi32(_mm512_castps_si512(x), 24);
    const __m512 below = _mm512_fmadd_ps(x, _mm512_permutexvar_ps(octaves, steepness_),
                                         _mm512_permutexvar_ps(octaves, offset_));
    const __m512 above = _mm512_fmadd_ps(x, _mm512_permutexvar_ps(octaves, steepness_above_),
                                         _mm512_permutexvar_ps(octaves, offset_above_));
    const __m512 position = _mm512_min_ps(below, above);
    const __m512 p = _mm512_roundscale_ps(position, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
    const __mmask16 power_of_2 =
        _mm512_testn_epi32_mask(_mm512_castps_si512(p), _mm512_set1_epi32(0x7fffff));
    const __mmask16 before = _mm512_mask_cmp_ps_mask(power_of_2, _mm512_sub_ps(position, p),
                                                     _mm512_set1_ps(Lines::kBorder), _CMP_LT_OQ);
    const __mmask16 some = _mm512_cmp_ps_mask(x, _mm512_set1_ps(0x1p-24F), _CMP_GE_OQ);
    return _mm512_maskz_mov_ps(some, _mm512_mask_sub_ps(p, before, p, _mm512_set1_ps(1)));
  }

  __m512 inverse_;
  __m512 steepness_ = _mm512_loadu_ps(kTable.steepness);
  __m512 offset_ = _mm512_loadu_ps(kTable.offset);
  __m512 steepness_above_ = _mm512_loadu_ps(kTable.steepness_above);
  __m512 offset_above_ = _mm512_loadu_ps(kTable.offset_above);
};

[[gnu::always_inline]] inline __mmask16 first_lanes(int64_t n) {
  return static_cast<__mmask16>((1U << n) - 1);
}

/// Lane-wise maximum and minimum of numbers and zero.
struct Extremes {
  __m512 high = _mm512_setzero_ps();
  __m512 low = _mm512_setzero_ps();

  [[gnu::always_inline]] void meet(__m512 x) {  // NaN as first operand: the second one is kept
    high = _mm512_max_ps(x, high);
    low = _mm512_min_ps(x, low);
  }
};

BlockScale scale_of(const float* x, int64_t n) {
  Extremes a, b, c, d;  // four chains hide the latency
  int64_t k = 0;
  for (; k + 4 * kLanes <= n; k += 4 * kLanes) {
    a.meet(_mm512_loadu_ps(x + k));
    b.meet(_mm512_loadu_ps(x + k + kLanes));
    c.meet(_mm512_loadu_ps(x + k + 2 * kLanes));
    d.meet(_mm512_loadu_ps(x + k + 3 * kLanes));
  }
  for (; k < n; k += kLanes) {
    const int64_t rest = n - k;
    a.meet(_mm512_maskz_loadu_ps(rest < kLanes ? first_lanes(rest) : 0xffff, x + k));
  }
  const __m512 high = _mm512_max_ps(_mm512_max_ps(a.high, b.high), _mm512_max_ps(c.high, d.high));
  const __m512 low = _mm512_min_ps(_mm512_min_ps(a.low, b.low), _mm512_min_ps(c.low, d.low));
  return block_scale(_mm512_reduce_max_ps(high), _mm512_reduce_min_ps(low));
}

}  // namespace

template <DynamicMap kMap>
void decode(const uint8_t* codes, float scale, int64_t n, float* x) {
  const Decoder<kMap> decoded(scale);
  int64_t k = 0;
  for (; k + kLanes <= n; k += kLanes) {
    _mm512_storeu_ps(x + k, decoded(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + k))));
  }
  const __mmask16 rest = first_lanes(n - k);
  _mm512_mask_storeu_ps(x + k, rest, decoded(_mm_maskz_loadu_epi8(rest, codes + k)));
}

template <DynamicMap kMap>
float encode(const float* x, int64_t n, uint8_t* codes) {
  const BlockScale block = scale_of(x, n);
  const Encoder<kMap> encoded(block.inverse);
  int64_t k = 0;
  for (; k + kLanes <= n; k += kLanes) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(codes + k), encoded(_mm512_loadu_ps(x + k)));
  }
  const __mmask16 rest = first_lanes(n - k);
  _mm_mask_storeu_epi8(codes + k, rest, encoded(_mm512_maskz_loadu_ps(rest, x + k)));
  return block.scale;
}

template void decode<DynamicMap::with_sign>(const uint8_t*, float, int64_t, float*);
template void decode<DynamicMap::without_sign>(const uint8_t*, float, int64_t, float*);
template float encode<DynamicMap::with_sign>(const float*, int64_t, uint8_t*);
template float encode<DynamicMap::without_sign>(const float*, int64_t, uint8_t*);

}  // namespace espalier::kernels::ESPALIER_ISA
