#include "src/hub/tokenizer_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <set>
#include <span>
#include <string_view>

#include "io/checkpoint/stored_tokenizer.h"
#include "io/run/parse_json.h"
#include "io/safetensors/json_events.h"
#include "src/core/error.h"

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

/// How a token that is added to a vocabulary is found in texts. Not: whether it is special.
struct AddedToken {
  bool single_word = false, lstrip = false, rstrip = false, normalized = true;
  bool operator==(const AddedToken&) const = default;
};
using AddedTokens = std::map<std::string, AddedToken>;

bool flag_of(const Json& object, const char* key, bool missing) {
  const auto found = object.find(key);
  return found != object.end() && found->is_boolean() ? found->get<bool>() : missing;
}

std::string text_of(const Json& token) {
  const auto content = token.is_object() ? token.find("content") : token.end();
  const Json& text = token.is_object() && content != token.end() ? *content : token;
  return text.is_string() ? text.get<std::string>() : "";
}

void add_token(const Json& token, AddedTokens& tokens) {
  if (const std::string text = text_of(token); !text.empty()) {
    const bool special = flag_of(token, "special", false);
    tokens[text] = {.single_word = flag_of(token, "single_word", false),
                    .lstrip = flag_of(token, "lstrip", false),
                    .rstrip = flag_of(token, "rstrip", false),
                    .normalized = flag_of(token, "normalized", !special)};
  }
}

/// The tokens that transformers adds to those of the tokenizer file: with their flags, and those of
/// which only the texts are given.
struct Requested {
  AddedTokens tokens;
  std::set<std::string> names;
};

