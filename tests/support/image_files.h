#pragma once
// Files of images for tests.
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "io/config/config.h"
#include "src/core/rng.h"

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

/// Writes square images of three classes, which differ in the brightness of their rows.
inline io::DataConfig write_images(const std::filesystem::path& folder, uint32_t images,
                                   uint32_t edge, uint32_t channels = 1) {
  std::string pixels, labels;
  for (uint32_t i = 0; i < images; ++i) {
    labels += static_cast<char>(i % 3);
    for (uint32_t p = 0; p < edge * edge * channels; ++p) {
      const uint32_t row = p / (edge * channels);
      pixels += static_cast<char>(philox(2, i, p)[0] % 100 + 70 * (row % 3 == i % 3 ? 1 : 0));
    }
  }
  std::vector<uint32_t> sizes{images, edge, edge};
  if (channels > 1) {
    sizes.push_back(channels);
  }
  std::ofstream(folder / "images", std::ios::binary) << idx_file(sizes, pixels);
  std::ofstream(folder / "labels", std::ios::binary) << idx_file({images}, labels);
  return {.kind = "images", .train = {folder / "images", folder / "labels"}};
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
