// Writing: TOML, JSON, help and hash, from the same field list.
#include <fmt/ranges.h>
#include <xxhash.h>

#include <nlohmann/json.hpp>

#include "io/config/fields.h"

namespace espalier::io {
namespace {

std::string toml_string(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte < 0x20 || byte == 0x7f) {
      out += fmt::format("\\u{:04X}", byte);
    } else {
      out += c;
    }
  }
  return out + '"';
}

/// Shortest text that reads back as the same double, and as a float for TOML.
std::string number(double value) {
  std::string text = fmt::format("{}", value);
  return text.find_first_of(".en") == std::string::npos ? text + ".0" : text;
}

struct ToToml {
  bool automatic = false;
  std::string operator()(const bool* value) const { return *value ? "true" : "false"; }
  std::string operator()(const int64_t* value) const {
    return automatic && *value == 0 ? "\"auto\"" : fmt::format("{}", *value);
  }
  std::string operator()(const double* value) const { return number(*value); }
  std::string operator()(const std::string* value) const { return toml_string(*value); }
  std::string operator()(const std::vector<std::string>* values) const {
    std::vector<std::string> out;
    for (const std::string& value : *values) {
      out.push_back(toml_string(value));
    }
    return fmt::format("[{}]", fmt::join(out, ", "));
  }
  std::string operator()(const std::vector<int64_t>* values) const {
    return automatic && values->empty() ? "\"auto\""
                                        : fmt::format("[{}]", fmt::join(*values, ", "));
  }
  std::string operator()(const Patterned* value) const {
    if (value->uniform()) {
      return toml_string(value->fallback);
    }
    std::string out = "{default = " + toml_string(value->fallback);
    for (const auto& [glob, word] : value->patterns) {
      out += ", " + toml_string(glob) + " = " + toml_string(word);
    }
    return out + "}";
  }
};

struct ToJson {
  template <class Value>
  nlohmann::json operator()(const Value* value) const {
    return *value;
  }
  nlohmann::json operator()(const Patterned* value) const {
    if (value->uniform()) {
      return value->fallback;
    }
    nlohmann::json out{{"default", value->fallback}, {"patterns", nlohmann::json::array()}};
    for (const auto& pattern : value->patterns) {
      out["patterns"].push_back({pattern.first, pattern.second});
    }
    return out;
  }
};

}  // namespace

std::string toml_value(const Field& field, const Config& config) {
  return std::visit(ToToml{field.limits.automatic}, field.slot(const_cast<Config&>(config)));
}

std::string to_toml(const Config& config) {
  std::string out;
  std::string section;
  for (const Field& field : config_fields()) {
    if (field.section != section) {
      section = field.section;
      out += fmt::format("{}[{}]\n", out.empty() ? "" : "\n", section);
    }
    out += fmt::format("{} = {}\n", field.name, toml_value(field, config));
  }
  return out;
}

nlohmann::json to_json(const Config& config) {
  nlohmann::json out = nlohmann::json::object();
  for (const Field& field : config_fields()) {
    out[field.section][field.name] = std::visit(ToJson{}, field.slot(const_cast<Config&>(config)));
  }
  return out;
}

uint64_t hash(const Config& config) {
  const std::string text = to_toml(config);
  return XXH64(text.data(), text.size(), 0);
}

std::string config_help() {
  const Config defaults;
  std::string out;
  std::string section;
  for (const Field& field : config_fields()) {
    if (field.section != section) {
      section = field.section;
      out += fmt::format("{}[{}]\n", out.empty() ? "" : "\n", section);
    }
    const Slot slot = field.slot(const_cast<Config&>(defaults));
    const bool words =
        std::holds_alternative<std::string*>(slot) || std::holds_alternative<Patterned*>(slot);
    const std::string allowed = describe(field.limits, words);
    out += fmt::format("  {:<34} {}{}\n",
                       fmt::format("{} = {}", field.name, toml_value(field, defaults)), field.help,
                       allowed.empty() ? "" : fmt::format(" ({})", allowed));
  }
  return out;
}

}  // namespace espalier::io