/// transformers reads added_tokens.json and special_tokens_map.json only if tokenizer_config.json
/// has no added_tokens_decoder, as older versions of it wrote them.
Requested requested_tokens(const Texts& texts, const Json& config) {
  Requested requested;
  const auto add_name = [&](const Json& token) {
    if (const std::string text = text_of(token); !text.empty()) {
      requested.names.insert(text);
    }
  };
  std::vector<Json> named{config};
  const auto decoder = config.find("added_tokens_decoder");
  if (decoder == config.end()) {
    const Json older = object_in(texts, "added_tokens.json");
    for (const auto& [text, id] : older.items()) {
      requested.names.insert(text);
    }
    named.push_back(object_in(texts, "special_tokens_map.json"));
  } else if (decoder->is_object()) {
    for (const Json& token : *decoder) {
      add_token(token, requested.tokens);
    }
  }
  for (const Json& object : named) {
    for (const char* key : {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token",
                            "cls_token", "mask_token"}) {
      if (const auto token = object.find(key); token != object.end()) {
        add_name(*token);
      }
    }
    for (const char* key : {"additional_special_tokens", "extra_special_tokens"}) {
      if (const auto more = object.find(key);
          more != object.end() && (more->is_array() || more->is_object())) {
        std::ranges::for_each(*more, add_name);
      }
    }
  }
  return requested;
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
/// Classes of models whose tokenizer_config.json names none (model_type of config.json).
constexpr std::array<std::pair<std::string_view, std::string_view>, 5> kClassOfModel{
    {{"llama", "LlamaTokenizer"},
     {"mistral", "LlamaTokenizer"},
     {"gemma", "GemmaTokenizer"},
     {"gemma3_text", "GemmaTokenizer"},
     {"gpt_neox", "GPTNeoXTokenizer"}}};

std::string class_of(const Json& config, const ConfigJson& model) {
  if (const auto name = config.find("tokenizer_class"); name != config.end() && name->is_string()) {
    return name->get<std::string>();
  }
  const std::string type = model.word("model_type", "");
  const auto found =
      std::ranges::find(kClassOfModel, type, [](const auto& one) { return one.first; });
  return found == kClassOfModel.end() ? "" : std::string(found->second);
}

/// A tokenizer.json without its vocabulary, which may have 30 MB.
Json parts_of(const std::string& text) {
  const Json::parser_callback_t skip_model = [](int depth, Json::parse_event_t event,
                                                const Json& parsed) {
    return !(depth == 1 && event == Json::parse_event_t::key && parsed == "model");
  };
  Json parts = Json::parse(text, skip_model, false);
  return parts.is_object() ? parts : Json::object();
}

/// "add_bos_token": true, where tokenizer.json adds none; and so on.
std::vector<std::string> other_flags(const Json& config, const ConfigJson& model, const Json& file,
                                     const io::Tokenizer& tokenizer) {
  std::vector<std::string> others;
  const auto compare = [&](const char* key, bool wanted, bool is) {
    if (wanted != is) {
      others.push_back(fmt::format("\"{}\" {}", key, wanted));
    }
  };
  const std::string name = class_of(config, model);
  const auto around = std::ranges::find_if(kAround, [&](const Around& one) {
    return name == one.tokenizer_class || name == std::string(one.tokenizer_class) + "Fast";
  });
  if (around != kAround.end()) {
    const std::vector<int32_t> plain = tokenizer.encode("a", false);
    const std::vector<int32_t> all = tokenizer.encode("a");
    const auto text = std::ranges::search(all, plain);
    const auto compare_with = [&](const std::string& end, bool wanted,
                                  std::span<const int32_t> is) {
      compare(("add_" + end).c_str(), wanted, !is.empty());
      const auto token = config.find(end);
      const std::string name_of_token = token != config.end() ? text_of(*token) : "";
      if (wanted && !is.empty() && !name_of_token.empty() &&
          is.front() != tokenizer.id_of(name_of_token)) {
        others.push_back(fmt::format("\"{}\" {}", end, io::quoted_text(name_of_token)));
      }
    };
    compare_with("bos_token", flag_of(config, "add_bos_token", around->bos),
                 {all.begin(), text.begin()});
    compare_with("eos_token", flag_of(config, "add_eos_token", false), {text.end(), all.end()});
  }
  const auto pre = file.find("pre_tokenizer");
  if (pre != file.end() && pre->is_object() && pre->contains("add_prefix_space")) {
    compare("add_prefix_space", flag_of(config, "add_prefix_space", false),
            flag_of(*pre, "add_prefix_space", false));
  }
  return others;
}

std::string counted(const std::set<std::string>& tokens) {
  return fmt::format("{}: {}",
                     tokens.size() == 1 ? "a token" : fmt::format("{} tokens", tokens.size()),
                     io::quoted_texts({tokens.begin(), tokens.end()}));
}

void add_differences(const Texts& texts, const io::TokenizerFile& file, const ConfigJson& model,
                     const io::Tokenizer& tokenizer, std::vector<std::string>& notes) {
  const Json config = object_in(texts, io::kTokenizerConfigFile);
  const Json parts = file.is_binary ? Json::object() : parts_of(tokenizer.text());
  AddedTokens known;
  if (const auto tokens = parts.find("added_tokens"); tokens != parts.end() && tokens->is_array()) {
    for (const Json& token : *tokens) {
      add_token(token, known);
    }
  }
  std::set<std::string> missing, different;
  const auto has = [&](const std::string& text) {
    return file.is_binary ? tokenizer.id_of(text) >= 0 : known.contains(text);
  };
  const Requested requested = requested_tokens(texts, config);
  for (const auto& [text, token] : requested.tokens) {
    if (!has(text)) {
      missing.insert(text);
    } else if (!file.is_binary && known[text] != token) {
      different.insert(text);
    }
  }
  std::ranges::copy_if(
      requested.names, std::inserter(missing, missing.end()),
      [&](const std::string& text) { return !has(text) && !requested.tokens.contains(text); });
  if (!missing.empty()) {
    notes.push_back(
        fmt::format("the files beside {} add {}, which it does not add: in texts they are encoded "
                    "as other tokens; {}",
                    file.name, counted(missing), kRemedy));
  }
  if (!different.empty()) {
    notes.push_back(fmt::format(
        "{} finds {} otherwise than {}, which is used (lstrip, rstrip, single_word or normalized "
        "differ); {}",
        io::kTokenizerConfigFile, counted(different), file.name, kRemedy));
  }
  if (file.is_binary) {
    return;  // which is read together with its tokenizer_config.json
  }
  if (const auto others = other_flags(config, model, parts, tokenizer); !others.empty()) {
    notes.push_back(fmt::format(
        "{} requests {}, and {}, which is used, does otherwise; {}",
        config.empty() ? "the tokenizer's class in transformers" : io::kTokenizerConfigFile,
        fmt::join(others, ", "), file.name, kRemedy));
  }
}

}  // namespace

int64_t check_tokenizer(const Texts& texts, const std::filesystem::path& folder,
                        const ConfigJson& model, int64_t rows, std::vector<std::string>& notes) {
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
  add_differences(texts, stored->file, model, tokenizer, notes);
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
