#include "src/hub/config_json.h"

#include "io/run/parse_json.h"

namespace espalier::hub {
namespace {

constexpr int64_t kMaxNumber = 0x7fffffff;

}  // namespace

ConfigJson::ConfigJson(std::string text, std::string file)
    : text_(std::move(text)), file_(std::move(file)), json_(io::parse_json<Json>(text_)) {
  check(json_.is_object(),
        "{} is no JSON object ({}); name the directory of a model as save_pretrained writes it",
        file_, json_.is_object() ? "" : io::json_fault(text_));
}

const Json* ConfigJson::find(const std::string& key) const {
  read_.insert(key);
  const auto found = json_.find(key);
  return found == json_.end() || found->is_null() ? nullptr : &*found;
}

bool ConfigJson::has(const std::string& key) const { return find(key) != nullptr; }

bool ConfigJson::is_null(const std::string& key) const {
  return json_.contains(key) && find(key) == nullptr;
}

bool ConfigJson::has_members(const std::string& key) const {
  const Json* found = find(key);
  return found != nullptr && found->is_structured() && !found->empty();
}

std::vector<std::string> ConfigJson::unread() const {
  std::vector<std::string> keys;
  for (const auto& [key, value] : json_.items()) {
    if (!value.is_null() && !read_.contains(key)) {
      keys.push_back(key);
    }
  }
  return keys;
}

std::string ConfigJson::shown(const Json& value) const {
  constexpr size_t kMost = 120;
  const std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  return text.size() <= kMost ? text : text.substr(0, kMost) + "…";
}

int64_t ConfigJson::number(const std::string& key) const {
  check(has(key), "{} has no \"{}{}\", which the network needs; download config.json again", file_,
        place_, key);
  return number(key, 0);
}

int64_t ConfigJson::number(const std::string& key, int64_t missing) const {
  const Json* found = find(key);
  if (found == nullptr) {
    return missing;
  }
  const bool whole = found->is_number_integer();
  const int64_t value = whole && *found <= kMaxNumber ? found->get<int64_t>() : -1;
  check(value > 0, "{}: \"{}{}\" is {} instead of a number from 1 to {}; correct config.json",
        file_, place_, key, shown(*found), kMaxNumber);
  return value;
}

double ConfigJson::real(const std::string& key, double missing) const {
  const Json* found = find(key);
  check(found == nullptr || found->is_number(),
        "{}: \"{}{}\" is {} instead of a number; correct config.json", file_, place_, key,
        found == nullptr ? "" : shown(*found));
  return found == nullptr ? missing : found->get<double>();
}

bool ConfigJson::flag(const std::string& key, bool missing) const {
  if (is_null(key)) {
    return false;
  }
  const Json* found = find(key);
  check(found == nullptr || found->is_boolean(),
        "{}: \"{}{}\" is {} instead of true or false; correct config.json", file_, place_, key,
        found == nullptr ? "" : shown(*found));
  return found == nullptr ? missing : found->get<bool>();
}

std::string ConfigJson::word(const std::string& key, const std::string& missing) const {
  const Json* found = find(key);
  check(found == nullptr || found->is_string(),
        "{}: \"{}{}\" is {} instead of a text; correct config.json", file_, place_, key,
        found == nullptr ? "" : shown(*found));
  return found == nullptr ? missing : found->get<std::string>();
}

ConfigJson ConfigJson::part(const std::string& key) const {
  ConfigJson out("{}", file_);
  const Json* found = find(key);
  if (found != nullptr) {
    check(found->is_object(), "{}: \"{}{}\" is {} instead of an object; correct config.json", file_,
          place_, key, shown(*found));
    out.json_ = *found;
  }
  out.place_ = place_ + key + ".";
  return out;
}

void ConfigJson::only(const std::string& key, const Json& value, std::string_view why) const {
  const Json* found = find(key);
  if (found != nullptr ? *found != value : is_null(key) && value == true) {  // null is false
    refuse(key, why);
  }
}

void ConfigJson::refuse(const std::string& key, std::string_view why) const {
  const Json* found = find(key);
  fail("{}: \"{}{}\": {} is not supported: {}", file_, place_, key,
       found == nullptr ? "null" : shown(*found), why);
}

}  // namespace espalier::hub
