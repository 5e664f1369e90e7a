#pragma once
// dynamic8, dynamic8-bnb, static8, mantissa8: fixed magnitudes in [0, 1] times the bucket's scale.
//
//   code          scale (header)      magnitudes (magnitude_table.h)
//   dynamic8      largest magnitude   dynamic tree, its root split at 0.45: 126 of 10^-5 … 1, 0, 1
//   dynamic8-bnb  largest magnitude   bitsandbytes' map (dynamic_map.h); the code is its index
//   static8       power of ten        10^-e times one of 16 leaves of (0.1, 1), e = 0 … 7; zero
//                                     replaces the smallest
//   mantissa8     power of ten        m 10^-e, m = 0 … 15, e = 0 … 7
//
// The power of ten is the least of 10^-37 … 10^38 that is not below the largest magnitude; this
// rule gives the ratios of Dettmers' table 2. A code is a magnitude's rank, from zero up, with the
// sign in the highest bit; for dynamic8-bnb it is 127 + rank or 127 - rank. The map of dynamic8-bnb
// lacks -1: values beyond -0.993 of the largest magnitude are encoded as -0.993. static8 and
// mantissa8 always round to nearest.
// Source: Dettmers, "8-bit approximations", ICLR 2016, section 3.
#include "src/kernels/rules/wire/arithmetic.h"
#include "src/kernels/rules/wire/magnitude_table.h"

namespace espalier::kernels::wire {

/// kOffset: codes are 127 ± rank.
template <MagnitudeSet kOwnSet, bool kPowerOfTen, bool kOffset>
struct FixedMagnitudes {
  static constexpr Find kFind = Find::largest;
  static constexpr MagnitudeSet kSet = kOwnSet;

  ESPALIER_RULE static Carried carry(const WireFormat&, const Measured& found, int64_t,
                                     const WireTables& tables) {
    if (is_bad(found)) {
      return carried_scale(not_a_number());
    }
    const float largest = largest_of(found);
    return carried_scale(kPowerOfTen ? power_of_ten(tables.powers_of_ten, largest) : largest);
  }

  struct Encoder {
    Scaling to;
    const MagnitudeTable* table;
    Encoder() = default;
    ESPALIER_RULE Encoder(const WireFormat&, const Carried& carried, const WireTables& tables)
        : to(scaling(carried.scale(), 1)), table(&tables.of(kSet)) {}

    template <bool kRandom>
    ESPALIER_RULE uint32_t code(float x, uint32_t word) const {
      const float a = magnitude_of(scaled(x, to));
      const int32_t rank = kRandom ? around(*table, a, word) : nearest(*table, a);
      const int32_t sign = static_cast<int32_t>(bits_of(x)) >> 31;  // 0 or -1
      if constexpr (kOffset) {
        const int32_t down = rank < 127 ? rank : 127;  // 127 of the 128 magnitudes are below
        return static_cast<uint32_t>(127 + (sign < 0 ? -down : rank));
      }
      return static_cast<uint32_t>(rank | (sign & 0x80));
    }
  };

  struct Decoder {
    float scale;
    const float* values;  ///< MagnitudeTable::value
    Decoder() = default;
    ESPALIER_RULE Decoder(const WireFormat&, const Carried& carried, const float* of_codes)
        : scale(carried.scale()), values(of_codes) {}
    ESPALIER_RULE float value(uint32_t code) const { return values[code] * scale; }
  };
};

struct Dynamic8 : FixedMagnitudes<MagnitudeSet::dynamic8, false, false> {
  static constexpr WireCodec kEntry{.name = "dynamic8",
                                    .help = "Dettmers' dynamic tree, 8 bits",
                                    .numbers = WireNumbers::bucket,
                                    .random = true};
};
struct Dynamic8Bnb : FixedMagnitudes<MagnitudeSet::dynamic8_bnb, false, true> {
  static constexpr WireCodec kEntry{.name = "dynamic8-bnb",
                                    .help = "the dynamic map of bitsandbytes, 8 bits",
                                    .numbers = WireNumbers::bucket,
                                    .random = true};
};
struct Static8 : FixedMagnitudes<MagnitudeSet::static8, true, false> {
  static constexpr WireCodec kEntry{.name = "static8",
                                    .help =
                                        "Dettmers' static tree: 3 bits of a power of ten, 4 of "
                                        "a leaf",
                                    .numbers = WireNumbers::bucket};
};
struct Mantissa8 : FixedMagnitudes<MagnitudeSet::mantissa8, true, false> {
  static constexpr WireCodec kEntry{.name = "mantissa8",
                                    .help = "3 bits of a power of ten, 4 of a mantissa",
                                    .numbers = WireNumbers::bucket};
};

}  // namespace espalier::kernels::wire
