#include "io/tokenizer/sentencepiece.h"

#include <sentencepiece_processor.h>

#include <algorithm>
#include <optional>
#include <unordered_set>

#include "io/run/parse_json.h"
#include "io/tokenizer/piece_matcher.h"
#include "io/tokenizer/utf8.h"
#include "io/tokenizer/word_cache.h"

namespace espalier::io {
namespace {

using Processor = sentencepiece::SentencePieceProcessor;
using File = SentencePieceFile;

constexpr char32_t kSpaceMark = 0x2581;  ///< "▁"
/// Bytes that the library encodes at once, at most, if they can be cut. The scores of a unigram
/// model are sums in fp32 from the beginning of a part: equal parts give equal tokens.
constexpr size_t kUnigramPart = size_t{1} << 16;
/// The library takes about 100 bytes of memory for each byte of a part.
constexpr size_t kMaxPart = size_t{1} << 26;

/// Fields behind a message are merged into it: `add_dummy_prefix` of `normalizer_spec` becomes 0.
constexpr std::string_view kWithoutFirstSpace("\x1a\x02\x18\x00", 4);

char32_t last_code_point(std::string_view text) {
  size_t at = text.size() - 1;
  while (at > 0 && is_continuation(text[at])) {
    --at;
  }
  return code_point(text, at);
}

std::unique_ptr<Processor> load_processor(const std::string& model, const std::string& name) {
  auto processor = std::make_unique<Processor>();
  std::string fault;
  try {
    const auto status = processor->LoadFromSerializedProto(model);
    fault = status.ok() ? "" : status.message();
  } catch (const std::exception& error) {  // of its tries
    fault = error.what();
  }
  check(fault.empty() && processor->GetPieceSize() > 0,
        "{}: SentencePiece cannot load the model ({}); download it again", name, fault);
  return processor;
}

/// Characters beside which a text cannot be cut, because pieces hold both.
class PiecePairs {
 public:
  explicit PiecePairs(const File& file) {
    const char32_t mark = file.escapes_spaces ? kSpaceMark : U' ';
    for (const File::Piece& piece : file.pieces) {
      char32_t last = 0;
      for (size_t at = 0; at < piece.text.size(); at += utf8_bytes(piece.text[at])) {
        const char32_t point = code_point(piece.text, at);
        if (point == mark && at > 0) {
          before_space_.insert(last);
        }
        if (last == U'\n') {
          after_line_.insert(point);
        }
        last = point;
      }
    }
  }
  bool before_space(char32_t point) const { return before_space_.contains(point); }
  bool after_line(char32_t point) const { return after_line_.contains(point); }

 private:
  std::unordered_set<char32_t> before_space_, after_line_;
};

/// Whether the library may take an unused piece of BPE apart in two ways: it keeps the way that it
/// saw last in the whole text.
bool has_ambiguous_unused(const File& file) {
  if (file.model != File::Model::bpe) {
    return false;
  }
  std::unordered_set<std::string_view> mergeable;
  for (const File::Piece& piece : file.pieces) {
    if (piece.kind == File::Kind::normal || piece.kind == File::Kind::unused ||
        piece.kind == File::Kind::user_defined) {
      mergeable.insert(piece.text);
    }
  }
  const auto is_symbol = [&](std::string_view text) {
    return text.size() == utf8_bytes(text[0]) || mergeable.contains(text);
  };
  return std::ranges::any_of(file.pieces, [&](const File::Piece& piece) {
    int ways = 0;
    for (size_t at = 1; piece.kind == File::Kind::unused && at < piece.text.size(); ++at) {
      ways += !is_continuation(piece.text[at]) && is_symbol(piece.text.substr(0, at)) &&
              is_symbol(piece.text.substr(at));
    }
    return ways > 1;
  });
}

/// Finds the places at which a text can be cut. It follows the library's normalizer, whose steps
/// each take the longest match of a user-defined piece, else of the map of characters, else a
/// character.
class PartFinder {
 public:
  explicit PartFinder(const File& file) : characters_(file.characters), pairs_(file) {
    const std::string_view mark = file.escapes_spaces ? "\xe2\x96\x81" : " ";
    // Neighbouring unknown pieces become one token.
    const auto is_known = [&](std::string_view text) {
      return file.byte_fallback || std::ranges::any_of(file.pieces, [&](const File::Piece& piece) {
               return piece.text == text &&
                      (piece.kind == File::Kind::normal || piece.kind == File::Kind::user_defined);
             });
    };
    const bool cuts = !file.space_is_suffix && !has_ambiguous_unused(file);
    at_spaces_ = cuts && is_known(mark);
    after_lines_ = cuts && !file.removes_spaces && is_known("\n");
    std::vector<PieceMatcher::Piece> user_defined;
    for (size_t id = 0; id < file.pieces.size(); ++id) {
      if (file.pieces[id].kind == File::Kind::user_defined) {
        user_defined.emplace_back(file.pieces[id].text, static_cast<int32_t>(id));
      }
    }
    user_defined_ = PieceMatcher(std::move(user_defined));
    longest_ = std::max({size_t{1}, user_defined_.longest(), characters_.longest()});
    for (size_t i = 0; i < plain_.size(); ++i) {
      const auto byte = static_cast<unsigned char>(i);
      plain_[i] = !user_defined_.begins(byte) && !characters_.begins(byte);
    }
  }

