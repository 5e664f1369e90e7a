#include "io/tokenizer/json_field.h"

#include "io/tokenizer/utf8.h"

namespace espalier::io {
namespace {

const nlohmann::json kNull;

}  // namespace

JsonField JsonField::at(const std::string& name) const {
  if (!value_->is_object()) {
    refuse("is no object; expected one with \"{}\"", name);
  }
  const auto found = value_->find(name);
  if (found == value_->end()) {
    JsonField(kNull, *file_, place_of(name)).refuse("is missing; is this a whole tokenizer.json?");
  }
  return {*found, *file_, place_of(name)};
}

JsonField JsonField::maybe(const std::string& name) const {
  const auto found = value_->is_object() ? value_->find(name) : value_->end();
  return {found == value_->end() ? kNull : *found, *file_, place_of(name)};
}

std::vector<JsonField> JsonField::elements() const {
  if (!value_->is_array()) {
    refuse("is no list");
  }
  std::vector<JsonField> out;
  for (size_t i = 0; i < value_->size(); ++i) {
    out.push_back(JsonField((*value_)[i], *file_, fmt::format("{}[{}]", place_, i)));
  }
  return out;
}

const std::string& JsonField::text() const {
  if (!value_->is_string()) {
    refuse("is no text");
  }
  return value_->get_ref<const std::string&>();
}

bool JsonField::flag(bool missing) const {
  if (value_->is_null()) {
    return missing;
  }
  if (!value_->is_boolean()) {
    refuse("is neither true nor false");
  }
  return value_->get<bool>();
}

int64_t JsonField::number(int64_t bound) const {
  const bool fits =
      value_->is_number_unsigned() && value_->get<uint64_t>() < static_cast<uint64_t>(bound);
  if (!fits) {
    refuse("is no integer from 0 to {}", bound - 1);
  }
  return value_->get<int64_t>();
}

std::string JsonField::printable(std::string_view text) {
  constexpr size_t kMost = 80;
  if (text.size() <= kMost) {
    return std::string(text);
  }
  size_t end = kMost;
  while (end > 0 && is_continuation(text[end])) {
    --end;
  }
  return std::string(text.substr(0, end)) + "…";
}

}  // namespace espalier::io
