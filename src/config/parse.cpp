#include "src/config/parse.h"

#include <toml++/toml.h>
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <sstream>

#include "io/config/toml_text.h"
#include "io/files/raw_file.h"
#include "src/config/dump.h"
#include "src/config/removed.h"
#include "src/config/schema.h"
#include "src/core/error.h"

namespace espalier::config {
namespace {

std::string type_name(const toml::node& node) {
  std::ostringstream out;
  out << node.type();
  return out.str();
}

std::string source_text(const toml::node& node) {
  std::ostringstream out;
  node.visit([&](const auto& value) { out << value; });
  return out.str();
}

void check_keys(std::string_view text, std::string_view name) {
  check(io::longest_key(text) <= io::kMaxKeyParts,
        "{}: a key has more than {} parts; keys are section.key", name, io::kMaxKeyParts);
}

/// Writes one TOML value into a slot; throws Failure when its type does not fit.
struct Assign {
  const toml::node& node;
  const Field& field;
  std::string_view where;

  [[noreturn]] void mismatch(std::string_view expected) const {
    const auto real = node.value_exact<double>();
    const bool whole = real && std::abs(*real) < 0x1p53 && std::floor(*real) == *real;
    fail("{}: {} = {} is a {}, expected {}{}", where, field.key(), source_text(node),
         type_name(node), expected,
         whole ? fmt::format("; write {}", static_cast<int64_t>(*real)) : "");
  }
  template <class T>
  T exact(const toml::node& value, std::string_view expected) const {
    const auto found = value.value_exact<T>();
    if (!found) {
      mismatch(expected);
    }
    return *found;
  }
  template <class T>
  std::vector<T> list(std::string_view expected) const {
    const toml::array* array = node.as_array();
    if (array == nullptr) {
      return {exact<T>(node, expected)};  // one value stands for a list of one
    }
    std::vector<T> out;
    for (const toml::node& element : *array) {
      out.push_back(exact<T>(element, expected));
    }
    return out;
  }