  /// Calls `cut` for each place but the first and the last, in order.
  template <class Cut>
  void run(const TextWindow& window, const Cut& cut) const {
    if (!at_spaces_ && !after_lines_) {
      return;
    }
    const std::string_view text = window.text;
    std::string_view before;  // of the last step whose form is not empty
    for (size_t at = 0; at < text.size();) {
      if (window.open && at + longest_ > text.size()) {
        return;  // more text may lengthen the match
      }
      std::string_view form;
      const size_t bytes = step(text, at, form);
      if (!form.empty()) {
        if (!before.empty() && can_cut(before, form)) {
          cut(at);
        }
        before = form;
      }
      at += bytes;
    }
  }

 private:
  /// Bytes of a step of the normalizer, and their normalized form (without U+2581 for spaces).
  size_t step(std::string_view text, size_t at, std::string_view& form) const {
    const auto first = static_cast<unsigned char>(text[at]);
    const std::string_view rest = text.substr(at);
    if (!plain_[first]) [[unlikely]] {
      int32_t id = 0;
      if (const size_t bytes = user_defined_.match(rest, id); bytes > 0) {
        form = rest.substr(0, bytes);
        return bytes;
      }
      if (const size_t bytes = characters_.match(rest, form); bytes > 0) {
        return bytes;
      }
    }
    if (is_continuation(text[at])) {  // a text of the map ends within a character
      form = "\xef\xbf\xbd";
      return 1;
    }
    form = rest.substr(0, utf8_bytes(text[at]));
    return form.size();
  }

  bool can_cut(std::string_view before, std::string_view after) const {
    if (after[0] == ' ' && at_spaces_) {
      const char32_t last = last_code_point(before);
      return last != U' ' && last != kSpaceMark && !pairs_.before_space(last);
    }
    return after_lines_ && after[0] != ' ' && before.back() == '\n' &&
           !pairs_.after_line(code_point(after, 0));
  }

