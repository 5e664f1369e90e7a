#pragma once
// Values of a tokenizer.json with their place in it, so that errors name both.
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "src/core/error.h"

namespace espalier::io {

class JsonField {
 public:
  /// `file` begins the messages. Both must outlive the field.
  JsonField(const nlohmann::json& value, const std::string& file) : value_(&value), file_(&file) {}

  const nlohmann::json& value() const { return *value_; }
  bool is_null() const { return value_->is_null(); }
  const std::string& file() const { return *file_; }

  /// Throws Failure if this is no object, or has no such member.
  JsonField at(const std::string& name) const;
  /// A null field if there is no such member.
  JsonField maybe(const std::string& name) const;
  /// The elements of a list.
  std::vector<JsonField> elements() const;

  const std::string& text() const;
  /// `missing` if the field is null.
  bool flag(bool missing) const;
  /// An integer of [0, bound).
  int64_t number(int64_t bound) const;
  /// The member "type".
  const std::string& type() const { return at("type").text(); }

  /// Throws Failure: "FILE: PLACE MESSAGE".
  template <class... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> message, Args&&... args) const {
    throw Failure(fmt::format("{}: {} {}", *file_, place_.empty() ? "its value" : place_,
                              fmt::format(message, std::forward<Args>(args)...)));
  }
  /// Throws Failure: this type is not one of `supported` (a list in words).
  [[noreturn]] void refuse_type(std::string_view supported) const {
    at("type").refuse("\"{}\" is not supported; supported: {}", printable(type()), supported);
  }
  /// At most 80 bytes of a text.
  static std::string printable(std::string_view text);

 private:
  JsonField(const nlohmann::json& value, const std::string& file, std::string place)
      : value_(&value), file_(&file), place_(std::move(place)) {}
  std::string place_of(const std::string& name) const {
    return place_.empty() ? name : place_ + "." + name;
  }

  const nlohmann::json* value_;
  const std::string* file_;
  std::string place_;  ///< "pre_tokenizer.pretokenizers[1]"
};

}  // namespace espalier::io
