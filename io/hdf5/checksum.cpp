// lookup3 by Bob Jenkins, 2006, public domain; in bytes, for any alignment. Fletcher's checksum of
// 16-bit words (Fletcher 1982).
#include <algorithm>
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

bool is_metadata_checksum(std::span<const uint8_t> bytes, uint32_t stated) {
  return metadata_checksum(bytes) == stated;
}

/// Words are big-endian; a last odd byte is the high one of its word. Sums are modulo 65535.
bool is_data_checksum(std::span<const uint8_t> bytes, uint32_t stated) {
  constexpr uint64_t kModulus = 65535;
  constexpr size_t kWords = 1 << 16;  // whose sums stay below 2^63
  uint64_t sum = 0;
  uint64_t sums = 0;
  while (!bytes.empty()) {
    const auto part = bytes.first(std::min(bytes.size(), 2 * kWords));
    bytes = bytes.subspan(part.size());
    for (size_t i = 0; i < part.size(); i += 2) {
      sum += uint64_t{part[i]} << 8 | (i + 1 < part.size() ? part[i + 1] : 0U);
      sums += sum;
    }
    sum %= kModulus;
    sums %= kModulus;
  }
  return stated % 65536 % kModulus == sum && (stated >> 16) % kModulus == sums;
}

}  // namespace espalier::io::hdf5
