#include "tests/support/sentencepiece.h"

#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include "src/core/error.h"

namespace espalier {
namespace {

class Sentences final : public sentencepiece::SentenceIterator {
 public:
  explicit Sentences(const std::vector<std::string>& all) : all_(all) {}
  bool done() const override { return at_ == all_.size(); }
  void Next() override { ++at_; }
  const std::string& value() const override { return all_[at_]; }
  sentencepiece::util::Status status() const override { return {}; }

 private:
  const std::vector<std::string>& all_;
  size_t at_ = 0;
};

}  // namespace

std::string train_sentencepiece(const std::string& options,
                                const std::vector<std::string>& sentences) {
  Sentences iterator(sentences);
  std::string model;
  const auto status = sentencepiece::SentencePieceTrainer::Train(
      "--num_threads=1 --minloglevel=2 " + options, &iterator, &model);
  require(status.ok(), "SentencePiece trains a model", options, status.message());
  return model;
}

const std::vector<std::string>& sentencepiece_sentences() {
  static const std::vector<std::string> sentences = [] {
    std::vector<std::string> out;
    for (int i = 0; i < 40; ++i) {
      for (const char* line :
           {"the quick brown fox jumps over the lazy dog", "he reads the other books there",
            "Der schnelle Fuchs springt über den müden Hund.", "for (int i = 0; i < n; ++i) {",
            "    return the_value + other_value;", "  }  // the end", "12 + 345 = 357",
            "lower lowest low newer newest new"}) {
        out.push_back(line + std::string(i % 3 == 0 ? " again" : ""));
      }
    }
    return out;
  }();
  return sentences;
}

const std::string& llama_like_sentencepiece() {
  static const std::string model = train_sentencepiece(
      "--model_type=bpe --vocab_size=400 --byte_fallback=true --normalization_rule_name=identity "
      "--remove_extra_whitespaces=false --allow_whitespace_only_pieces=true --split_digits=true "
      "--character_coverage=0.99",
      sentencepiece_sentences());
  return model;
}

const std::string& t5_like_sentencepiece() {
  static const std::string model = train_sentencepiece(
      "--model_type=unigram --vocab_size=150 --hard_vocab_limit=false "
      "--user_defined_symbols=<extra>,<extra_0>",
      sentencepiece_sentences());
  return model;
}

}  // namespace espalier