  const CharacterMap& characters_;
  PiecePairs pairs_;
  bool at_spaces_ = false, after_lines_ = false;
  PieceMatcher user_defined_;
  std::array<bool, 256> plain_{};  ///< characters with this first byte are their own form
  size_t longest_ = 1;             ///< bytes of a step
};

/// What tokenizer_config.json says about one of the tokens around a text.
struct AroundText {
  std::optional<bool> added{};
  std::string token{};
};

AroundText around_text(const nlohmann::json& config, const std::string& which,
                       const std::string& name) {
  AroundText out;
  const std::string flag = "add_" + which + "_token";
  if (const auto found = config.find(flag); found != config.end() && !found->is_null()) {
    check(found->is_boolean(), "{}: \"{}\" of its {} is neither true nor false; correct it", name,
          flag, kTokenizerConfigFile);
    out.added = found->get<bool>();
  }
  if (const auto found = config.find(which + "_token"); found != config.end()) {
    const nlohmann::json& token =
        found->is_object() && found->contains("content") ? (*found)["content"] : *found;
    out.token = token.is_string() ? token.get<std::string>() : "";
  }
  return out;
}

class SentencePieceTokenizer final : public TokenizerModel {
 public:
  SentencePieceTokenizer(std::string bytes, const std::string& name, const std::string& config)
      : bytes_(std::move(bytes)),
        name_(name),
        file_(read_sentencepiece_file(bytes_, name)),
        finder_(file_) {
    whole_ = load_processor(file_.for_library, name);
    // With remove_extra_whitespaces, the space before a part becomes the one that add_dummy_prefix
    // adds.
    if (file_.begins_with_space != file_.removes_spaces) {
      later_ =
          load_processor(file_.for_library + std::string(file_.removes_spaces ? kWithFirstSpace
                                                                              : kWithoutFirstSpace),
                         name);
    }
    file_.for_library = std::string();
    check(whole_->GetPieceSize() == std::ssize(file_.pieces),
          "{}: SentencePiece reads {} pieces of {}; download the model again", name,
          whole_->GetPieceSize(), file_.pieces.size());
    read_config(config);
  }

  size_t encode(const TextWindow& window, std::vector<int32_t>& out) const override;
  std::string decode(std::span<const int32_t> ids, bool special) const override;
  int64_t vocabulary() const override { return std::ssize(file_.pieces); }
  int32_t id_of(std::string_view token) const override {
    const int id = token.empty() ? -1 : whole_->PieceToId(token);
    return id >= 0 && file_.pieces[static_cast<size_t>(id)].text == token ? id : -1;
  }
  bool is_special(int32_t id) const override {
    return has(id) && (kind_of(id) == File::Kind::control || kind_of(id) == File::Kind::unknown);
  }
  std::span<const int32_t> before() const override { return before_; }
  std::span<const int32_t> after() const override { return after_; }
  const std::string& text() const override { return bytes_; }

 private:
  static constexpr std::string_view kWithFirstSpace{"\x1a\x02\x18\x01", 4};

  bool has(int32_t id) const { return id >= 0 && id < vocabulary(); }
  File::Kind kind_of(int32_t id) const { return file_.pieces[static_cast<size_t>(id)].kind; }
  void read_config(const std::string& text);
  void encode_part(const Processor& processor, std::string_view part,
                   std::vector<int32_t>& out) const;
  size_t encode_long_parts(const TextWindow& window, std::vector<int32_t>& out) const;
  size_t encode_words(const TextWindow& window, std::vector<int32_t>& out) const;
  const Processor& processor_of(bool first) const {
    return first || later_ == nullptr ? *whole_ : *later_;
  }

