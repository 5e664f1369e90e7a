#include "io/safetensors/header.h"

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>
#include <utility>

#include "io/safetensors/json_events.h"
#include "src/core/error.h"

namespace espalier::io {
namespace {

constexpr size_t kMaxSafetensorsRank = 64;

/// Collects the tensors and texts of a header.
class HeaderHandler : public JsonHandler {
 public:
  explicit HeaderHandler(std::string_view file) : file_(file) {}
  SafetensorsHeader take() { return std::move(header_); }

  bool key(int64_t level, std::string& name) override {
    if (level == 1) {
      begin_member(name);
      return true;
    }
    if (in_metadata_) {
      text_key_ = name;
      return true;
    }
    field_ = name == "dtype"          ? Field::type
             : name == "shape"        ? Field::shape
             : name == "data_offsets" ? Field::offsets
                                      : Field::none;
    if (field_ == Field::none) {
      return false;
    }
    if (std::exchange(seen_.at(static_cast<size_t>(field_)), true)) {
      refuse_tensor(fmt::format("has \"{}\" twice", name));
    }
    return true;
  }

  void begin(int64_t level, Kind kind) override {
    const bool list = level == 2 && !in_metadata_ && field_ != Field::type;
    if (level > 2 || list != (kind == Kind::list) || (level == 2 && !list)) {
      refuse(level, kind == Kind::list ? "a list" : "an object");
    }
  }

  void end(int64_t level, Kind) override {
    if (level == 1 && !in_metadata_) {
      end_tensor();
    }
  }

  void text(int64_t level, std::string& value) override {
    if (level == 2 && in_metadata_) {
      if (!header_.metadata.emplace(text_key_, std::move(value)).second) {
        fail("{}: {} has {} twice; {}", file_, kSafetensorsMetadata, quoted_text(text_key_),
             kSafetensorsFix);
      }
    } else if (level == 2 && field_ == Field::type) {
      const std::optional<SafetensorsType> type = safetensors_type(value);
      if (!type) {
        fail("{}: {} has the dtype {}, which is unknown; convert the tensor to one of: {}", file_,
             tensor_text(), quoted_text(value), safetensors_type_names());
      }
      tensor_.type = *type;
    } else {
      refuse(level, quoted_text(value));
    }
  }

  void number(int64_t level, uint64_t value) override {
    constexpr auto kMost = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
    if (level != 3 || value > kMost) {
      refuse(level, fmt::format("{}", value));
    }
    if (field_ == Field::shape) {
      if (tensor_.shape.size() == kMaxSafetensorsRank) {
        refuse_tensor(fmt::format("has a shape of more than {} extents", kMaxSafetensorsRank));
      }
      tensor_.shape.push_back(static_cast<int64_t>(value));
    } else {
      if (offsets_ == 2) {
        refuse_tensor("has more than two data_offsets");
      }
      (offsets_ == 0 ? tensor_.begin : tensor_.end) = value;
      ++offsets_;
    }
  }

  void other(int64_t level, std::string_view value) override {
    if (level != 1 || !in_metadata_ || value != "null") {
      refuse(level, value);
    }
  }

 private:
  enum class Field : uint8_t { type, shape, offsets, none };

  std::string tensor_text() const { return "tensor " + quoted_text(tensor_.name); }

  [[noreturn]] void refuse_tensor(std::string_view what) const {
    fail("{}: {} {}; {}", file_, tensor_text(), what, kSafetensorsFix);
  }

  void begin_member(std::string& name) {
    in_metadata_ = name == kSafetensorsMetadata;
    if (in_metadata_) {
      check(!has_metadata_, "{}: its header has {} twice; {}", file_, kSafetensorsMetadata,
            kSafetensorsFix);
      has_metadata_ = true;
      return;
    }
    tensor_ = {};
    tensor_.name = std::move(name);
    seen_ = {};
    offsets_ = 0;
  }

