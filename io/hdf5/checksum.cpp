// lookup3 by Bob Jenkins, 2006, public domain; in bytes, for any alignment.
#include <array>
#include <bit>

#include "io/hdf5/bounded_file.h"

namespace espalier::io::hdf5 {

uint32_t metadata_checksum(std::span<const uint8_t> bytes) {
  const uint32_t start = 0xdeadbeef + static_cast<uint32_t>(bytes.size());
  uint32_t a = start;
  uint32_t b = start;
  uint32_t c = start;
  const auto add = [&](std::span<const uint8_t> part) {  // up to 12 bytes; missing ones are zero
    std::array<uint32_t, 3> words{};
    for (size_t i = 0; i < part.size(); ++i) {
      words[i / 4] |= uint32_t{part[i]} << (8 * (i % 4));
    }
    a += words[0];
    b += words[1];
    c += words[2];
  };
  while (bytes.size() > 12) {
    add(bytes.first(12));
    bytes = bytes.subspan(12);
    a -= c, a ^= std::rotl(c, 4), c += b;
    b -= a, b ^= std::rotl(a, 6), a += c;
    c -= b, c ^= std::rotl(b, 8), b += a;
    a -= c, a ^= std::rotl(c, 16), c += b;
    b -= a, b ^= std::rotl(a, 19), a += c;
    c -= b, c ^= std::rotl(b, 4), b += a;
  }
  if (bytes.empty()) {
    return c;
  }
  add(bytes);
  c ^= b, c -= std::rotl(b, 14);
  a ^= c, a -= std::rotl(c, 11);
  b ^= a, b -= std::rotl(a, 25);
  c ^= b, c -= std::rotl(b, 16);
  a ^= c, a -= std::rotl(c, 4);
  b ^= a, b -= std::rotl(a, 14);
  c ^= b, c -= std::rotl(b, 24);
  return c;
}

}  // namespace espalier::io::hdf5
