#include "src/hub/tensor_source.h"

#include <functional>
#include <numeric>

#include "io/safetensors/numbers.h"
#include "src/core/error.h"
#include "src/core/finite.h"

namespace espalier::hub {
namespace {

constexpr int64_t kBitsPerByte = 8;

std::string joined(std::string_view name, std::string_view suffix) {
  return std::string(name) + std::string(suffix);
}

/// The type of memory that holds the values of a masked tensor.
DType dtype_for(io::SafetensorsType type) { return io::same_bits(type).value_or(DType::fp32); }

}  // namespace

int64_t SourceTensor::count() const {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

std::string SourceTensor::shape_text() const {
  return io::SafetensorsTensor{.name = name, .type = type, .shape = shape}.shape_text();
}

TensorSource::TensorSource(const std::filesystem::path& path) : files_(path) {
  for (const std::string& name : files_.names()) {
    if (std::optional<SourceTensor> masked =
            name.ends_with(kValuesSuffix) ? masked_tensor(name) : std::nullopt) {
      tensors_[masked->name] = *masked;
      continue;
    }
    const auto part_of_masked = [&](std::string_view suffix) {
      return name.ends_with(suffix) &&
             files_.has(name.substr(0, name.size() - suffix.size()) + std::string(kValuesSuffix));
    };
    if (!part_of_masked(kIndexSuffix) && !part_of_masked(kShapeSuffix)) {
      const io::SafetensorsTensor& tensor = files_.tensor(name);
      tensors_[name] = {.name = name, .shape = tensor.shape, .type = tensor.type};
    }
  }
}

/// Empty if `values` is no part of a masked tensor.
std::optional<SourceTensor> TensorSource::masked_tensor(const std::string& values) const {
  const std::string name = values.substr(0, values.size() - kValuesSuffix.size());
  const std::string index = joined(name, kIndexSuffix);
  const std::string shape = joined(name, kShapeSuffix);
  if (!files_.has(index) || !files_.has(shape)) {
    return std::nullopt;
  }
  const io::SafetensorsTensor& extents = files_.tensor(shape);
  constexpr uint64_t kMostBytes = Shape::kMaxRank * sizeof(int64_t);
  check(extents.type == io::SafetensorsType::i64 && extents.shape.size() == 1 &&
            extents.bytes() > 0 && extents.bytes() <= kMostBytes,
        "{}: tensor {} holds no shape of 1 to {} extents (I64); export the model again",
        files_.path().string(), shape, Shape::kMaxRank);
  SourceTensor out{.name = name, .type = files_.tensor(values).type, .masked = true};
  out.shape.resize(extents.bytes() / sizeof(int64_t));
  files_.read_bytes(shape, std::as_writable_bytes(std::span(out.shape)));
  double count = 1;
  for (const int64_t extent : out.shape) {
    count *= extent < 0 ? -1.0 : static_cast<double>(extent);
  }
  check(count >= 0 && count <= static_cast<double>(sparse::kMaxElements),
        "{}: tensor {} names impossible extents; export the model again", files_.path().string(),
        shape);
  const io::SafetensorsTensor& bits = files_.tensor(index);
  const auto bytes = static_cast<uint64_t>((out.count() + kBitsPerByte - 1) / kBitsPerByte);
  check(
      bits.type == io::SafetensorsType::u8 && bits.bytes() == bytes && io::is_convertible(out.type),
      "{}: {} has {} bytes of type {} and values of type {}, but shape {} needs {} of U8 and "
      "values of F64, F32, F16 or BF16; export the model again",
      files_.path().string(), index, bits.bytes(), name_of(bits.type), name_of(out.type),
      out.shape_text(), bytes);
  return out;
}

const MaskedArray& TensorSource::masked_array(const SourceTensor& tensor) const {
  if (opened_ == tensor.name) {
    return *array_;
  }
  array_.reset();
  const int64_t count = tensor.count();
  std::vector<uint64_t> words(static_cast<size_t>(count + 63) / 64);
  const std::string index = joined(stored_name(tensor), kIndexSuffix);
  files_.read_bytes(index,
                    std::as_writable_bytes(std::span(words)).first(files_.tensor(index).bytes()));
  const bool clean = count % 64 == 0 || words.back() >> (count % 64) == 0;
  const std::string values = joined(stored_name(tensor), kValuesSuffix);
  const int64_t stored = files_.tensor(values).count();
  check(clean && sparse::count_ones(words) == stored,
        "{}: {} marks {} elements, and {} has {}; export the model again", files_.path().string(),
        index, sparse::count_ones(words), values, stored);
  const DType dtype = dtype_for(tensor.type);
  std::vector<std::byte> bytes(static_cast<size_t>(stored) * size_of(dtype));
  if (stored > 0) {
    files_.read(values, Tensor(bytes.data(), dtype, Shape{stored}));
  }
  array_ = std::make_unique<MaskedArray>(sparse::Mask::from_words(count, words), std::move(bytes),
                                         dtype);
  opened_ = tensor.name;
  return *array_;
}

void TensorSource::rename(const std::string& name, const std::string& other) {
  require(renamed_.empty() && has(name) && !has(other), "one tensor gets a new name", name, other);
  auto node = tensors_.extract(name);
  node.key() = node.mapped().name = renamed_ = other;
  stored_ = name;
  tensors_.insert(std::move(node));
}

void TensorSource::read(const std::string& name, int64_t first, const Tensor& out,
                        std::span<uint8_t> kept) const {
  const SourceTensor& found = tensor(name);
  if (found.masked) {
    masked_array(found).read(first, out, kept);
  } else {
    std::ranges::fill(kept, uint8_t{1});
    files_.read(stored_name(found), out, first);
  }
  // fp32 holds all 16-bit values.
  if (io::same_bits(found.type) != out.dtype &&
      (out.dtype != DType::fp32 || found.type == io::SafetensorsType::f64)) {
    check_rounded(out, name);
  }
  check_finite(out, files_.path().string(), name);
}

}  // namespace espalier::hub