  void end_tensor() {
    constexpr std::array<const char*, 3> kFields{"dtype", "shape", "data_offsets"};
    for (size_t i = 0; i < kFields.size(); ++i) {
      if (!seen_.at(i)) {
        refuse_tensor(fmt::format("has no {}", kFields.at(i)));
      }
    }
    if (offsets_ != 2) {
      refuse_tensor("has fewer than two data_offsets");
    }
    header_.tensors.push_back(std::move(tensor_));
  }

  /// A value of a kind that its place does not take.
  [[noreturn]] void refuse(int64_t level, std::string_view value) const {
    const std::string_view field = field_ == Field::type    ? "dtype"
                                   : field_ == Field::shape ? "shape"
                                                            : "data_offsets";
    std::string where = "its header";
    std::string_view wanted = "an object";
    if (level == 1) {
      where = in_metadata_ ? kSafetensorsMetadata : tensor_text();
    } else if (in_metadata_ && level > 1) {
      where = fmt::format("{}: {}", kSafetensorsMetadata, quoted_text(text_key_));
      wanted = "a text";
    } else if (level == 2) {
      where = fmt::format("{} of {}", field, tensor_text());
      wanted = field_ == Field::type ? "a text" : "a list of whole numbers";
    } else if (level > 2) {
      fail("{}: {} of {} holds {} instead of a whole number from 0 to 2^63 - 1; {}", file_, field,
           tensor_text(), value, kSafetensorsFix);
    }
    fail("{}: {} is {} instead of {}; {}", file_, where, value, wanted, kSafetensorsFix);
  }

  std::string_view file_;
  SafetensorsHeader header_{};
  bool has_metadata_ = false;
  bool in_metadata_ = false;
  std::string text_key_{};  ///< of a text of the metadata
  SafetensorsTensor tensor_{};
  Field field_ = Field::none;
  std::array<bool, 3> seen_{};  ///< by Field
  int offsets_ = 0;             ///< numbers in data_offsets so far
};

std::string joined(const std::vector<int64_t>& numbers, std::string_view between) {
  std::string out;
  for (const int64_t number : numbers) {
    out += out.empty() ? "" : between;
    out += std::to_string(number);
  }
  return out;
}

void check_safetensors_names(const std::vector<SafetensorsTensor>& tensors, std::string_view file) {
  std::vector<const SafetensorsTensor*> by_name;
  by_name.reserve(tensors.size());
  for (const SafetensorsTensor& tensor : tensors) {
    by_name.push_back(&tensor);
  }
  std::ranges::sort(by_name, {}, [](const auto* tensor) { return std::string_view(tensor->name); });
  const auto twice = std::ranges::adjacent_find(
      by_name, {}, [](const auto* tensor) { return std::string_view(tensor->name); });
  if (twice != by_name.end()) {
    fail("{}: tensor {} stands twice in the header; {}", file, quoted_text((*twice)->name),
         kSafetensorsFix);
  }
}

/// Why a tensor cannot be at its place, behind the one `before`, which ends at `end`; empty if it
/// can.
std::string misplaced(const SafetensorsTensor& tensor, const SafetensorsTensor* before,
                      uint64_t end, uint64_t data_bytes) {
  const auto offsets = [&] { return fmt::format("[{}, {}]", tensor.begin, tensor.end); };
  if (tensor.begin > tensor.end) {
    return fmt::format("has data_offsets {} that descend", offsets());
  }
  if (tensor.begin < end) {
    return fmt::format("with data_offsets {} overlaps {}, which ends at {}", offsets(),
                       quoted_text(before->name), end);
  }
  if (tensor.begin > end) {
    return fmt::format("begins at byte {0} of the data, and bytes [{1}, {0}) belong to no tensor",
                       tensor.begin, end);
  }
  const std::optional<uint64_t> bytes = safetensors_bytes(tensor.type, tensor.shape);
  if (!bytes) {
    return fmt::format("has the shape {} of {}, whose size is no number of bytes below 2^61",
                       tensor.shape_text(), name_of(tensor.type));
  }
  if (tensor.bytes() != *bytes) {
    return fmt::format("of shape {} and type {} needs {} bytes, but data_offsets {} have {}",
                       tensor.shape_text(), name_of(tensor.type), *bytes, offsets(),
                       tensor.bytes());
  }
  if (tensor.end > data_bytes) {
    return fmt::format("ends at byte {} of the data, but the file has only {}: it is truncated",
                       tensor.end, data_bytes);
  }
  return "";
}

/// The tensors, in the order of their data, cover it: each begins where the one before ends.
void check_safetensors_places(const std::vector<SafetensorsTensor>& tensors, uint64_t data_bytes,
                              std::string_view file) {
  uint64_t end = 0;
  const SafetensorsTensor* before = nullptr;
  for (const SafetensorsTensor& tensor : tensors) {
    if (const std::string why = misplaced(tensor, before, end, data_bytes); !why.empty()) {
      fail("{}: tensor {} {}; {}", file, quoted_text(tensor.name), why, kSafetensorsFix);
    }
    end = tensor.end;
    before = &tensor;
  }
  check(end == data_bytes, "{}: its last {} bytes belong to no tensor; {}", file, data_bytes - end,
        kSafetensorsFix);
}

/// With quotes. Throws Failure if it is not UTF-8.
std::string json_text(std::string_view text, std::string_view file) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::exception&) {
    fail("{}: {} is not UTF-8, and texts of a safetensors file are; rename it", file,
         quoted_text(text));
  }
}

}  // namespace

