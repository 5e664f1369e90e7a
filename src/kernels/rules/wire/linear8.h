#pragma once
// linear8: int8. Header: the largest magnitude m. Value of code i = -127 … 127: i / 127 m.
#include "src/kernels/rules/wire/arithmetic.h"

namespace espalier::kernels::wire {

struct Linear8 {
  static constexpr WireCodec kEntry{.name = "linear8",
                                    .help = "i / 127 of the bucket's largest magnitude (int8)",
                                    .numbers = WireNumbers::bucket,
                                    .random = true};
  static constexpr Find kFind = Find::largest;

  ESPALIER_RULE static Carried carry(const WireFormat&, const Measured& found, int64_t,
                                     const WireTables&) {
    return carried_scale(is_bad(found) ? not_a_number() : largest_of(found));
  }

  struct Encoder {
    Scaling to;
    Encoder() = default;
    ESPALIER_RULE Encoder(const WireFormat&, const Carried& carried, const WireTables&)
        : to(scaling(carried.scale(), 127)) {}
    template <bool kRandom>
    ESPALIER_RULE uint32_t code(float x, uint32_t word) const {
      float t = scaled(x, to);
      if constexpr (kRandom) {
        t = t > 127.0F ? 127.0F : t;
        t = t < -127.0F ? -127.0F : t;
        t += dither(word);
      }
      return rounded(t);
    }
  };

  struct Decoder {
    float scale;
    Decoder() = default;
    ESPALIER_RULE Decoder(const WireFormat&, const Carried& carried, const float*)
        : scale(carried.scale()) {}
    ESPALIER_RULE float value(uint32_t code) const {  // 127 (1 / 127) = 1 exactly
      return static_cast<float>(static_cast<int8_t>(code)) * (1.0F / 127.0F) * scale;
    }
  };
};

}  // namespace espalier::kernels::wire
