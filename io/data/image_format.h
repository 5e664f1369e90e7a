#pragma once
// Formats of image files: one file each (idx.cpp, cifar.cpp); the list is in image_format.cpp. A
// format maps files and says where each image and its label lie; ImageDataset (images.h) reads
// them. Numbers of images and labels have one byte.
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/config/config.h"
#include "io/files/mapped_file.h"
#include "src/core/registry.h"
#include "src/core/types.h"

namespace espalier::io {

/// Images of one file and their labels: image i begins at pixels + i * pixel_stride, its label is
/// labels[i * label_stride].
struct ImageBlock {
  std::string file;  ///< of the images
  const uint8_t* pixels = nullptr;
  int64_t pixel_stride = 0;
  const uint8_t* labels = nullptr;
  int64_t label_stride = 1;
  int64_t count = 0;
};

/// All images of a list of files, in order.
struct ImageFiles {
  std::vector<MappedFile> files;  ///< own the bytes of the blocks
  std::vector<ImageBlock> blocks;
  Shape extents;        ///< [height, width, channels]
  bool planar = false;  ///< an image is [channels, height, width]; else [height, width, channels]
  int64_t classes = 0;

  int64_t size() const;
  /// Throws Failure, which names both files, if the images of the block have other extents.
  void add(ImageBlock block, const Shape& block_extents);
};

struct ImageFormat {
  std::string_view name;
  std::string_view help;
  // Assumed by plans, which do not read the data:
  std::array<int64_t, 3> usual_extents;
  int64_t usual_classes = 10;
  /// Throws Failure, which names the file, if a file is damaged or of another format.
  ImageFiles (*open)(std::span<const std::string> paths) = nullptr;
};

/// All formats.
Registry<ImageFormat> image_formats();
/// That of data.format. Throws Failure that lists the names.
const ImageFormat& image_format_of(const DataConfig& data);

/// Throws Failure if the file begins like a file of gzip.
void check_not_compressed(const MappedFile& file);

}  // namespace espalier::io