  void operator()(bool* slot) const { *slot = exact<bool>(node, "true or false"); }
  /// "auto", where that is a value.
  bool automatic() const {
    return field.limits.automatic && node.value_exact<std::string>() == "auto";
  }
  void operator()(int64_t* slot) const {
    *slot = automatic() ? 0 : exact<int64_t>(node, "an integer");
  }
  double real(const toml::node& value, std::string_view expected) const {
    const auto integer = value.value_exact<int64_t>();
    return integer ? static_cast<double>(*integer) : exact<double>(value, expected);
  }
  void operator()(double* slot) const {
    *slot = automatic() ? io::kAutomatic : real(node, "a number");
  }
  void operator()(std::string* slot) const {
    const bool number = field.limits.numbers && node.is_number();
    *slot =
        number ? fmt::format("{}", real(node, "a number")) : exact<std::string>(node, "a string");
  }
  void operator()(std::vector<std::string>* slot) const {
    *slot = list<std::string>("a list of strings");
  }
  void operator()(std::vector<int64_t>* slot) const {
    *slot = automatic() ? std::vector<int64_t>() : list<int64_t>("a list of integers");
  }
  void operator()(std::vector<double>* slot) const {
    constexpr std::string_view kExpected = "a list of numbers";
    slot->clear();
    const toml::array* array = node.as_array();
    if (array == nullptr) {
      slot->push_back(real(node, kExpected));
      return;
    }
    for (const toml::node& element : *array) {
      slot->push_back(real(element, kExpected));
    }
  }
  void operator()(io::Patterned* slot) const {
    constexpr std::string_view kExpected =
        "a string or a table such as {default = \"…\", \"blocks.*\" = \"…\"}";
    const toml::table* table = node.as_table();
    if (table == nullptr) {
      *slot = {.fallback = exact<std::string>(node, kExpected), .patterns = {}};
      return;
    }
    // toml++ sorts its tables by key; the order of patterns is the order in the source.
    std::vector<std::pair<toml::source_position, std::pair<std::string, std::string>>> found;
    for (const auto& [key, value] : *table) {
      const auto text = exact<std::string>(value, kExpected);
      if (key.str() == "default") {
        slot->fallback = text;
      } else {
        found.push_back({key.source().begin, {std::string(key.str()), text}});
      }
    }
    std::ranges::stable_sort(found, [](const auto& a, const auto& b) { return a.first < b.first; });
    slot->patterns.clear();
    for (auto& [position, pattern] : found) {
      slot->patterns.push_back(std::move(pattern));
    }
  }
};

/// The text of an option as a TOML document with the one key "v".
toml::table option_node(const Field& option, std::string_view text, std::string_view where) {
  Config config;
  const bool list = std::holds_alternative<std::vector<int64_t>*>(option.slot(config));
  const std::string value = fmt::format(fmt::runtime(list ? "[{}]" : "{}"), text);
  check_keys(value, where);
  try {
    toml::table parsed = toml::parse("v = " + value + "\n");
    if (parsed.size() == 1 && parsed.contains("v") && text.find('#') == text.npos) {
      return parsed;
    }
  } catch (const toml::parse_error&) {  // a bare word
  }
  return toml::table{{"v", text}};
}

/// `reset`: options that the value does not have get their defaults.
void assign(Config& config, const Field& field, const toml::node& node, std::string_view where,
            bool reset = true);

/// Throws Failure for a pattern whose value has options: they hold for all parameters.
void check_patterns_have_no_options(const io::Patterned& value, const Field& field,
                                    std::string_view where) {
  for (const auto& [glob, text] : value.patterns) {
    const std::string word = text.substr(0, text.find(':'));
    check(word == text || !field.limits.has_choice(word) ||
              !removed_value(field.path(), text).empty(),
          "{}: {} = \"{}\" of the pattern \"{}\" has options; they stand behind the default, and "
          "hold "
          "for all parameters: write {{default = \"{}{}\", \"{}\" = \"{}\"}}",
          where, field.key(), printable(text), printable(glob),
          value.fallback.substr(0, value.fallback.find(':')), printable(text.substr(word.size())),
          printable(glob), word);
  }
}

/// Sets the options behind the word of a key from its text.
void take_options(Config& config, const Field& field, std::string_view where, bool reset) {
  const Config defaults;
  std::string& word = word_of(field, config);
  const std::string text = word;
  if (const std::string_view instead = removed_value(field.path(), text); !instead.empty()) {
    fail("{}: {} = \"{}\": this value was removed: {}", where, field.key(), printable(text),
         instead);
  }
  const Slot slot = field.slot(config);
  if (const auto* patterned = std::get_if<io::Patterned*>(&slot)) {
    check_patterns_have_no_options(**patterned, field, where);
  }
  word = text.substr(0, text.find(':'));
  check_limits(field, config, where);
  std::vector<const Field*> options;
  for (const Field& option : field.options) {
    if (reset) {
      std::visit([&](auto* value) { *value = *std::get<decltype(value)>(option.read(defaults)); },
                 option.slot(config));
    }
    if (option.belongs_to(word)) {
      options.push_back(&option);
    }
  }
  const auto is_flag = [&](const Field* option) {
    return std::holds_alternative<bool*>(option->slot(config));
  };
  std::vector<const Field*> given;
  bool skipped = false;         // an option was given out of order
  auto next = options.begin();  // that a value without a label may be of
  for (size_t at = word.size(); at < text.size();) {
    const size_t end = std::min(text.find(':', at + 1), text.size());
    const std::string part = text.substr(at + 1, end - at - 1);
    const size_t equals = part.find('=');
    auto found = std::ranges::find(options, part.substr(0, equals), &Field::label);
    const bool flag = found != options.end() && equals == std::string::npos && is_flag(*found);
    if (equals == std::string::npos && !flag) {
      found = next = std::find_if_not(next, options.end(), is_flag);
    }
    if (found == options.end()) {
      std::vector<std::string> labels;
      std::ranges::transform(options, std::back_inserter(labels), &Field::label);
      fail("{}: {} = \"{}\": \"{}\" is no option of \"{}\"; available: {}", where, field.key(),
           printable(text), printable(part), word,
           labels.empty() ? "none" : fmt::format("{}", fmt::join(labels, ", ")));
    }
    check(std::ranges::find(given, *found) == given.end(), "{}: {} = \"{}\" gives {} twice", where,
          field.key(), printable(text), (*found)->label);
    given.push_back(*found);
    check(!skipped || equals != std::string::npos || flag,
          "{}: {} = \"{}\": write a label before \"{}\" too, such as \"{}={}\": values without one "
          "come first",
          where, field.key(), printable(text), printable(part), (*found)->label, printable(part));
    skipped = skipped || (found != next && !flag);
    const std::string value = flag                          ? "true"
                              : equals == std::string::npos ? part
                                                            : part.substr(equals + 1);
    assign(config, **found, *option_node(**found, value, where).get("v"), where);
    next += found == next ? 1 : 0;
    at = end;
  }
}

void assign(Config& config, const Field& field, const toml::node& node, std::string_view where,
            bool reset) {
  if (!field.options.empty()) {
    word_of(field, config) = text_of(field, config);  // stays if a table has no default
  }
  std::visit(Assign{node, field, where}, field.slot(config));
  if (!field.options.empty()) {
    take_options(config, field, where, reset);
  }
  check_limits(field, config, where);
}

/// A member without a key, or a renamed key, that a config sets as earlier versions did.
struct OldSetting {
  const Field* row;
  const toml::node* node;
  std::string where;
  std::string name;  ///< as given
};

/// The text that replaces an old setting. `old`: the config after all old settings.
std::string replacement(const Field& row, Config& old) {
  const Field* key = find_field(row.section, row.of_key.empty() ? row.name : row.of_key);
  if (key == nullptr) {
    return "leave it out; the default is always used";
  }
  return row.of_key.empty() || row.belongs_to(word_of(*key, old))
             ? fmt::format("write {} = {}", key->key(), toml_value(*key, old))
             : "leave it out, or write " + text_with(row, old);
}

/// Applies the old settings of a saved config. In a user's config a setting that changes no value
/// is ignored, and any other is an error.
void assign_old(Config& config, std::vector<OldSetting> settings, bool saved) {
  // Keys set their options back.
  std::ranges::stable_partition(settings,
                                [](const OldSetting& one) { return one.row->of_key.empty(); });
  Config old = config;
  for (const OldSetting& one : settings) {
    assign(old, *one.row, *one.node, one.where);
  }
  for (const OldSetting& one : settings) {
    check(saved || toml_value(*one.row, old) == toml_value(*one.row, config),
          "{}: {} is no key: {}", one.where, one.name, replacement(*one.row, old));
  }
  config = old;
}

[[noreturn]] void fail_unknown(std::string_view section, std::string_view name,
                               std::string_view where) {
  const std::string key = fmt::format("{}.{}", section, name);
  if (const std::string_view instead = removed_key(key); !instead.empty()) {
    fail("{}: {} was removed: {}", where, key, instead);
  }
  fail("unknown key \"{}\" in {}{}", key, where, suggestion(section, name));
}

/// Whether a later version removed the key, or its value (of a table: one of its values).
bool was_removed(const std::string& key, const toml::node& node) {
  if (const toml::table* table = node.as_table()) {
    return std::ranges::any_of(*table,
                               [&](const auto& one) { return was_removed(key, one.second); });
  }
  const auto text = node.value_exact<std::string>();
  return !removed_key(key).empty() ||
         (text && (!removed_value(key, *text).empty() ||
                   !removed_value(key, text->substr(0, text->find(':'))).empty()));
}

/// `saved`: see parse_saved.
void assign_section(Config& config, const std::string& section, const toml::table& table,
                    std::string_view file, bool saved) {
  std::vector<OldSetting> old;  // after the keys, which set options back
  for (const auto& [key, node] : table) {
    const std::string where = fmt::format("{}:{}", file, key.source().begin.line);
    const std::string given = fmt::format("{}.{}", section, key.str());
    const std::string name(current_key(given));
    if (was_default(given, source_text(node)) || (saved && was_removed(name, node))) {
      continue;
    }
    const std::string member = name.substr(section.size() + 1);
    const Field* field = find_field(section, member);
    const Field* row = field != nullptr ? field : find_member(section, member);
    if (row == nullptr || !removed_key(name).empty()) {
      fail_unknown(section, member, where);
    }
    if (field != nullptr && (saved || name == given)) {
      assign(config, *field, node, where);
    } else {
      old.push_back({row, &node, where, given});
    }
  }
  assign_old(config, std::move(old), saved);
}

/// False for text that is not TOML: `parse` reports it.
bool text_has_section(std::string_view text, std::string_view name, std::string_view section) {
  check_keys(text, name);
  try {
    return toml::parse(text, name).contains(section);
  } catch (const toml::parse_error&) {
    return false;
  }
}

/// Why a text of digits is no TOML integer, and the fix.
std::string number_advice(std::string_view text) {
  const size_t first = text.find_first_not_of("+-0_");
  const auto digits =
      std::count_if(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
  return first != std::string_view::npos && digits > 18
             ? "integers are from -9223372036854775808 to 9223372036854775807"
             : "write it without leading zeros";
}

/// The value of an assignment as a TOML document with the one key "v". What is no TOML is a bare
/// word, and so is what a string field gets without quotes (`run.out=2024`).
toml::table override_value(std::string_view key, const std::string& text, bool wants_string) {
  check_keys(text, "--set");
  toml::table bare{{"v", text}};
  try {
    toml::table parsed = toml::parse("v = " + text + "\n");
    const bool one_value = parsed.size() == 1 && parsed.contains("v");
    if (one_value && (!wants_string || parsed["v"].is_string() || !parsed["v"].is_value())) {
      return parsed;
    }
    return bare;
  } catch (const toml::parse_error&) {
    const size_t sign = text.starts_with('-') || text.starts_with('+') ? 1 : 0;
    const bool digits =
        text.size() > sign && text.find_first_not_of("0123456789_", sign) == std::string::npos;
    check(wants_string || !digits, "--set {}: {} is no number that a config can hold: {}", key,
          text, number_advice(text));
    const bool meant_as_toml = text.find_first_of("\"'[{") == 0;
    check(!meant_as_toml,
          "--set: {} is not a TOML value; quote strings and lists for the shell, for example --set "
          "'data.train=[\"a.txt\"]'",
          text);
    return bare;
  }
}

struct Unit {
  std::string_view name;
  double bytes;
};
constexpr std::array<Unit, 10> kUnits{{{"", 1},
                                       {"B", 1},
                                       {"kB", 1e3},
                                       {"KB", 1e3},
                                       {"MB", 1e6},
                                       {"GB", 1e9},
                                       {"TB", 1e12},
                                       {"KiB", 0x1p10},
                                       {"MiB", 0x1p20},
                                       {"GiB", 0x1p30}}};

/// Sets a key, or with `any` any member and no other.
void set(Config& config, std::string_view assignment, bool any) {
  const std::string where = fmt::format("--set {}", printable(assignment));
  const size_t equals = assignment.find('=');
  const std::string_view key = assignment.substr(0, equals);
  const size_t dot = key.find('.');
  check(equals != std::string_view::npos && dot != std::string_view::npos,
        "{}: expected section.key=value, for example train.steps=100", where);
  const std::string_view section = key.substr(0, dot);
  const std::string_view name = key.substr(dot + 1);
  const Field* field = find_field(section, name);
  const Field* member = field != nullptr ? field : find_member(section, name);
  if (member == nullptr || (field == nullptr && !removed_key(member->path()).empty())) {
    fail_unknown(section, name, where);
  }
  const bool wants_string = std::holds_alternative<std::string*>(member->slot(config));
  const toml::table value =
      override_value(key, std::string(assignment.substr(equals + 1)), wants_string);
  if (field != nullptr || any) {
    assign(config, *member, *value.get("v"), where, !any);
  } else {
    assign_old(config, {{member, value.get("v"), where, member->path()}}, false);
  }
}

/// Sets the keys of a file, and then of `overrides`.
void read_keys(std::string_view text, std::string_view name, std::span<const std::string> overrides,
               Config& config, bool saved = false) {
  check_keys(text, name);
  try {
    const toml::table document = toml::parse(text, name);
    for (const auto& [key, node] : document) {
      const auto line = key.source().begin.line;
      const std::string section(key.str());
      const toml::table* table = node.as_table();
      if (table == nullptr) {
        fail("unknown key \"{}\" outside a section in {}:{}{}", section, name, line,
             suggestion("", section));
      }
      if (!is_section(section)) {
        fail("unknown section [{}] in {}:{}{}", section, name, line, suggestion(section, ""));
      }
      assign_section(config, section, *table, name, saved);
    }
  } catch (const toml::parse_error& error) {
    fail("{}:{}: not valid TOML: {}", name, error.source().begin.line, error.description());
  }
  for (const std::string& assignment : overrides) {
    apply_override(config, assignment);
  }
}

}  // namespace

void apply_override(Config& config, std::string_view assignment) { set(config, assignment, false); }

void set_text(Config& config, std::string_view key, const std::string& text,
              std::string_view where) {
  const size_t dot = key.find('.');
  const Field* field = find_field(key.substr(0, dot), key.substr(dot + 1));
  require(field != nullptr, "a key", key);
  assign(config, *field, *toml::table{{"v", text}}.get("v"), where);
}

void set_member(Config& config, std::string_view assignment) { set(config, assignment, true); }

Config parse(std::string_view text, std::string_view name, std::span<const std::string> overrides,
             const Config& defaults) {
  Config config = defaults;
  read_keys(text, name, overrides, config);
  validate(config);
  return config;
}

Config parse_saved(std::string_view text, std::string_view name,
                   std::span<const std::string> overrides, const Config& defaults) {
  Config config = defaults;
  read_keys(text, name, overrides, config, true);
  validate(config);
  return config;
}

Config load_saved(const std::filesystem::path& path) {
  return parse_saved(io::read_text(path, "config", io::kMaxConfig), path.string());
}

bool has_section(const std::filesystem::path& path, std::string_view section) {
  return text_has_section(io::read_text(path, "config", io::kMaxConfig), path.string(), section);
}

Config load(const std::filesystem::path& path, std::span<const std::string> overrides,
            const std::function<io::ModelConfig(const Config& rest)>& model) {
  const std::string text = io::read_text(path, "config", io::kMaxConfig);
  Config config;
  if (model && !text_has_section(text, path.string(), "model")) {
    Config rest;
    read_keys(text, path.string(), overrides, rest);
    config.model = model(rest);
  }
  read_keys(text, path.string(), overrides, config);
  const char* settings = std::getenv("ESPALIER_TEST");
  std::istringstream words(settings == nullptr ? "" : settings);
  for (std::string word; words >> word;) {
    set_member(config, word);
  }
  validate(config);
  return config;
}

int64_t parse_bytes(std::string_view text) {
  const std::string copy(text);
  char* end = nullptr;
  const double amount = std::strtod(copy.c_str(), &end);
  std::string_view unit(end);
  while (!unit.empty() && unit.front() == ' ') {
    unit.remove_prefix(1);
  }
  for (const Unit& known : kUnits) {
    const double bytes = amount * known.bytes;
    if (end != copy.c_str() && unit == known.name && bytes >= 1 && bytes < 0x1p62) {
      return static_cast<int64_t>(bytes);
    }
  }
  fail(
      "\"{}\" is not a size; write a positive number and B, kB or KB, MB, GB, TB (powers of 1000), "
      "KiB, MiB or GiB (of 1024), e.g. \"16GiB\"",
      text);
}

}  // namespace espalier::config
