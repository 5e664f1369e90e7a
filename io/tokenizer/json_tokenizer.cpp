#include "io/tokenizer/json_tokenizer.h"

#include <algorithm>
#include <unordered_map>

#include "io/run/parse_json.h"
#include "io/tokenizer/added_tokens.h"
#include "io/tokenizer/bpe.h"
#include "io/tokenizer/decoder.h"
#include "io/tokenizer/normalizer.h"
#include "io/tokenizer/post_processor.h"
#include "io/tokenizer/pre_tokenizer.h"
#include "io/tokenizer/utf8.h"

namespace espalier::io {
namespace {

constexpr size_t kMaxAddedToken = 1024;            ///< bytes
constexpr int64_t kMaxAddedId = int64_t{1} << 24;  ///< that of model.vocabulary

/// A place where a text can be cut: so many bytes of it come after, and so many tokens before.
struct TextCut {
  size_t rest = 0;
  size_t tokens = 0;
};

/// Memory of one thread.
struct Workspace {
  PreTokenizer::Memory pre_tokenizer;
  Bpe::Scratch bpe;
  std::string repaired;
  std::string normalized;
  std::vector<AddedTokenSet::Part> parts;
  std::vector<AddedTokenSet::Part> inner_parts;
  std::vector<TextCut> cuts;
};

/// Encodes words, and notes where the text can be cut.
class WordEncoder final : public WordSink {
 public:
  WordEncoder(const Bpe& bpe, Workspace& work, bool notes_cuts, std::vector<int32_t>& out)
      : bpe_(bpe), work_(work), notes_cuts_(notes_cuts), out_(out) {}

  void cut(size_t rest) override {
    if (!notes_cuts_) {
      return;
    }
    constexpr size_t kMost = 8192;  // the last ones are wanted
    if (work_.cuts.size() == kMost) {
      work_.cuts.erase(work_.cuts.begin(), work_.cuts.begin() + kMost / 2);
    }
    work_.cuts.push_back({.rest = rest, .tokens = out_.size()});
  }

  void word(std::string_view word, bool cuttable, size_t rest) override {
    size_t begin = 0;
    for (;;) {
      const size_t end = bpe_.cut_after(word, begin + 1);
      bpe_.encode(word.substr(begin, end - begin), work_.bpe, out_);
      if (end == word.size()) {
        return;
      }
      begin = end;
      if (cuttable) {
        cut(rest + word.size() - end);
      }
    }
  }

 private:
  const Bpe& bpe_;
  Workspace& work_;
  bool notes_cuts_;
  std::vector<int32_t>& out_;
};

class JsonTokenizer final : public TokenizerModel {
 public:
  JsonTokenizer(std::string json, const std::string& name);

  size_t encode(const TextWindow& window, std::vector<int32_t>& out) const override;
  std::string decode(std::span<const int32_t> ids, bool special) const override;
  int64_t vocabulary() const override { return vocabulary_; }
  int32_t id_of(std::string_view token) const override;
  bool is_special(int32_t id) const override;
  std::span<const int32_t> before() const override { return post_processor_.before; }
  std::span<const int32_t> after() const override { return post_processor_.after; }
  const std::string& text() const override { return json_; }

 private:
  void read_added(const JsonField& field);
  size_t encode_up_to_cut(const TextWindow& window, Workspace& work,
                          std::vector<int32_t>& out) const;
  void encode_segment(const TextWindow& window, const AddedTokenSet::Part& part, bool& all,
                      Workspace& work, std::vector<int32_t>& out) const;
  size_t find_cut(const TextWindow& window, const AddedTokenSet::Part& part, Workspace& work,
                  size_t& tokens) const;
  size_t last_cut_by_normalizer(std::string_view text) const;
  /// As `decode` sees it; null: there is none.
  const std::string* token_of(int32_t id) const;