int64_t SafetensorsTensor::count() const {
  constexpr uint64_t kByte = 8;
  return static_cast<int64_t>(bytes() * kByte / bits_of(type));
}

std::string SafetensorsTensor::shape_text() const { return "[" + joined(shape, ", ") + "]"; }

SafetensorsHeader parse_safetensors_header(std::string_view json, uint64_t data_bytes,
                                           std::string_view file) {
  check(json.starts_with('{'), "{}: its header does not begin with \"{{\"; {}", file,
        kSafetensorsFix);
  HeaderHandler handler(file);
  size_t place = 0;
  const bool whole = read_json_events(json, handler, place);
  check(whole, "{}: its header is no JSON from byte {} on; {}", file, place, kSafetensorsFix);
  SafetensorsHeader header = handler.take();
  check_safetensors_names(header.tensors, file);
  std::ranges::sort(header.tensors, {}, [](const SafetensorsTensor& tensor) {
    return std::tuple(tensor.begin, tensor.end, std::string_view(tensor.name));
  });
  check_safetensors_places(header.tensors, data_bytes, file);
  return header;
}

std::string safetensors_header_text(const SafetensorsHeader& header, std::string_view file) {
  constexpr size_t kLength = 8;
  std::string out(kLength, '\0');
  out += '{';
  if (!header.metadata.empty()) {
    out += fmt::format("\"{}\":{{", kSafetensorsMetadata);
    for (const auto& [key, text] : header.metadata) {
      out += fmt::format("{}{}:{}", out.back() == '{' ? "" : ",", json_text(key, file),
                         json_text(text, file));
    }
    out += '}';
  }
  for (const SafetensorsTensor& tensor : header.tensors) {
    out += fmt::format("{}{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}",
                       out.back() == '{' ? "" : ",", json_text(tensor.name, file),
                       name_of(tensor.type), joined(tensor.shape, ","), tensor.begin, tensor.end);
  }
  out += '}';
  out.resize((out.size() + kLength - 1) / kLength * kLength, ' ');
  const uint64_t bytes = out.size() - kLength;
  check(bytes <= kMaxSafetensorsHeader,
        "{}: its header would have {} bytes, and readers accept at most {}; write fewer tensors or "
        "texts into a file",
        file, bytes, kMaxSafetensorsHeader);
  for (size_t i = 0; i < kLength; ++i) {
    out[i] = static_cast<char>(bytes >> (8 * i));
  }
  return out;
}

}  // namespace espalier::io
