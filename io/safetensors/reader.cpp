#include "io/safetensors/reader.h"

#include <algorithm>
#include <array>
#include <new>
#include <utility>

#include "io/files/file_system.h"
#include "io/safetensors/json_events.h"
#include "io/safetensors/numbers.h"
#include "src/core/error.h"

namespace espalier::io {
namespace {

constexpr uint64_t kLengthBytes = 8;  ///< of the header's length

/// Files that are often taken for safetensors, by their first bytes.
struct OtherFormat {
  std::string_view begin;
  std::string_view what;
};
constexpr std::string_view kPickle =
    "a file of torch.save; convert it with Python: safetensors.torch.save_file(torch.load(FILE, "
    "weights_only=True), OUT)";
constexpr std::array kOtherFormats{
    OtherFormat{"version ", "a pointer of Git LFS, not the file itself; fetch it: git lfs pull"},
    OtherFormat{"PK\x03\x04", kPickle},
    OtherFormat{"\x80\x02", kPickle},
    OtherFormat{"\x89HDF", "an HDF5 file; `espalier import` reads it"},
    OtherFormat{"GGUF", "a GGUF file; use the model's safetensors files"},
    OtherFormat{"<", "a page of a web site; download the file itself"},
    OtherFormat{"{",
                "JSON, such as the index of shards; name a .safetensors file, or an index that "
                "ends in .json"}};

uint64_t little_endian(std::string_view bytes) {
  uint64_t number = 0;
  for (size_t i = bytes.size(); i-- > 0;) {
    number = number << 8 | static_cast<unsigned char>(bytes[i]);
  }
  return number;
}

}  // namespace

SafetensorsReader::SafetensorsReader(std::filesystem::path path)
    : path_(std::move(path)), file_(RawFile::open(path_)) {
  const std::string name = path_.string();
  const auto load_text = [&](uint64_t offset, uint64_t bytes) {
    std::string text(bytes, '\0');
    const bool read = file_.read(offset, text.size(), text.data());
    check_system(read, file_.error(), "{} cannot be read: {}; check the disk", name,
                 cause_of(file_.error()));
    return text;
  };
  const std::string beginning = load_text(0, std::min(kLengthBytes, file_.size()));
  check(beginning.size() == kLengthBytes, "{} has {} bytes, too few for a safetensors file; {}",
        name, beginning.size(), kSafetensorsFix);
  const uint64_t length = little_endian(beginning);
  const uint64_t rest = file_.size() - kLengthBytes;
  if (length > std::min(rest, kMaxSafetensorsHeader)) {
    for (const OtherFormat& format : kOtherFormats) {
      check(!beginning.starts_with(format.begin), "{} is {}", name, format.what);
    }
  }
  check(length <= kMaxSafetensorsHeader,
        "{}: its header of {} bytes is longer than the {} that safetensors files may have; {}",
        name, length, kMaxSafetensorsHeader, kSafetensorsFix);
  check(length <= rest,
        "{}: its header has {} bytes, but the file ends after {} of them: it is truncated; "
        "download it again",
        name, length, rest);
  data_ = kLengthBytes + length;
  header_ = parse_safetensors_header(load_text(kLengthBytes, length), rest - length, name);
  for (const SafetensorsTensor& tensor : header_.tensors) {
    places_.emplace(tensor.name, places_.size());
  }
}

const SafetensorsTensor& SafetensorsReader::tensor(const std::string& name) const {
  const auto found = places_.find(name);
  if (found != places_.end()) {
    return header_.tensors[found->second];
  }
  std::string names;
  constexpr size_t kShown = 8;
  for (size_t i = 0; i < std::min(kShown, header_.tensors.size()); ++i) {
    names += (i > 0 ? ", " : "") + quoted_text(header_.tensors[i].name);
  }
  fail("{} has no tensor {}; of its {} tensors the first are: {}", path_.string(),
       quoted_text(name), header_.tensors.size(), names);
}

void SafetensorsReader::load(const SafetensorsTensor& tensor, uint64_t first,
                             std::span<std::byte> out) const {
  const std::optional<size_t> got =
      file_.read_to_end(data_ + tensor.begin + first, out.size(), out.data());
  check_system(got.has_value(), file_.error(), "{}: tensor {} cannot be read: {}; check the disk",
               path_.string(), quoted_text(tensor.name), cause_of(file_.error()));
  if (*got < out.size()) {
    fail("{} has become shorter while tensor {} is read; restore the file, then repeat the command",
         path_.string(), quoted_text(tensor.name));
  }
}

void SafetensorsReader::read_bytes(const std::string& name, std::span<std::byte> out,
                                   uint64_t first) const {
  const SafetensorsTensor& from = tensor(name);
  require(first <= from.bytes() && out.size() <= from.bytes() - first,
          "a read stays within the tensor", name, first, out.size());
  load(from, first, out);
}

void SafetensorsReader::read(const std::string& name, const Tensor& out, int64_t first) const {
  const SafetensorsTensor& from = tensor(name);
  if (!is_convertible(from.type)) {
    fail(
        "{}: tensor {} has type {}, and values are read from F64, F32, F16 and BF16; convert the "
        "tensor, or leave it out",
        path_.string(), quoted_text(name), name_of(from.type));
  }
  require(first >= 0 && first <= from.count() && out.count() <= from.count() - first,
          "a read stays within the tensor", name, first, out.count());
  require(out.contiguous() && !out.on_device, "values go to contiguous memory of the host", name);
  const uint64_t width = bits_of(from.type) / 8;
  const uint64_t begin = static_cast<uint64_t>(first) * width;
  if (same_bits(from.type) == out.dtype) {
    load(from, begin, {static_cast<std::byte*>(out.data), out.bytes()});
    return;
  }
  const int64_t most = kSafetensorsPiece / static_cast<int64_t>(width);
  std::vector<std::byte> bytes(static_cast<size_t>(std::min(most, out.count())) * width);
  const Tensor flat = out.reshaped(Shape{out.count()});
  for (int64_t done = 0; done < out.count(); done += most) {
    const int64_t count = std::min(most, out.count() - done);
    const auto piece = std::span(bytes).first(static_cast<size_t>(count) * width);
    load(from, begin + static_cast<uint64_t>(done) * width, piece);
    decode_numbers(from.type, piece, flat.elements(done, count));
  }
}

void SafetensorsReader::read(const std::string& name, std::span<float> out, int64_t first) const {
  read(name, Tensor(out.data(), DType::fp32, Shape{std::ssize(out)}), first);
}

std::vector<float> SafetensorsReader::read(const std::string& name) const {
  const int64_t count = tensor(name).count();
  std::vector<float> out;
  try {
    out.resize(static_cast<size_t>(count));
  } catch (const std::bad_alloc&) {
    fail(
        "{}: tensor {} has {} elements, too many for the free memory; use a machine with more "
        "memory",
        path_.string(), quoted_text(name), count);
  }
  read(name, out);
  return out;
}

}  // namespace espalier::io