  std::string json_;
  Normalizer normalizer_;
  PreTokenizer pre_tokenizer_;
  Bpe model_;
  PostProcessor post_processor_;
  TokenDecoder decoder_;
  std::unordered_map<int32_t, AddedToken> added_;  ///< by id
  AddedTokenSet added_raw_;                        ///< searched in the text as it comes
  AddedTokenSet added_normalized_;
  int64_t vocabulary_ = 0;
  mutable WorkspacePool<Workspace> workspaces_;
};

JsonTokenizer::JsonTokenizer(std::string json, const std::string& name) {
  const auto parsed = parse_json<nlohmann::json>(json);
  check(parsed.is_object(),
        "{} is no JSON object of at most 64 levels, and no SentencePiece model; expected the "
        "tokenizer.json or the tokenizer.model of a model of Hugging Face",
        name);
  const JsonField root(parsed, name);
  normalizer_ = Normalizer::read(root.maybe("normalizer"));
  pre_tokenizer_ = PreTokenizer::read(root.maybe("pre_tokenizer"));
  model_ = Bpe::read(root.at("model"), pre_tokenizer_.bytes());
  vocabulary_ = int64_t{model_.largest_id()} + 1;
  read_added(root.maybe("added_tokens"));
  post_processor_ = PostProcessor::read(root.maybe("post_processor"));
  for (const auto* ids : {&post_processor_.before, &post_processor_.after}) {
    for (const int32_t id : *ids) {
      if (token_of(id) == nullptr) {
        root.at("post_processor").refuse("adds the token {}, which the file does not define", id);
      }
    }
  }
  decoder_ = TokenDecoder::read(root.maybe("decoder"));
  if (vocabulary_ == 0) {
    root.at("model").at("vocab").refuse("has no tokens");
  }
  json_ = std::move(json);
}

void JsonTokenizer::read_added(const JsonField& field) {
  if (field.is_null()) {
    return;
  }
  PatternMemory memory;
  std::string buffer;
  for (const JsonField& element : field.elements()) {
    AddedToken token{.content = element.at("content").text(),
                     .id = static_cast<int32_t>(element.at("id").number(kMaxAddedId)),
                     .special = element.maybe("special").flag(false),
                     .lstrip = element.maybe("lstrip").flag(false),
                     .rstrip = element.maybe("rstrip").flag(false),
                     .single_word = element.maybe("single_word").flag(false)};
    token.normalized = element.maybe("normalized").flag(!token.special);
    if (token.content.empty() || token.content.size() > kMaxAddedToken) {
      element.at("content").refuse("has {} bytes; expected 1 to {}", token.content.size(),
                                   kMaxAddedToken);
    }
    const int32_t known = model_.id_of(token.content);
    const auto before = added_.find(token.id);
    const std::string* other =
        before != added_.end() ? &before->second.content : model_.token_of(token.id);
    if ((known >= 0 && known != token.id) || (other != nullptr && *other != token.content)) {
      element.at("id").refuse(
          "is {}, but another place of the file gives {}; each token has one id", token.id,
          other != nullptr && *other != token.content
              ? fmt::format("that id to \"{}\"", JsonField::printable(*other))
              : fmt::format("\"{}\" the id {}", JsonField::printable(token.content), known));
    }
    token.searched = token.normalized
                         ? std::string(normalizer_.apply(token.content, false, memory, buffer))
                         : token.content;
    (token.normalized ? added_normalized_ : added_raw_).add(token);
    vocabulary_ = std::max(vocabulary_, int64_t{token.id} + 1);
    added_[token.id] = std::move(token);
  }
}

const std::string* JsonTokenizer::token_of(int32_t id) const {
  const auto found = added_.find(id);
  return found != added_.end() ? &found->second.searched : model_.token_of(id);
}

/// Encodes the text of a part that is no added token. `all` becomes false if an added token was
/// not to be taken within it.
void JsonTokenizer::encode_segment(const TextWindow& window, const AddedTokenSet::Part& part,
                                   bool& all, Workspace& work, std::vector<int32_t>& out) const {
  const bool at_start = part.begin == 0;
  const std::string_view text =
      normalizer_.apply(window.text.substr(part.begin, part.end - part.begin),
                        window.continues && at_start, work.pre_tokenizer.pattern, work.normalized);
  work.inner_parts.clear();
  all = added_normalized_.cut(text, work.inner_parts) && all;
  work.cuts.clear();
  WordEncoder encoder(model_, work, window.open, out);
  size_t rest = window.open ? pre_tokenizer_.cut_bytes(text) : 0;
  for (const AddedTokenSet::Part& inner : work.inner_parts) {
    const std::string_view words = text.substr(inner.begin, inner.end - inner.begin);
    rest -= window.open ? pre_tokenizer_.cut_bytes(words) : 0;
    if (inner.token >= 0) {
      out.push_back(inner.token);
      continue;
    }
    const bool first = at_start && inner.begin == 0;
    pre_tokenizer_.run(
        words,
        {.first = first && !window.continues,
         .continues = first && window.continues,
         .open = window.open && part.end == window.text.size() && inner.end == text.size(),
         .rest = rest},
        work.pre_tokenizer, encoder);
  }
}

/// The last place within a part of an open window at which the text can be cut, given the places
/// `work.cuts` in its normalized text; 0: there is none. No added token may lie there, or take
/// white space from beyond the place, or be found only with more text.
size_t JsonTokenizer::find_cut(const TextWindow& window, const AddedTokenSet::Part& part,
                               Workspace& work, size_t& tokens) const {
  const std::string_view text = window.text;
  size_t limit = part.end;
  if (!added_raw_.empty() || !added_normalized_.empty()) {
    // Normalization makes a text at most 8 times shorter.
    const size_t guard = std::max(added_raw_.longest(), 8 * added_normalized_.longest()) + 8;
    limit = std::min(limit, text.size() - std::min(guard, text.size()));
    if (limit <= part.begin) {
      return 0;
    }
    while (is_continuation(text[limit])) {  // limit < text.size()
      --limit;
    }
    if (limit <= part.begin) {
      return 0;
    }
    limit -= trailing_white_space(text.substr(part.begin, limit - part.begin));
  }
  size_t rest = 0;
  size_t end = part.end;
  auto cut = work.cuts.rbegin();
  for (size_t at = part.end; --at > part.begin && cut != work.cuts.rend();) {
    if (!normalizer_.cuts_at(text, at)) {
      continue;
    }
    rest += pre_tokenizer_.cut_bytes(normalizer_.apply(
        text.substr(at, end - at), true, work.pre_tokenizer.pattern, work.normalized));
    end = at;
    while (cut != work.cuts.rend() && cut->rest < rest) {
      ++cut;
    }
    if (cut != work.cuts.rend() && cut->rest == rest && at < limit) {
      tokens = cut->tokens;
      return at;
    }
  }
  return 0;
}

/// Encodes the text of the window up to the place that it returns: its end, or, of an open
/// window, the last place at which the text can be cut.
size_t JsonTokenizer::encode_up_to_cut(const TextWindow& window, Workspace& work,
                                       std::vector<int32_t>& out) const {
  work.parts.clear();
  const bool all_raw = added_raw_.cut(window.text, work.parts);
  size_t cut_at = 0;
  size_t cut_tokens = out.size();
  for (const AddedTokenSet::Part& part : work.parts) {
    if (part.token >= 0) {
      out.push_back(part.token);
      continue;
    }
    bool all = all_raw;
    encode_segment(window, part, all, work, out);
    if (window.open && all) {
      size_t tokens = 0;
      if (const size_t at = find_cut(window, part, work, tokens); at > 0) {
        cut_at = at;
        cut_tokens = tokens;
      }
    }
  }
  if (!window.open) {
    return window.text.size();
  }
  out.resize(cut_tokens);
  return cut_at;
}

/// The longest beginning of `text` whose normalized form no later text changes.
size_t JsonTokenizer::last_cut_by_normalizer(std::string_view text) const {
  size_t at = text.size();
  while (at > 0 && !normalizer_.cuts_at(text, at - 1)) {
    --at;
  }
  return at > 0 ? at - 1 : 0;
}

size_t JsonTokenizer::encode(const TextWindow& window, std::vector<int32_t>& out) const {
  TextWindow known = window;
  if (window.open) {
    known.text = window.text.substr(0, last_cut_by_normalizer(window.text));
  }
  size_t done = 0;
  workspaces_.with([&](Workspace& work) { done = encode_up_to_cut(known, work, out); });
  return done;
}

std::string JsonTokenizer::decode(std::span<const int32_t> ids, bool special) const {
  std::vector<std::string> tokens;
  tokens.reserve(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    const std::string* token = token_of(ids[i]);
    if (token == nullptr) {
      fail_unknown_token(ids[i], i, vocabulary_);
    }
    if (special || !is_special(ids[i])) {
      tokens.push_back(*token);
    }
  }
  return decoder_.decode(std::move(tokens));
}

int32_t JsonTokenizer::id_of(std::string_view token) const {
  for (const auto& [id, added] : added_) {
    if (added.content == token) {
      return id;
    }
  }
  return model_.id_of(token);
}

bool JsonTokenizer::is_special(int32_t id) const {
  const auto found = added_.find(id);
  return found != added_.end() && found->second.special;
}

}  // namespace

std::shared_ptr<const TokenizerModel> read_json_tokenizer(std::string json,
                                                          const std::string& name) {
  return std::make_shared<JsonTokenizer>(std::move(json), name);
}

}  // namespace espalier::io
