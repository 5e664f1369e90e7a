// The binary versions of CIFAR-10 and CIFAR-100: files of records without a header. A record is its
// labels, one byte each, and an image of 3 planes (red, green, blue) of 32 x 32 bytes.
//
//   CIFAR-10    class 0..9
//   CIFAR-100   group of classes 0..19, class 0..99
//
// Source: https://www.cs.toronto.edu/~kriz/cifar.html
#include "io/data/image_format.h"
#include "src/core/error.h"

namespace espalier::io {
namespace {

constexpr int64_t kPixels = int64_t{3} * 32 * 32;

/// The labels of a record; the last one is the class.
struct CifarRecord {
  std::string_view name;
  std::span<const int64_t> label_ends;  ///< labels are below
  int64_t bytes() const { return std::ssize(label_ends) + kPixels; }
};

void check_labels(const MappedFile& file, const CifarRecord& record) {
  const auto bytes = file.bytes();
  const int64_t count = std::ssize(bytes) / record.bytes();
  for (int64_t i = 0; i < count; ++i) {
    const uint8_t* labels = bytes.data() + i * record.bytes();
    for (size_t k = 0; k < record.label_ends.size(); ++k) {
      check(labels[k] < record.label_ends[k],
            "data file {}: byte {} of image {} is {}, but label {} of {} is within 0..{}; set "
            "data.format to the format of the file, or download and unpack it again",
            file.path().string(), k, i, labels[k], k + 1, record.name, record.label_ends[k] - 1);
    }
  }
}

ImageFiles open_records(std::span<const std::string> paths, const CifarRecord& record) {
  ImageFiles found;
  found.planar = true;
  found.classes = record.label_ends.back();
  const int64_t labels = std::ssize(record.label_ends);
  for (const std::string& path : paths) {
    const MappedFile& file = found.files.emplace_back(path);
    const auto bytes = file.bytes();
    check_not_compressed(file);
    check(std::ssize(bytes) % record.bytes() == 0,
          "data file {} has {} bytes, not a multiple of {}, the size of a record of {}; download "
          "or unpack it again, or set data.format to the format of the file",
          path, bytes.size(), record.bytes(), record.name);
    check_labels(file, record);
    found.add({.file = path,
               .pixels = bytes.data() + labels,
               .pixel_stride = record.bytes(),
               .labels = bytes.data() + labels - 1,
               .label_stride = record.bytes(),
               .count = std::ssize(bytes) / record.bytes()},
              Shape{32, 32, 3});
  }
  return found;
}

constexpr std::array<int64_t, 1> kTen{10};
constexpr std::array<int64_t, 2> kHundred{20, 100};

}  // namespace

extern const ImageFormat kCifar10, kCifar100;
const ImageFormat kCifar10{.name = "cifar10",
                           .help = "files of the binary version of CIFAR-10",
                           .usual_extents = {32, 32, 3},
                           .usual_classes = 10,
                           .open = [](std::span<const std::string> paths) {
                             return open_records(paths, {.name = "CIFAR-10", .label_ends = kTen});
                           }};
const ImageFormat kCifar100{
    .name = "cifar100",
    .help = "files of the binary version of CIFAR-100; the classes are its fine labels",
    .usual_extents = {32, 32, 3},
    .usual_classes = 100,
    .open = [](std::span<const std::string> paths) {
      return open_records(paths, {.name = "CIFAR-100", .label_ends = kHundred});
    }};

}  // namespace espalier::io
