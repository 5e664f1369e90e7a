#include "src/hub/tokenizer_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <string_view>

#include "io/checkpoint/stored_tokenizer.h"
#include "io/run/parse_json.h"
#include "io/safetensors/json_events.h"
#include "src/core/error.h"
#include "src/hub/config_json.h"

namespace espalier::hub {
namespace {

using Texts = std::map<std::string, std::string>;

constexpr std::string_view kRemedy =
    "transformers writes a tokenizer.json that includes this, which import prefers: "
    "AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)";

/// A small file beside the tokenizer; an empty object if it is missing or damaged.
Json object_in(const Texts& texts, std::string_view file) {
  const auto found = texts.find(std::string(io::kHubTexts) + std::string(file));
  Json json = found == texts.end() ? Json() : io::parse_json<Json>(found->second);
  return json.is_object() ? json : Json::object();
}

/// A token is a text, or an object with its text.
void add_text(const Json& token, std::set<std::string>& texts) {
  const Json& text = token.is_object() && token.contains("content") ? token["content"] : token;
  if (text.is_string() && !text.get_ref<const std::string&>().empty()) {
    texts.insert(text.get<std::string>());
  }
}

/// The tokens that transformers adds to those of the tokenizer file.
std::set<std::string> added_tokens(const Texts& texts, const Json& config) {
  std::set<std::string> added;
  if (const auto decoder = config.find("added_tokens_decoder");
      decoder != config.end() && decoder->is_object()) {
    for (const Json& token : *decoder) {
      add_text(token, added);
    }
  }
  const Json more_tokens = object_in(texts, "added_tokens.json");
  for (const auto& [text, id] : more_tokens.items()) {
    added.insert(text);
  }
  for (const Json& named : {config, object_in(texts, "special_tokens_map.json")}) {
    for (const char* key : {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token",
                            "cls_token", "mask_token"}) {
      if (const auto token = named.find(key); token != named.end()) {
        add_text(*token, added);
      }
    }
    if (const auto more = named.find("additional_special_tokens");
        more != named.end() && more->is_array()) {
      for (const Json& token : *more) {
        add_text(token, added);
      }
    }
  }
  return added;
}

/// Tokens around a text, as a class of transformers requests them whatever tokenizer.json has.
struct Around {
  std::string_view tokenizer_class;
  bool bos = true;  ///< where tokenizer_config.json has no add_bos_token
};
constexpr std::array<Around, 5> kAround{{{"LlamaTokenizer"},
                                         {"CodeLlamaTokenizer"},
                                         {"GemmaTokenizer"},
                                         {"CohereTokenizer"},
                                         {"GPTNeoXTokenizer", false}}};

bool flag_of(const Json& config, const char* key, bool missing) {
  const auto found = config.find(key);
  return found != config.end() && found->is_boolean() ? found->get<bool>() : missing;
}

/// "add_bos_token": true, where tokenizer.json adds none; and so on.
std::vector<std::string> other_flags(const Json& config, const io::Tokenizer& tokenizer) {
  std::vector<std::string> others;
  const auto compare = [&](const char* key, bool wanted, bool is) {
    if (wanted != is) {
      others.push_back(fmt::format("\"{}\" {}", key, wanted));
    }
  };
  const auto text_of = [&](const char* key) {
    std::set<std::string> text;
    if (const auto token = config.find(key); token != config.end()) {
      add_text(*token, text);
    }
    return text.empty() ? std::string() : *text.begin();
  };
  const auto name = config.find("tokenizer_class");
  const std::string wanted =
      name != config.end() && name->is_string() ? name->get<std::string>() : "";
  const auto around = std::ranges::find_if(kAround, [&](const Around& one) {
    return wanted == one.tokenizer_class || wanted == std::string(one.tokenizer_class) + "Fast";
  });
  if (around != kAround.end()) {
    const std::vector<int32_t> plain = tokenizer.encode("a", false);
    const std::vector<int32_t> all = tokenizer.encode("a");
    const auto has = [&](const char* key) {
      const int32_t id = tokenizer.id_of(text_of(key));
      return std::ranges::count(all, id) > std::ranges::count(plain, id);
    };
    compare("add_bos_token", flag_of(config, "add_bos_token", around->bos), has("bos_token"));
    compare("add_eos_token", flag_of(config, "add_eos_token", false), has("eos_token"));
  }
  if (config.contains("add_prefix_space")) {
    const Json file = io::parse_json<Json>(tokenizer.text());
    const auto pre = file.is_object() ? file.find("pre_tokenizer") : file.end();
    if (pre != file.end() && pre->is_object() && pre->contains("add_prefix_space")) {
      const bool is = flag_of(*pre, "add_prefix_space", false);
      compare("add_prefix_space", flag_of(config, "add_prefix_space", is), is);
    }
  }
  return others;
}

void add_differences(const Texts& texts, const io::TokenizerFile& file,
                     const io::Tokenizer& tokenizer, std::vector<std::string>& notes) {
  const Json config = object_in(texts, io::kTokenizerConfigFile);
  std::vector<std::string> missing;
  for (const std::string& token : added_tokens(texts, config)) {
    if (tokenizer.id_of(token) < 0) {
      missing.push_back(token);
    }
  }
  if (!missing.empty()) {
    notes.push_back(fmt::format(
        "the files beside {} have {} that it does not have: {}; in texts they are encoded as other "
        "tokens; {}",
        file.name, missing.size() == 1 ? "a token" : fmt::format("{} tokens", missing.size()),
        io::quoted_texts(missing), kRemedy));
  }
  if (file.is_binary) {
    return;  // which is read together with its tokenizer_config.json
  }
  if (const auto others = other_flags(config, tokenizer); !others.empty()) {
    notes.push_back(fmt::format("{} requests {}, and {}, which is used, does otherwise; {}",
                                io::kTokenizerConfigFile, fmt::join(others, ", "), file.name,
                                kRemedy));
  }
}

}  // namespace

int64_t check_tokenizer(const Texts& texts, const std::filesystem::path& folder, int64_t rows,
                        std::vector<std::string>& notes) {
  const auto stored = io::stored_tokenizer(texts, folder.string());
  if (!stored) {
    return 0;
  }
  const std::string file = (folder / stored->file.name).string();
  const io::Tokenizer tokenizer = [&] {
    try {
      const auto config =
          texts.find(std::string(io::kHubTexts) + std::string(io::kTokenizerConfigFile));
      return io::Tokenizer::from_text(stored->bytes, file,
                                      config == texts.end() ? std::string() : config->second);
    } catch (const Failure& failure) {
      fail("{}; --no-tokenizer imports the model without it", failure.what());
    }
  }();
  const int64_t tokens = tokenizer.vocabulary();
  add_differences(texts, stored->file, tokenizer, notes);
  check(tokens <= rows,
        "{} has tokens up to {}, but the embedding of the model has {} rows; download the "
        "tokenizer of this model, or add --no-tokenizer",
        file, tokens - 1, rows);
  if (tokens < rows) {
    notes.push_back(
        fmt::format("the embedding has {} rows, and the tokenizer {} tokens", rows, tokens));
  }
  return tokens;
}

}  // namespace espalier::hub
