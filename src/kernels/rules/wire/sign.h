#pragma once
// sign: one bit a value (1: negative). Header: the mean magnitude m of the bucket. Value: ±m.
#include "src/kernels/rules/wire/arithmetic.h"

namespace espalier::kernels::wire {

struct Sign {
  static constexpr WireCodec kEntry{.name = "sign",
                                    .help = "+ or - the bucket's mean magnitude",
                                    .numbers = WireNumbers::bucket,
                                    .bits = 1};
  static constexpr Find kFind = Find::magnitudes;

  ESPALIER_RULE static Carried carry(const WireFormat&, const Measured& found, int64_t n,
                                     const WireTables&) {
    return carried_scale(is_bad(found) ? not_a_number()
                                       : static_cast<float>(found.sum / static_cast<double>(n)));
  }

  struct Encoder {
    Encoder() = default;
    ESPALIER_RULE Encoder(const WireFormat&, const Carried&, const WireTables&) {}
    template <bool kRandom>
    ESPALIER_RULE uint32_t code(float x, uint32_t) const {
      return bits_of(x) >> 31;
    }
  };

  struct Decoder {
    float magnitude;
    Decoder() = default;
    ESPALIER_RULE Decoder(const WireFormat&, const Carried& carried, const float*)
        : magnitude(carried.scale()) {}
    ESPALIER_RULE float value(uint32_t code) const {
      return float_of(bits_of(magnitude) ^ code << 31);
    }
  };
};

}  // namespace espalier::kernels::wire
