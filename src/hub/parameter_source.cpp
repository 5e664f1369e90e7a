#include "src/hub/parameter_source.h"

#include "src/core/finite.h"
#include "src/train/masks/mask_files.h"

namespace espalier::hub {

ParameterSource::ParameterSource(const io::CheckpointReader& reader, const std::string& name,
                                 DType dtype)
    : reader_(reader), name_(name) {
  const io::StoredParameter info = reader.info(name_);
  const bool full = info.nnz == info.shape.count();
  const bool exact = info.dtype != dtype && reader.has_optimizer(name_, "master");
  stored_ = exact ? DType::fp32 : info.dtype;
  streamed_ = full && !exact;
  if (streamed_) {
    sum_ = std::make_unique<io::CheckpointChecksum>();
    return;
  }
  std::vector<std::byte> values(static_cast<size_t>(info.nnz) * size_of(stored_));
  const Tensor view(values.data(), stored_, Shape{info.nnz});
  exact ? reader.optimizer(name_, "master", view) : reader.values(name_, view);
  if (full) {
    whole_ = std::move(values);
  } else {
    array_ =
        std::make_unique<MaskedArray>(train::read_mask(reader, name_), std::move(values), stored_);
  }
}

void ParameterSource::read(int64_t first, const Tensor& out, std::span<uint8_t> kept) {
  convert(first, out, kept);
  if (stored_ != out.dtype && out.dtype != DType::fp32) {  // which holds all others
    check_rounded(out, name_);
  }
  check_finite(out, reader_.path().string(), name_);
}

void ParameterSource::convert(int64_t first, const Tensor& out, std::span<uint8_t> kept) {
  const int64_t count = out.count();
  if (array_) {
    array_->read(first, out, kept);
    return;
  }
  std::ranges::fill(kept, uint8_t{1});
  if (!streamed_) {
    const Tensor all(whole_.data(), stored_,
                     Shape{static_cast<int64_t>(whole_.size() / size_of(stored_))});
    convert_elements(all.elements(first, count), out.reshaped(Shape{count}));
    return;
  }
  require(first == next_, "a streamed parameter is read from front to end", name_, first, next_);
  next_ += count;
  const auto load = [&](std::span<std::byte> bytes) {
    reader_.value_bytes(name_, static_cast<uint64_t>(first) * size_of(stored_), bytes);
    sum_->add(bytes);
  };
  if (stored_ == out.dtype) {
    load({static_cast<std::byte*>(out.data), out.bytes()});
    return;
  }
  std::vector<std::byte> raw(static_cast<size_t>(count) * size_of(stored_));
  load(raw);
  convert_elements(Tensor(raw.data(), stored_, Shape{count}), out.reshaped(Shape{count}));
}

void ParameterSource::finish() {
  if (streamed_) {
    reader_.verify_values(name_, sum_->value());
  }
}

}  // namespace espalier::hub
