#pragma once
// The config.json of a Hugging Face model: typed access, and errors that name file and key.
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "src/core/error.h"

namespace espalier::hub {

using Json = nlohmann::ordered_json;

class ConfigJson {
 public:
  /// Throws Failure, which begins with `file`, unless `text` is a JSON object.
  ConfigJson(std::string text, std::string file);

  const std::string& file() const { return file_; }
  const std::string& text() const { return text_; }
  const Json& json() const { return json_; }
  /// Whether the key is there and not null.
  bool has(const std::string& key) const;
  bool is_null(const std::string& key) const;
  /// Whether it is an object with members, or a list with entries.
  bool has_members(const std::string& key) const;
  /// Keys that are not null and that no member function was called with.
  std::vector<std::string> unread() const;

  // Values of keys. Throw Failure if the key is missing (without `missing`) or of another type.
  // null counts as missing.
  int64_t number(const std::string& key) const;  ///< 1 to 2^31 - 1
  int64_t number(const std::string& key, int64_t missing) const;
  double real(const std::string& key, double missing) const;
  /// null is false, as in Python.
  bool flag(const std::string& key, bool missing) const;
  std::string word(const std::string& key, const std::string& missing) const;
  /// A member that is an object, with its own keys; empty if it is missing.
  ConfigJson part(const std::string& key) const;

  /// Throws Failure unless the key is missing, null or `value`. `why`: what the network computes
  /// instead.
  void only(const std::string& key, const Json& value, std::string_view why) const;
  /// Throws Failure: the value of the key is not supported, and why.
  [[noreturn]] void refuse(const std::string& key, std::string_view why) const;

 private:
  const Json* find(const std::string& key) const;
  std::string shown(const Json& value) const;

  std::string text_, file_;
  std::string place_;  ///< "rope_scaling." of a part
  Json json_;
  mutable std::set<std::string> read_;
};

}  // namespace espalier::hub
