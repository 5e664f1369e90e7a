#include "io/tokenizer/tokenizer.h"

#include <algorithm>
#include <mutex>
#include <unordered_map>

#include "io/files/raw_file.h"
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

constexpr uint64_t kMaxTokenizerFile = uint64_t{1} << 28;  ///< bytes; Gemma's has 33 MB
constexpr size_t kMaxAddedToken = 1024;                    ///< bytes
constexpr int64_t kMaxAddedId = int64_t{1} << 24;          ///< that of model.vocabulary

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

/// A part of a text in valid UTF-8.
struct TextWindow {
  std::string_view text;
  bool continues = false;  ///< text before it was encoded up to a cut
  bool open = false;       ///< more text may follow
};

}  // namespace

struct Tokenizer::State {
  std::string json;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  Bpe model;
  PostProcessor post_processor;
  TokenDecoder decoder;
  std::unordered_map<int32_t, AddedToken> added;  ///< by id
  AddedTokenSet added_raw;                        ///< searched in the text as it comes
  AddedTokenSet added_normalized;
  int64_t vocabulary = 0;

  mutable std::mutex mutex;
  mutable std::vector<std::unique_ptr<Workspace>> idle;  ///< guarded by the mutex

  void read_added(const JsonField& field);
  size_t encode(const TextWindow& window, Workspace& work, std::vector<int32_t>& out) const;
  void encode_segment(const TextWindow& window, const AddedTokenSet::Part& part, bool& all,
                      Workspace& work, std::vector<int32_t>& out) const;
  size_t find_cut(const TextWindow& window, const AddedTokenSet::Part& part, Workspace& work,
                  size_t& tokens) const;
  size_t last_cut_by_normalizer(std::string_view text) const;
  /// As `decode` sees it; null: there is none.
  const std::string* token_of(int32_t id) const;

  /// Calls work(workspace) with a workspace that no other thread uses.
  template <class Work>
  void with_workspace(const Work& work) const {
    std::unique_ptr<Workspace> space;
    {
      const std::lock_guard lock(mutex);
      if (!idle.empty()) {
        space = std::move(idle.back());
        idle.pop_back();
      }
    }
    if (space == nullptr) {
      space = std::make_unique<Workspace>();
    }
    work(*space);
    const std::lock_guard lock(mutex);
    idle.push_back(std::move(space));
  }
};

void Tokenizer::State::read_added(const JsonField& field) {
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
    const int32_t known = model.id_of(token.content);
    const auto before = added.find(token.id);
    const std::string* other =
        before != added.end() ? &before->second.content : model.token_of(token.id);
    if ((known >= 0 && known != token.id) || (other != nullptr && *other != token.content)) {
      element.at("id").refuse(
          "is {}, but another place of the file gives {}; each token has one id", token.id,
          other != nullptr && *other != token.content
              ? fmt::format("that id to \"{}\"", JsonField::printable(*other))
              : fmt::format("\"{}\" the id {}", JsonField::printable(token.content), known));
    }
    token.searched = token.normalized
                         ? std::string(normalizer.apply(token.content, false, memory, buffer))
                         : token.content;
    (token.normalized ? added_normalized : added_raw).add(token);
    vocabulary = std::max(vocabulary, int64_t{token.id} + 1);
    added[token.id] = std::move(token);
  }
}

const std::string* Tokenizer::State::token_of(int32_t id) const {
  const auto found = added.find(id);
  return found != added.end() ? &found->second.searched : model.token_of(id);
}

