#pragma once
// Small tokenizer.json files, made by hand.
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace espalier::io {

using TokenizerJson = nlohmann::json;

/// A byte-level tokenizer: all bytes have the ids 0 to 255, then come a dozen merges of "lower",
/// " the", digits and two line ends; "<|end|>" is 300 and special.
inline TokenizerJson byte_level_tokenizer() {
  TokenizerJson vocabulary = TokenizerJson::object();
  int next_character = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte != 0xad);
    const int point = printable ? byte : next_character++;
    const std::string character = point < 0x80
                                      ? std::string(1, static_cast<char>(point))
                                      : std::string{static_cast<char>(0xc0 | point >> 6),
                                                    static_cast<char>(0x80 | (point & 0x3f))};
    vocabulary[character] = byte;
  }
  TokenizerJson merges = TokenizerJson::array();
  int next_id = 256;
  for (const auto& [left, right] :
       std::vector<std::pair<std::string, std::string>>{{"l", "o"},     // 256
                                                        {"lo", "w"},    // 257
                                                        {"e", "r"},     // 258
                                                        {"low", "er"},  // 259
                                                        {"Ġ", "t"},     // 260: a space
                                                        {"h", "e"},     // 261
                                                        {"Ġt", "he"},   // 262
                                                        {"1", "2"},     // 263
                                                        {"12", "3"},    // 264
                                                        {"Ċ", "Ċ"},     // 265: a line end
                                                        {"Ġ", "low"},   // 266
                                                        {"a", "a"}}) {  // 267
    vocabulary[left + right] = next_id++;
    merges.push_back(left + " " + right);
  }
  return {
      {"version", "1.0"},
      {"added_tokens",
       {{{"id", 300},
         {"content", "<|end|>"},
         {"single_word", false},
         {"lstrip", false},
         {"rstrip", false},
         {"normalized", false},
         {"special", true}}}},
      {"normalizer", nullptr},
      {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
      {"post_processor", {{"type", "ByteLevel"}}},
      {"decoder", {{"type", "ByteLevel"}}},
      {"model",
       {{"type", "BPE"}, {"vocab", std::move(vocabulary)}, {"merges", std::move(merges)}}}};
}

/// As Llama 2's: "<unk>" 0, "<s>" 1, "</s>" 2, bytes 3 to 258, then characters and merges.
inline TokenizerJson metaspace_tokenizer() {
  TokenizerJson vocabulary = {{"<unk>", 0}, {"<s>", 1}, {"</s>", 2}};
  for (int byte = 0; byte < 256; ++byte) {
    constexpr const char* kDigits = "0123456789ABCDEF";
    vocabulary[std::string("<0x") + kDigits[byte / 16] + kDigits[byte % 16] + ">"] = 3 + byte;
  }
  int next_id = 259;
  for (const char* token : {"▁", "h", "i", "t", "e", "▁h", "▁hi", "he", "the", "▁the", "▁▁"}) {
    vocabulary[token] = next_id++;  // ▁ 259, h 260, i 261, t 262, e 263, ▁h 264, ▁hi 265, he 266,
  }                                 // the 267, ▁the 268, ▁▁ 269
  TokenizerJson json = TokenizerJson::parse(R"({
    "added_tokens": [{"id": 1, "content": "<s>", "special": true, "normalized": false},
                     {"id": 2, "content": "</s>", "special": true, "normalized": false}],
    "normalizer": {"type": "Sequence", "normalizers": [
      {"type": "Prepend", "prepend": "▁"},
      {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
    "pre_tokenizer": null,
    "post_processor": {
      "type": "TemplateProcessing",
      "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
                 {"Sequence": {"id": "A", "type_id": 0}}],
      "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
    "decoder": {"type": "Sequence", "decoders": [
      {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
      {"type": "ByteFallback"}, {"type": "Fuse"},
      {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
    "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true,
              "merges": [["▁", "h"], ["▁h", "i"], ["h", "e"], ["t", "he"], ["▁", "the"],
                         ["▁", "▁"]]}})");
  json["model"]["vocab"] = std::move(vocabulary);
  return json;
}

}  // namespace espalier::io
