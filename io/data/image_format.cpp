#include "io/data/image_format.h"

#include "src/core/error.h"

namespace espalier::io {

ESPALIER_REGISTRY(kImageFormats, ImageFormat, kIdx, kCifar10, kCifar100);

Registry<ImageFormat> image_formats() { return kImageFormats; }

const ImageFormat& image_format_of(const DataConfig& data) {
  return find(image_formats(), "data.format", data.format);
}

int64_t ImageFiles::size() const {
  int64_t images = 0;
  for (const ImageBlock& block : blocks) {
    images += block.count;
  }
  return images;
}

void ImageFiles::add(ImageBlock block, const Shape& block_extents) {
  if (blocks.empty()) {
    extents = block_extents;
  }
  check(block_extents == extents,
        "{} holds images of {}, but {} holds images of {} (height, width, channels); use files "
        "with images of one size",
        blocks.empty() ? block.file : blocks.front().file, extents.text(), block.file,
        block_extents.text());
  blocks.push_back(std::move(block));
}

void check_not_compressed(const MappedFile& file) {
  const auto bytes = file.bytes();
  check(bytes.size() < 2 || bytes[0] != 0x1f || bytes[1] != 0x8b,
        "data file {} is compressed; unpack it with gunzip (.gz) or tar xzf (.tar.gz)",
        file.path().string());
}

}  // namespace espalier::io
