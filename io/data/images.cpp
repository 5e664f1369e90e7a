#include "io/data/images.h"

#include <algorithm>
#include <cmath>

#include "io/files/mapped_file.h"
#include "src/core/error.h"

namespace espalier::io {
namespace {

constexpr uint32_t kImages = 0x00000803;
constexpr uint32_t kLabels = 0x00000801;

uint32_t big_endian(std::span<const uint8_t> bytes, size_t at) {
  return uint32_t{bytes[at]} << 24 | uint32_t{bytes[at + 1]} << 16 | uint32_t{bytes[at + 2]} << 8 |
         uint32_t{bytes[at + 3]};
}

/// One file: its magic says whether it holds images or labels; one byte a pixel or label follows
/// the header.
struct Idx {
  MappedFile file;
  uint32_t magic = 0;
  int64_t count = 0;
  int64_t pixels = 1;
  size_t header = 8;

  explicit Idx(const std::string& path) : file(path) {
    const auto bytes = file.bytes();
    check(bytes.size() < 2 || bytes[0] != 0x1f || bytes[1] != 0x8b,
          "data file {} is compressed; unpack it with gunzip", path);
    check(bytes.size() >= 16 || (bytes.size() >= 8 && big_endian(bytes, 0) == kLabels),
          "data file {} is too short for an IDX file ({} bytes); download or unpack it again", path,
          bytes.size());
    magic = big_endian(bytes, 0);
    check(magic == kImages || magic == kLabels,
          "data file {} is not an IDX file of images or labels (magic 0x{:08x}, expected 0x803 or "
          "0x801); name other files in data.train and data.validation",
          path, magic);
    count = big_endian(bytes, 4);
    if (magic == kImages) {
      header = 16;
      // Extents of a damaged header may pass 63 bits; the comparison below then refuses them.
      const uint64_t area = uint64_t{big_endian(bytes, 8)} * big_endian(bytes, 12);
      pixels = static_cast<int64_t>(std::min<uint64_t>(area, INT64_MAX));
    }
    const double wanted =
        static_cast<double>(header) + static_cast<double>(count) * static_cast<double>(pixels);
    check(static_cast<double>(bytes.size()) == wanted && count > 0 && pixels > 0,
          "data file {} has {} bytes, but its header describes {} items of {} bytes after {} bytes "
          "of header; download or unpack it again",
          path, bytes.size(), count, pixels, header);
  }
  const uint8_t* item(int64_t i) const { return file.bytes().data() + header + i * pixels; }
};

/// Images with their labels, several files in a row.
struct Collection {
  std::vector<Idx> images;
  std::vector<Idx> labels;
  int64_t size = 0;

  explicit Collection(std::span<const std::string> paths) {
    for (const std::string& path : paths) {
      Idx file(path);
      (file.magic == kImages ? images : labels).push_back(std::move(file));
    }
    check(images.size() == labels.size(),
          "the data has {} files of images and {} of labels; name them in pairs", images.size(),
          labels.size());
    for (size_t k = 0; k < images.size(); ++k) {
      check(images[k].count == labels[k].count,
            "{} holds {} images but {} holds {} labels; name matching files, in pairs and in order",
            images[k].file.path().string(), images[k].count, labels[k].file.path().string(),
            labels[k].count);
      check(images[k].pixels == images[0].pixels,
            "{} holds images of {} pixels, but {} holds images of {}; use files with images of one "
            "size",
            images[0].file.path().string(), images[0].pixels, images[k].file.path().string(),
            images[k].pixels);
      size += images[k].count;
    }
  }

  /// The files of images: pictures may share a file of labels.
  std::vector<std::string> image_files() const {
    std::vector<std::string> files;
    for (const Idx& file : images) {
      files.push_back(file.file.path().string());
    }
    return files;
  }

  int64_t classes() const {
    int64_t largest = -1;
    for (const Idx& file : labels) {
      const uint8_t* first = file.item(0);
      largest = std::max<int64_t>(largest, *std::max_element(first, first + file.count));
    }
    return largest + 1;
  }
};

}  // namespace

struct ImageDataset::State {
  Collection data;
  int64_t begin = 0;
  int64_t end = 0;
  int64_t classes = 0;
};

ImageDataset ImageDataset::open(const DataConfig& data, Split split) {
  check(data.kind == "images", "data.kind = \"{}\" holds no images; set data.kind = \"images\"",
        data.kind);
  check(!data.train.empty(), "data.train is empty; name a file of images and one of labels");
  const bool own_files = !data.validation.empty();
  Collection train(data.train);
  Collection validation(data.validation);
  check_disjoint(train.image_files(), validation.image_files(), data.validation_fraction);
  const int64_t classes = std::max(train.classes(), validation.classes());
  const auto tail =
      static_cast<int64_t>(std::floor(static_cast<double>(train.size) * data.validation_fraction));
  std::shared_ptr<State> state;
  if (split == Split::validation && own_files) {
    check(train.images[0].pixels == validation.images[0].pixels,
          "training images have {} pixels, but validation images have {}; name files with images "
          "of one size",
          train.images[0].pixels, validation.images[0].pixels);
    const int64_t size = validation.size;
    state = std::make_shared<State>(State{std::move(validation), 0, size, classes});
  } else {
    const int64_t size = train.size;
    const int64_t cut = own_files ? size : size - tail;
    state = split == Split::train
                ? std::make_shared<State>(State{std::move(train), 0, cut, classes})
                : std::make_shared<State>(State{std::move(train), cut, size, classes});
  }
  check(state->begin < state->end,
        "the {} data has no image; use more images or another data.validation_fraction",
        name_of(split));
  return ImageDataset(std::move(state));
}

int64_t ImageDataset::size() const { return state_->end - state_->begin; }
int64_t ImageDataset::pixels() const { return state_->data.images[0].pixels; }
int64_t ImageDataset::classes() const { return state_->classes; }

int32_t ImageDataset::read(int64_t image, std::span<float> row) const {
  require(image >= 0 && image < size() && static_cast<int64_t>(row.size()) == pixels(),
          "an image lies within the split, and the row holds one", image, size(), row.size());
  int64_t at = state_->begin + image;
  size_t k = 0;
  while (at >= state_->data.images[k].count) {
    at -= state_->data.images[k].count;
    ++k;
  }
  const uint8_t* from = state_->data.images[k].item(at);
  std::transform(from, from + row.size(), row.begin(),
                 [](uint8_t pixel) { return static_cast<float>(pixel) / 255.0F; });
  return *state_->data.labels[k].item(at);
}

}  // namespace espalier::io
