#pragma once
// The words of `model.network`: each string is a layer, "3 x conv 64 3 norm" three of them.
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace espalier::model {

/// Reads the words of one layer. Functions throw Failure, which quotes the layer.
class Words {
 public:
  explicit Words(const std::string& text);

  const std::string& text() const { return text_; }
  bool done() const { return next_ == words_.size(); }
  bool at_number() const;
  std::string word() { return done() ? std::string() : words_[next_++]; }
  bool skip(std::string_view word);
  /// 0 to 65536; `what` says what the number means.
  int64_t number(const char* what);

  /// A name, followed by its number or alone.
  struct Option {
    std::string_view name;
    int64_t* number = nullptr;  ///< null: the name alone sets `flag`
    bool* flag = nullptr;
  };
  /// Reads the rest: options in any order, each at most once.
  void options(std::initializer_list<Option> known);
  /// The words that have not been read.
  std::string rest() const;

 private:
  std::string text_;
  std::vector<std::string> words_;
  size_t next_ = 0;
};

/// Number and text of "N x TEXT"; 1 without a number.
std::pair<int64_t, std::string> repeated(const std::string& text);

}  // namespace espalier::model