  std::string bytes_, name_;
  File file_;  ///< views of bytes_
  PartFinder finder_;
  std::unique_ptr<Processor> whole_;  ///< of the first part of a text
  std::unique_ptr<Processor> later_;  ///< of others; null: the same
  std::vector<int32_t> before_, after_;
  mutable WorkspacePool<WordCache> caches_;
};

void SentencePieceTokenizer::read_config(const std::string& text) {
  nlohmann::json config = nlohmann::json::object();
  if (!text.empty()) {
    config = parse_json<nlohmann::json>(text);
    check(config.is_object(),
          "{}: its {} is no JSON object of at most 64 levels; download it again", name_,
          kTokenizerConfigFile);
  }
  const auto add = [&](const std::string& which, int32_t id, bool by_default,
                       std::vector<int32_t>& out) {
    const AroundText around = around_text(config, which, name_);
    if (const int32_t named = id_of(around.token); named >= 0) {
      id = named;
    }
    check(id >= 0 || !around.added.value_or(false),
          "{}: its {} has \"add_{}_token\": true, but the model has no piece \"{}\"; set it to "
          "false, or \"{}_token\" to a piece of the model",
          name_, kTokenizerConfigFile, which, around.token, which);
    if (id >= 0 && around.added.value_or(by_default)) {
      out.push_back(id);
    }
  };
  add("bos", whole_->bos_id(), true, before_);
  add("eos", whole_->eos_id(), false, after_);
}

void SentencePieceTokenizer::encode_part(const Processor& processor, std::string_view part,
                                         std::vector<int32_t>& out) const {
  check(part.size() <= kMaxPart,
        "{}: {} bytes of the text have no place at which SentencePiece's tokens allow a cut; "
        "expected at most {}: add spaces, or divide the text into files",
        name_, part.size(), kMaxPart);
  std::vector<int> ids;
  const auto status = processor.Encode(part, &ids);
  check(status.ok(),
        "{}: SentencePiece cannot encode the text ({}); the model is damaged: "
        "download it again",
        name_, status.message());
  out.insert(out.end(), ids.begin(), ids.end());
}

/// A part ends at the last possible place before kUnigramPart bytes, or at the first one behind
/// them: the same parts of a text as a whole and in windows.
size_t SentencePieceTokenizer::encode_long_parts(const TextWindow& window,
                                                 std::vector<int32_t>& out) const {
  size_t begin = 0;
  size_t last = 0;
  const auto finish_part = [&](size_t end) {
    encode_part(processor_of(begin == 0 && !window.continues),
                window.text.substr(begin, end - begin), out);
    begin = end;
  };
  finder_.run(window, [&](size_t at) {
    while (at - begin > kUnigramPart) {
      finish_part(last > begin ? last : at);
    }
    last = at;
  });
  if (window.open) {
    return begin;
  }
  if (window.text.size() - begin > kUnigramPart && last > begin) {
    finish_part(last);
  }
  finish_part(window.text.size());
  return window.text.size();
}

size_t SentencePieceTokenizer::encode_words(const TextWindow& window,
                                            std::vector<int32_t>& out) const {
  size_t begin = 0;
  caches_.with([&](WordCache& cache) {
    const auto finish_word = [&](size_t end) {
      const std::string_view word = window.text.substr(begin, end - begin);
      if (begin == 0 && !window.continues) {
        encode_part(*whole_, word, out);
      } else {
        cache.append(word, out, [&] { encode_part(processor_of(false), word, out); });
      }
      begin = end;
    };
    finder_.run(window, finish_word);
    if (!window.open) {
      finish_word(window.text.size());
    }
  });
  return begin;
}

size_t SentencePieceTokenizer::encode(const TextWindow& window, std::vector<int32_t>& out) const {
  return file_.model == File::Model::unigram ? encode_long_parts(window, out)
                                             : encode_words(window, out);
}

std::string SentencePieceTokenizer::decode(std::span<const int32_t> ids, bool special) const {
  std::vector<int> kept;
  kept.reserve(ids.size());
  bool has_control = false;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (!has(ids[i])) {
      fail_unknown_token(ids[i], i, vocabulary());
    }
    if (special || !is_special(ids[i])) {
      kept.push_back(ids[i]);
      has_control = has_control || kind_of(ids[i]) == File::Kind::control;
    }
  }
  sentencepiece::ImmutableSentencePieceText decoded;
  const auto status = whole_->Decode(kept, decoded.mutable_proto());
  check(status.ok(),
        "{}: SentencePiece cannot decode the tokens ({}); the model is damaged: "
        "download it again",
        name_, status.message());
  if (!has_control || file_.has_denormalizer) {
    return decoded.text();
  }
  std::string text;  // the library leaves out the texts of control pieces
  for (size_t i = 0; i < kept.size(); ++i) {
    if (kind_of(kept[i]) == File::Kind::control) {
      text += file_.pieces[static_cast<size_t>(kept[i])].text;
    } else {
      text += decoded.pieces(static_cast<int>(i)).surface();
    }
  }
  return text;
}

}  // namespace

std::shared_ptr<const TokenizerModel> read_sentencepiece(std::string bytes, const std::string& name,
                                                         const std::string& config) {
  return std::make_shared<SentencePieceTokenizer>(std::move(bytes), name, config);
}

}  // namespace espalier::io
