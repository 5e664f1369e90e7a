#include "io/tokenizer/tokenizer.h"

#include <algorithm>

#include "io/files/folders.h"
#include "io/files/raw_file.h"
#include "io/tokenizer/json_tokenizer.h"
#include "io/tokenizer/sentencepiece.h"
#include "io/tokenizer/utf8.h"

namespace espalier::io {
namespace {

constexpr uint64_t kMaxTokenizerFile = uint64_t{1} << 28;  ///< bytes; Gemma's has 33 MB
constexpr uint64_t kMaxTokenizerConfig = uint64_t{1} << 22;

}  // namespace

Tokenizer Tokenizer::from_file(const std::filesystem::path& path) {
  std::string text = read_text(path, "tokenizer", kMaxTokenizerFile);
  const std::filesystem::path config = path.parent_path() / kTokenizerConfigFile;
  const bool reads_config = is_sentencepiece(text) && path_exists(config);
  return from_text(
      std::move(text), path.string(),
      reads_config ? read_text(config, "tokenizer config", kMaxTokenizerConfig) : std::string());
}

Tokenizer Tokenizer::from_text(std::string text, const std::string& name,
                               const std::string& config) {
  return Tokenizer(is_sentencepiece(text) ? read_sentencepiece(std::move(text), name, config)
                                          : read_json_tokenizer(std::move(text), name));
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, bool special) const {
  std::vector<int32_t> out;
  if (special) {
    out.assign(model_->before().begin(), model_->before().end());
  }
  std::string repaired;
  model_->encode({.text = valid_utf8(text, repaired)}, out);
  if (special) {
    out.insert(out.end(), model_->after().begin(), model_->after().end());
  }
  return out;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool special) const {
  return model_->decode(ids, special);
}
int64_t Tokenizer::vocabulary() const { return model_->vocabulary(); }
int32_t Tokenizer::id_of(std::string_view token) const { return model_->id_of(token); }
bool Tokenizer::is_special(int32_t id) const { return model_->is_special(id); }
const std::string& Tokenizer::text() const { return model_->text(); }

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
  while (!text.empty()) {
    const size_t room = wanted_ > pending_.size() ? wanted_ - pending_.size() : 1;
    take(text.substr(0, room));
    text.remove_prefix(std::min(room, text.size()));
    if (pending_.size() < wanted_) {
      continue;
    }
    const size_t done = tokenizer_.model_->encode(
        {.text = pending_, .continues = continues_, .open = true}, tokens);
    pending_.erase(0, done);
    continues_ = continues_ || done > 0;
    // Without a place to cut, twice the text is tried: the time stays linear.
    wanted_ = pending_.size() < window_ ? window_ : 2 * pending_.size();
  }
}

void TokenizerStream::finish(std::vector<int32_t>& tokens) {
  pending_ += valid_utf8(incomplete_, repaired_);
  tokenizer_.model_->encode({.text = pending_, .continues = continues_}, tokens);
  pending_.clear();
  incomplete_.clear();
  continues_ = false;
  wanted_ = window_;
}

}  // namespace espalier::io
