#include "src/hub/end_tokens.h"

#include <algorithm>
#include <string_view>

#include "io/checkpoint/stored_tokenizer.h"
#include "io/run/parse_json.h"
#include "src/core/error.h"
#include "src/hub/config_json.h"

namespace espalier::hub {
namespace {

constexpr const char* kEndKey = "eos_token_id";

/// Whether `value` is the number of one of `vocabulary` tokens.
bool is_token(const Json& value, int64_t vocabulary) {
  return value.is_number_integer() && value >= 0 && value < vocabulary;
}

std::string shown_end(const Json& value) {
  return value.dump(-1, ' ', true, Json::error_handler_t::replace);
}

}  // namespace

std::vector<int32_t> end_tokens(const std::map<std::string, std::string>& texts, int64_t vocabulary,
                                const std::string& place, std::vector<std::string>& notes) {
  std::vector<int32_t> tokens;
  for (const std::string_view file : {"generation_config.json", "config.json"}) {
    const auto text = texts.find(std::string(io::kHubTexts) + std::string(file));
    const Json json = text == texts.end() ? Json() : io::parse_json<Json>(text->second);
    if (!json.is_object() || !json.contains(kEndKey) || json[kEndKey].is_null()) {
      continue;
    }
    const Json& value = json[kEndKey];
    const Json list = value.is_array() ? value : Json::array({value});
    check(std::ranges::all_of(list,
                              [](const Json& one) { return one.is_number() || one.is_boolean(); }),
          "{}: \"{}\" of {} is {} instead of a token's number or a list of them; correct {}", place,
          kEndKey, file, shown_end(value), file);
    for (const Json& one : list) {
      if (is_token(one, vocabulary)) {
        tokens.push_back(one.get<int32_t>());
      } else {
        notes.push_back(
            fmt::format("{}: \"{}\" of {} has {}, which is none of the {} tokens of the network, "
                        "and is ignored",
                        place, kEndKey, file, shown_end(one), vocabulary));
      }
    }
    if (!tokens.empty()) {
      break;
    }
  }
  return tokens;
}

}  // namespace espalier::hub