/// Encodes the text of a part that is no added token. `all` becomes false if an added token was
/// not to be taken within it.
void Tokenizer::State::encode_segment(const TextWindow& window, const AddedTokenSet::Part& part,
                                      bool& all, Workspace& work, std::vector<int32_t>& out) const {
  const bool at_start = part.begin == 0;
  const std::string_view text =
      normalizer.apply(window.text.substr(part.begin, part.end - part.begin),
                       window.continues && at_start, work.pre_tokenizer.pattern, work.normalized);
  work.inner_parts.clear();
  all = added_normalized.cut(text, work.inner_parts) && all;
  work.cuts.clear();
  WordEncoder encoder(model, work, window.open, out);
  size_t rest = window.open ? pre_tokenizer.cut_bytes(text) : 0;
  for (const AddedTokenSet::Part& inner : work.inner_parts) {
    const std::string_view words = text.substr(inner.begin, inner.end - inner.begin);
    rest -= window.open ? pre_tokenizer.cut_bytes(words) : 0;
    if (inner.token >= 0) {
      out.push_back(inner.token);
      continue;
    }
    const bool first = at_start && inner.begin == 0;
    pre_tokenizer.run(
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
size_t Tokenizer::State::find_cut(const TextWindow& window, const AddedTokenSet::Part& part,
                                  Workspace& work, size_t& tokens) const {
  const std::string_view text = window.text;
  size_t limit = part.end;
  if (!added_raw.empty() || !added_normalized.empty()) {
    // Normalization makes a text at most 8 times shorter.
    const size_t guard = std::max(added_raw.longest(), 8 * added_normalized.longest()) + 8;
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
    if (!normalizer.cuts_at(text, at)) {
      continue;
    }
    rest += pre_tokenizer.cut_bytes(normalizer.apply(text.substr(at, end - at), true,
                                                     work.pre_tokenizer.pattern, work.normalized));
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
size_t Tokenizer::State::encode(const TextWindow& window, Workspace& work,
                                std::vector<int32_t>& out) const {
  work.parts.clear();
  const bool all_raw = added_raw.cut(window.text, work.parts);
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
size_t Tokenizer::State::last_cut_by_normalizer(std::string_view text) const {
  size_t at = text.size();
  while (at > 0 && !normalizer.cuts_at(text, at - 1)) {
    --at;
  }
  return at > 0 ? at - 1 : 0;
}

Tokenizer Tokenizer::from_file(const std::filesystem::path& path) {
  return from_text(read_text(path, "tokenizer", kMaxTokenizerFile), path.string());
}

Tokenizer Tokenizer::from_text(std::string json, const std::string& name) {
  const auto parsed = parse_json<nlohmann::json>(json);
  check(parsed.is_object(),
        "{} is no JSON object of at most 64 levels; expected the tokenizer.json of a model of "
        "Hugging Face (SentencePiece's tokenizer.model is not supported)",
        name);
  const JsonField root(parsed, name);
  auto state = std::make_shared<State>();
  state->normalizer = Normalizer::read(root.maybe("normalizer"));
  state->pre_tokenizer = PreTokenizer::read(root.maybe("pre_tokenizer"));
  state->model = Bpe::read(root.at("model"), state->pre_tokenizer.bytes());
  state->vocabulary = int64_t{state->model.largest_id()} + 1;
  state->read_added(root.maybe("added_tokens"));
  state->post_processor = PostProcessor::read(root.maybe("post_processor"));
  for (const auto* ids : {&state->post_processor.before, &state->post_processor.after}) {
    for (const int32_t id : *ids) {
      if (state->token_of(id) == nullptr) {
        root.at("post_processor").refuse("adds the token {}, which the file does not define", id);
      }
    }
  }
  state->decoder = TokenDecoder::read(root.maybe("decoder"));
  if (state->vocabulary == 0) {
    root.at("model").at("vocab").refuse("has no tokens");
  }
  state->json = std::move(json);
  return Tokenizer(std::move(state));
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, bool special) const {
  std::vector<int32_t> out;
  const PostProcessor& around = state_->post_processor;
  if (special) {
    out = around.before;
  }
  state_->with_workspace([&](Workspace& work) {
    state_->encode({.text = valid_utf8(text, work.repaired)}, work, out);
  });
  if (special) {
    out.insert(out.end(), around.after.begin(), around.after.end());
  }
  return out;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool special) const {
  std::vector<std::string> tokens;
  tokens.reserve(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    const std::string* token = state_->token_of(ids[i]);
    check(token != nullptr,
          "token {} at place {} is not in the tokenizer's vocabulary of {}; decode with the "
          "tokenizer that the model was trained with",
          ids[i], i, vocabulary());
    if (special || !is_special(ids[i])) {
      tokens.push_back(*token);
    }
  }
  return state_->decoder.decode(std::move(tokens));
}

int64_t Tokenizer::vocabulary() const { return state_->vocabulary; }

int32_t Tokenizer::id_of(std::string_view token) const {
  for (const auto& [id, added] : state_->added) {
    if (added.content == token) {
      return id;
    }
  }
  return state_->model.id_of(token);
}

bool Tokenizer::is_special(int32_t id) const {
  const auto found = state_->added.find(id);
  return found != state_->added.end() && found->second.special;
}

const std::string& Tokenizer::text() const { return state_->json; }

/// Adds text to `pending_`, but for a code point that is not complete.
void TokenizerStream::take(std::string_view text) {
  std::string joined;
  if (!incomplete_.empty()) {
    joined = incomplete_;
    joined += text;
    text = joined;
  }
  const size_t held = incomplete_utf8(text);
  const std::string_view complete = text.substr(0, text.size() - held);
  pending_ += valid_utf8(complete, repaired_);
  incomplete_ = std::string(text.substr(complete.size()));
}

void TokenizerStream::add(std::string_view text, std::vector<int32_t>& tokens) {
  const Tokenizer::State& state = *tokenizer_.state_;
  while (!text.empty()) {
    const size_t room = wanted_ > pending_.size() ? wanted_ - pending_.size() : 1;
    take(text.substr(0, room));
    text.remove_prefix(std::min(room, text.size()));
    if (pending_.size() < wanted_) {
      continue;
    }
    size_t done = 0;
    state.with_workspace([&](Workspace& work) {
      const std::string_view whole = pending_;
      const std::string_view known = whole.substr(0, state.last_cut_by_normalizer(whole));
      done = state.encode({.text = known, .continues = continues_, .open = true}, work, tokens);
    });
    pending_.erase(0, done);
    continues_ = continues_ || done > 0;
    // Without a place to cut, twice the text is tried: the time stays linear.
    wanted_ = pending_.size() < window_ ? window_ : 2 * pending_.size();
  }
}

void TokenizerStream::finish(std::vector<int32_t>& tokens) {
  pending_ += valid_utf8(incomplete_, repaired_);
  tokenizer_.state_->with_workspace([&](Workspace& work) {
    tokenizer_.state_->encode({.text = pending_, .continues = continues_}, work, tokens);
  });
  pending_.clear();
  incomplete_.clear();
  continues_ = false;
  wanted_ = window_;
}

}  // namespace espalier::io
