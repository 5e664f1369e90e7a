#pragma once
// Files of images for tests.
#include <cstdint>
#include <string>
#include <vector>

namespace espalier::testing {

/// An IDX file of bytes with these sizes.
inline std::string idx_file(const std::vector<uint32_t>& sizes, const std::string& items) {
  std::string out{'\0', '\0', '\x08', static_cast<char>(sizes.size())};
  for (const uint32_t size : sizes) {
    for (int shift = 24; shift >= 0; shift -= 8) {
      out += static_cast<char>(size >> shift);
    }
  }
  return out + items;
}

/// Byte (y, x) of a plane of the CIFAR image `number`.
inline uint8_t cifar_byte(int number, int channel, int y, int x) {
  return static_cast<uint8_t>(number * 53 + channel * 91 + y * 7 + x * 3);
}

/// A record of CIFAR: its labels, then three planes.
inline std::string cifar_record(int number, const std::string& labels) {
  std::string out = labels;
  for (int channel = 0; channel < 3; ++channel) {
    for (int y = 0; y < 32; ++y) {
      for (int x = 0; x < 32; ++x) {
        out += static_cast<char>(cifar_byte(number, channel, y, x));
      }
    }
  }
  return out;
}

}  // namespace espalier::testing
