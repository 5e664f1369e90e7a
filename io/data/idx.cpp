// IDX, the format of MNIST and Fashion-MNIST (uncompressed): files of images and of labels, with
// big-endian headers and one byte a number.
//
//   images   0x00000803, count, height, width              one channel
//            0x00000804, count, height, width, channels
//   labels   0x00000801, count
//
// The list holds both kinds in any order; the k-th file of images belongs to the k-th of labels.
#include <algorithm>

#include "io/data/image_format.h"
#include "src/core/error.h"

namespace espalier::io {
namespace {

constexpr uint32_t kLabels = 0x00000801;
constexpr uint32_t kGreyImages = 0x00000803;
constexpr uint32_t kColourImages = 0x00000804;

uint32_t big_endian(std::span<const uint8_t> bytes, size_t at) {
  return uint32_t{bytes[at]} << 24 | uint32_t{bytes[at + 1]} << 16 | uint32_t{bytes[at + 2]} << 8 |
         uint32_t{bytes[at + 3]};
}

/// One file of images or labels.
struct IdxFile {
  std::string path;
  bool holds_images = false;
  int64_t count = 0;
  Shape extents;                   ///< of an image
  const uint8_t* items = nullptr;  ///< behind the header

  explicit IdxFile(const MappedFile& file) : path(file.path().string()) {
    const auto bytes = file.bytes();
    check_not_compressed(file);
    const uint32_t magic = bytes.size() >= 8 ? big_endian(bytes, 0) : 0;
    check(bytes.size() < 8 || magic == kLabels || magic == kGreyImages || magic == kColourImages,
          "data file {} is not an IDX file of images or labels (magic 0x{:08x}, expected 0x803, "
          "0x804 or 0x801); name other files in data.train and data.validation, or set data.format",
          path, magic);
    const size_t dimensions = magic & 0xffU;
    const size_t header = 4 + 4 * dimensions;
    check(magic != 0 && bytes.size() >= header,
          "data file {} is too short for an IDX file ({} bytes); download or unpack it again", path,
          bytes.size());
    holds_images = magic != kLabels;
    std::vector<int64_t> sizes;
    // Doubles: sizes of a damaged header may pass 63 bits. Products up to the size of a file are
    // exact.
    double wanted = 1;
    for (size_t i = 0; i < dimensions; ++i) {
      sizes.push_back(big_endian(bytes, 4 + 4 * i));
      wanted *= static_cast<double>(sizes.back());
    }
    check(wanted > 0 && static_cast<double>(bytes.size() - header) == wanted,
          "data file {} has {} bytes, but its header of {} bytes describes [{}] bytes; download or "
          "unpack it again",
          path, bytes.size(), header, fmt::join(sizes, ", "));
    count = sizes[0];
    if (holds_images) {
      extents = {sizes[1], sizes[2], magic == kColourImages ? sizes[3] : 1};
    }
    items = bytes.data() + header;
  }
};

ImageFiles open_idx(std::span<const std::string> paths) {
  ImageFiles found;
  std::vector<IdxFile> images;
  std::vector<IdxFile> labels;
  for (const std::string& path : paths) {
    IdxFile file(found.files.emplace_back(path));
    (file.holds_images ? images : labels).push_back(std::move(file));
  }
  check(images.size() == labels.size(),
        "the data has {} files of images and {} of labels; name them in pairs", images.size(),
        labels.size());
  for (size_t k = 0; k < images.size(); ++k) {
    check(images[k].count == labels[k].count,
          "{} holds {} images but {} holds {} labels; name matching files, in pairs and in order",
          images[k].path, images[k].count, labels[k].path, labels[k].count);
    found.add({.file = images[k].path,
               .pixels = images[k].items,
               .pixel_stride = images[k].extents.count(),
               .labels = labels[k].items,
               .count = images[k].count},
              images[k].extents);
    const int64_t largest = *std::max_element(labels[k].items, labels[k].items + labels[k].count);
    found.classes = std::max(found.classes, largest + 1);
  }
  return found;
}

}  // namespace

extern const ImageFormat kIdx;
const ImageFormat kIdx{.name = "idx",
                       .help = "IDX files of images and of labels, in pairs",
                       .usual_extents = {28, 28, 1},
                       .usual_classes = 10,
                       .open = open_idx};

}  // namespace espalier::io
