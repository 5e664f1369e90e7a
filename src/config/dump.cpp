#include "src/config/dump.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace espalier::config {

std::string option_value(const Field& option, const Config& config) {
  return std::visit(
      [](const auto* value) -> std::string {
        using Value = std::remove_cvref_t<decltype(*value)>;
        if constexpr (std::is_same_v<Value, std::vector<int64_t>>) {
          return fmt::format("{}", fmt::join(*value, ","));
        } else if constexpr (std::is_same_v<Value, io::Patterned>) {
          return value->fallback;
        } else {
          return fmt::format("{}", *value);
        }
      },
      option.read(config));
}

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
  std::string operator()(const double* value) const {
    return automatic && *value == io::kAutomatic ? "\"auto\"" : number(*value);
  }
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
  std::string operator()(const std::vector<double>* values) const {
    std::vector<std::string> out;
    std::ranges::transform(*values, std::back_inserter(out), number);
    return fmt::format("[{}]", fmt::join(out, ", "));
  }
  std::string operator()(const io::Patterned* value) const {
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
  nlohmann::json operator()(const io::Patterned* value) const {
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

/// The text of an option after its ':'. `in_order`: all options before it are given, so it needs no
/// label.
std::string assignment_text(const Field& option, const std::string& value, bool in_order) {
  if (value == "true") {
    return option.label;
  }
  return in_order ? value : fmt::format("{}={}", option.label, value);
}

/// Completes "only ...".
std::string where_of(const Field& field, const Config& config) {
  const Field* key = find_field(field.section, field.of_key);
  if (key == nullptr || field.belongs_to(word_of(*key, const_cast<Config&>(config)))) {
    return std::string(field.effect.where);
  }
  return fmt::format("with {} = \"{}\"", key->key(), fmt::join(field.of, "\" or \""));
}

/// visitor(value), with the options that differ from their defaults behind the value's word.
template <class Visitor>
auto visit_written(const Field& field, const Config& config, const Visitor& visitor) {
  if (field.options.empty()) {
    return std::visit(visitor, field.read(config));
  }
  Config written = config;
  word_of(field, written) = text_of(field, config);
  return std::visit(visitor, field.read(written));
}

/// "  key = default   meaning (limits)", and a line for each option and each choice with help.
std::string field_help(const Field& field, const Config& defaults) {
  const Slot slot = field.read(defaults);
  const bool words = !std::holds_alternative<bool*>(slot) &&
                     !std::holds_alternative<int64_t*>(slot) &&
                     !std::holds_alternative<double*>(slot);
  const bool lines = std::ranges::any_of(field.limits.choices,
                                         [](const Choice& choice) { return !choice.help.empty(); });
  const std::string allowed = lines ? "" : describe(field.limits, words);
  std::string out = fmt::format("  {:<34} {}{}\n",
                                fmt::format("{} = {}", field.name, toml_value(field, defaults)),
                                field.help, allowed.empty() ? "" : fmt::format(" ({})", allowed));
  for (const Choice& choice : field.limits.choices) {
    if (lines) {
      out += fmt::format("    {:<32} {}", fmt::format("\"{}\"", choice.name), choice.help);
      out.erase(out.find_last_not_of(' ') + 1);
      out += '\n';
    }
  }
  for (const Field& option : field.options) {
    const std::string limits = describe(option.limits, false);
    out += fmt::format("    {:<32} {}{}{}\n",
                       fmt::format(":{}={}", option.label, option_value(option, defaults)),
                       option.of.empty() ? "" : fmt::format("of {}: ", fmt::join(option.of, ", ")),
                       option.help, limits.empty() ? "" : fmt::format(" ({})", limits));
  }
  return out;
}

/// line(field) of all fields, below the names of their sections.
template <class Line>
std::string by_section(const Line& line) {
  std::string out;
  std::string section;
  for (const Field& field : fields()) {
    if (field.section != section) {
      section = field.section;
      out += fmt::format("{}[{}]\n", out.empty() ? "" : "\n", section);
    }
    out += line(field);
  }
  return out;
}

}  // namespace

std::string toml_value(const Field& field, const Config& config) {
  return visit_written(field, config, ToToml{field.limits.automatic});
}

std::string text_of(const Field& field, const Config& config) {
  static const Config kDefaults;
  std::string text = word_of(field, const_cast<Config&>(config));
  const std::string word = text;
  bool in_order = true;  // no option was left out
  for (const Field& option : field.options) {
    const std::string value = option_value(option, config);
    if (!option.belongs_to(word)) {
      continue;
    }
    if (value == option_value(option, kDefaults)) {
      in_order = false;
    } else {
      text += ":" + assignment_text(option, value, in_order);
    }
  }
  return text;
}

std::string text_with(const Field& option, const Config& config) {
  const Field& key = *find_field(option.section, option.of_key);
  Config defaults;
  return fmt::format("{} = \"{}:{}\"", key.key(),
                     option.of.empty() ? word_of(key, defaults) : option.of.front(),
                     assignment_text(option, option_value(option, config), false));
}

std::string to_toml(const Config& config) {
  return by_section([&](const Field& field) {
    return fmt::format("{} = {}\n", field.name, toml_value(field, config));
  });
}

std::vector<std::string> changes(const Config& config, const Config& other) {
  std::vector<std::string> found;
  for (const Field& field : fields()) {
    if (toml_value(field, config) != toml_value(field, other)) {
      found.push_back(fmt::format("{}={}", field.key(), toml_value(field, other)));
    }
  }
  return found;
}

std::vector<std::string> keys_without_effect(const Config& config, const RunFacts& run) {
  std::vector<std::string> found;
  const Config defaults;
  for (const Field* field : members()) {
    if (!has_effect(*field, config, run) &&
        toml_value(*field, config) != toml_value(*field, defaults)) {
      found.push_back(fmt::format("{} (only {})", field->key(), where_of(*field, config)));
    }
  }
  return found;
}

nlohmann::json to_json(const Config& config) {
  nlohmann::json out = nlohmann::json::object();
  for (const Field& field : fields()) {
    out[field.section][field.name] = visit_written(field, config, ToJson{});
  }
  return out;
}

std::string help() {
  return by_section(
      [defaults = Config()](const Field& field) { return field_help(field, defaults); });
}

}  // namespace espalier::config
