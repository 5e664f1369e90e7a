#pragma once
// The files of a Hugging Face directory besides the weights: config.json, the tokenizer, and texts
// that export writes back as they were.
//
// A checkpoint holds them as texts (io::texts_of_model): "tokenizer" is tokenizer.json,
// "hub.config.json" config.json, "hub.NAME" another file (the tokenizer.model in base64:
// io/checkpoint/stored_tokenizer.h), and "hub.layout" the FileFacts below. The tokens that end a
// text are in generation_config.json and config.json (end_tokens.h).
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "io/checkpoint/checkpoint.h"

namespace espalier::hub {

inline constexpr std::string_view kConfigText = "hub.config.json";
inline constexpr std::string_view kLayoutText = "hub.layout";

/// By name in the checkpoint: the texts of the folder that exist. Throws Failure if there is no
/// config.json, or one is no text. `notes`: files that are left out.
std::map<std::string, std::string> read_texts(const std::filesystem::path& folder,
                                              std::vector<std::string>& notes);
/// Writes the texts of a checkpoint to a folder, without config.json.
void write_texts(const std::filesystem::path& folder,
                 const std::map<std::string, std::string>& texts);

/// Facts about the imported files that the network does not hold.
struct FileFacts {
  std::string prefix{};  ///< of tensor names
  std::string type{};    ///< of the first tensor, the token embedding: "BF16"; empty: unknown
  std::map<std::string, std::string> other_types{};  ///< by tensor, where it is another one
  /// Numbers of tensors that no parameter holds exactly, by tensor, as fp32: rows that the network
  /// does not use, and the values of those whose parameter is larger by 1.
  std::map<std::string, std::vector<float>> numbers{};
};
std::string text_of(const FileFacts& facts);
/// Throws Failure, which begins with `file`, if the text is damaged.
FileFacts file_facts_of(const std::string& text, const std::string& file);

/// A folder that appears whole or not at all: made under a temporary name beside `path`, then
/// renamed.
class AtomicFolder {
 public:
  /// Throws Failure if `path` exists and is no empty folder.
  explicit AtomicFolder(std::filesystem::path path);
  ~AtomicFolder();  ///< without commit: removes the temporary folder
  AtomicFolder(const AtomicFolder&) = delete;
  AtomicFolder& operator=(const AtomicFolder&) = delete;

  const std::filesystem::path& temporary() const { return temporary_; }
  void commit();

 private:
  std::filesystem::path path_, temporary_;
  bool committed_ = false;
};

}  // namespace espalier::hub
