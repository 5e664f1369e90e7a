// espalier data tokenize: writes token files, of bytes, of characters, or by a tokenizer file, also
// that of a checkpoint.
#include <charconv>
#include <functional>

#include "io/data/fingerprint.h"
#include "io/data/token_format.h"
#include "io/data/tokens.h"
#include "io/files/folders.h"
#include "io/files/mapped_file.h"
#include "io/files/raw_file.h"
#include "io/run/metrics.h"
#include "src/cli/commands.h"
#include "src/cli/shared/console.h"
#include "src/cli/shared/options.h"
#include "src/cli/shared/paths.h"
#include "src/cli/shared/weights_file.h"
#include "src/core/error.h"
#include "src/core/trace.h"

namespace espalier::cli {
namespace {

struct TokenizeArguments {
  io::DataConfig data{.validation_fraction = 0};
  std::string tokenizer;
  std::string separator = "none";
  std::string out;
  std::string dtype = "auto";

  /// The type of tokens below `vocabulary`.
  std::string type_for(int64_t vocabulary) const {
    return dtype != "auto" ? dtype : vocabulary > kMost16 ? "uint32" : "uint16";
  }
  static constexpr int64_t kMost16 = 65536;
};

/// Tokens in a file that appears whole or not at all: little-endian integers.
class TokenFile {
 public:
  TokenFile(const std::string& path, const std::string& dtype)
      : file_(path), width_(dtype == "uint16" ? 2 : 4) {}

  void append(std::span<const int32_t> tokens) {
    bytes_.resize(tokens.size() * width_);
    for (size_t i = 0; i < tokens.size(); ++i) {
      for (size_t byte = 0; byte < width_; ++byte) {
        bytes_[i * width_ + byte] =
            static_cast<char>(static_cast<uint32_t>(tokens[i]) >> (8 * byte) & 0xffU);
      }
    }
    file_.append(bytes_);
    count_ += static_cast<int64_t>(tokens.size());
  }
  void commit() { file_.commit(); }

  int64_t count() const { return count_; }
  /// "1,234 tokens, 2.47 kB"
  std::string size_text() const {
    return fmt::format("{} tokens, {}", grouped(count_),
                       bytes_text(static_cast<double>(width_) * static_cast<double>(count_)));
  }

 private:
  io::AtomicFile file_;
  size_t width_;
  std::string bytes_;
  int64_t count_ = 0;
};

std::string note_file_of(const TokenizeArguments& arguments) { return arguments.out + ".json"; }

/// Tokens are never beside the note of others, whose type they would be read with: an earlier token
/// file is removed, and the new one appears last.
void publish(TokenFile& tokens, const TokenizeArguments& arguments,
             const nlohmann::ordered_json& note) {
  io::remove_file(arguments.out);
  io::write_json_atomically(note_file_of(arguments), note);
  tokens.commit();
}

/// The lines of a config that reads the tokens.
void print_config(const TokenizeArguments& arguments, int64_t vocabulary) {
  print(fmt::format("[model]\nvocabulary = {}\n\n[data]\nkind = \"tokens\"\ntrain = [\"{}\"]\n",
                    vocabulary, arguments.out));
}

int tokenize_bytes(const TokenizeArguments& arguments) {
  const auto data =
      io::TokenDataset::open(arguments.data, io::Split::train, {.context = 0, .vocabulary = 0});
  const std::string type = arguments.type_for(data.vocabulary());
  TokenFile tokens(arguments.out, type);
  std::vector<int32_t> buffer;
  for (int64_t at = 0; at < data.size(); at += static_cast<int64_t>(buffer.size())) {
    buffer.resize(static_cast<size_t>(std::min<int64_t>(data.size() - at, int64_t{1} << 20U)));
    data.read(at, buffer);
    tokens.append(buffer);
  }
  // The note allows decoding to text: token t stands for byte bytes[t].
  publish(tokens, arguments,
          {{"kind", arguments.data.kind},
           {"token_type", type},
           {"tokens", data.size()},
           {"vocabulary", data.vocabulary()},
           {"bytes", data.characters().text()}});
  print_note(fmt::format("wrote {}: {}; vocabulary: {}", arguments.out, tokens.size_text(),
                         note_file_of(arguments)));
  print_config(arguments, data.vocabulary());
  return 0;
}

/// The token that --document-separator names by number or by text; -1: none.
int32_t separator_of(const TokenizeArguments& arguments, const io::Tokenizer& tokenizer) {
  const std::string& text = arguments.separator;
  if (text == "none") {
    return -1;
  }
  int32_t id = -1;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, id);
  if (error != std::errc() || stop != end) {
    id = tokenizer.id_of(text);
    check(id >= 0,
          "--document-separator {} is no token of {}; name a token, its number, or \"none\"", text,
          arguments.tokenizer);
  }
  check(id >= 0 && id < tokenizer.vocabulary(),
        "--document-separator {} is outside the vocabulary of {} of {}", text,
        tokenizer.vocabulary(), arguments.tokenizer);
  return id;
}

/// Appends the tokens of a text file.
void tokenize_file(const io::MappedFile& file, const io::Tokenizer& tokenizer,
                   const std::function<void(int64_t bytes)>& on_read, TokenFile& out) {
  constexpr size_t kPart = size_t{1} << 18;
  io::TokenizerStream stream(tokenizer);
  const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()),
                              file.bytes().size());
  std::vector<int32_t> tokens;
  for (size_t at = 0; at < text.size(); at += kPart) {
    const std::string_view part = text.substr(at, kPart);
    tokens.clear();
    stream.add(part, tokens);
    out.append(tokens);
    on_read(static_cast<int64_t>(part.size()));
  }
  tokens.clear();
  stream.finish(tokens);
  out.append(tokens);
}

int tokenize_by_file(const TokenizeArguments& arguments) {
  check_output(arguments.out, std::array{arguments.tokenizer});
  check_output(note_file_of(arguments), std::array{arguments.tokenizer});
  const io::Tokenizer tokenizer = open_tokenizer(arguments.tokenizer);
  const std::string type = arguments.type_for(tokenizer.vocabulary());
  check(type != "uint16" || tokenizer.vocabulary() <= TokenizeArguments::kMost16,
        "the vocabulary of {} has {} tokens, and uint16 holds {}; leave out --dtype, or use "
        "--dtype uint32",
        arguments.tokenizer, tokenizer.vocabulary(), TokenizeArguments::kMost16);
  const int32_t separator = separator_of(arguments, tokenizer);
  std::vector<io::MappedFile> files;
  int64_t total = 0;
  for (const std::string& path : arguments.data.train) {
    files.emplace_back(path, "text file");
    io::check_no_container(path, files.back().bytes());
    total += static_cast<int64_t>(files.back().bytes().size());
  }
  const double started = now_seconds();
  TokenFile tokens(arguments.out, type);
  int64_t done = 0;
  {
    WorkProgress progress("tokenize", WorkProgress::Unit::bytes);
    for (const io::MappedFile& file : files) {
      tokenize_file(
          file, tokenizer, [&](int64_t bytes) { progress.show(done += bytes, total); }, tokens);
      if (separator >= 0) {
        tokens.append(std::array{separator});
      }
    }
  }
  const double seconds = std::max(now_seconds() - started, 1e-9);
  nlohmann::ordered_json note{{"kind", "tokenizer"},
                              {"token_type", type},
                              {"tokens", tokens.count()},
                              {"vocabulary", tokenizer.vocabulary()},
                              {"text_bytes", total},
                              {"tokenizer", arguments.tokenizer},
                              {"tokenizer_content", io::fingerprint_of(tokenizer.text())},
                              {"document_separator", nullptr}};
  if (separator >= 0) {
    note["document_separator"] = separator;
  }
  publish(tokens, arguments, note);
  print_note(fmt::format(
      "wrote {}: {}; {:.2f} bytes of text per token, {:.1f} MB/s; note: {}", arguments.out,
      tokens.size_text(),
      static_cast<double>(total) / static_cast<double>(std::max<int64_t>(tokens.count(), 1)),
      static_cast<double>(total) / seconds / 1e6, note_file_of(arguments)));
  print_config(arguments, tokenizer.vocabulary());
  return 0;
}

/// Whether a text is JSON, one value a line.
bool is_json_lines(const std::string& path) {
  const io::MappedFile file(path, "text file");
  constexpr size_t kLongest = size_t{1} << 20;  // of the line that is looked at
  const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()),
                              std::min(file.bytes().size(), kLongest));
  const std::string_view line = text.substr(0, text.find('\n'));
  return line.starts_with('{') && nlohmann::json::accept(line);
}

int tokenize(const TokenizeArguments& arguments) {
  for (const std::string& path : arguments.data.train) {
    if (is_json_lines(path)) {
      print_note(
          fmt::format("{} holds JSON lines: their braces, keys and quotes become tokens, too; "
                      "to train on the texts alone, write these to a file of their own",
                      path));
    }
  }
  check_output(arguments.out, arguments.data.train);
  check_output(note_file_of(arguments), arguments.data.train);
  return arguments.tokenizer.empty() ? tokenize_bytes(arguments) : tokenize_by_file(arguments);
}

}  // namespace

void register_tokenize(CLI::App& data, Action& chosen) {
  auto arguments = std::make_shared<TokenizeArguments>();
  CLI::App* command = data.add_subcommand(
      "tokenize", "Write the tokens of texts as a token binary, with a note beside it");
  command
      ->add_option("files", arguments->data.train,
                   "any files; several count as one, or with --tokenizer as one document each")
      ->required();
  command->add_option("-o,--out", arguments->out, "the token file; the note is OUT.json")
      ->required();
  CLI::Option* kind =
      option(*command, "--kind", arguments->data.kind,
             "bytes (256 tokens) or chars (those that occur)", CLI::IsMember({"bytes", "chars"}))
          ->capture_default_str();
  CLI::Option* tokenizer =
      command
          ->add_option("--tokenizer", arguments->tokenizer,
                       "tokenizer.json or tokenizer.model of a Hugging Face model, or a checkpoint "
                       "that holds one (docs/tokenizers.md)")
          ->transform(tokenizer_path);
  tokenizer->excludes(kind);
  command
      ->add_option("--document-separator", arguments->separator,
                   "token after each file: its number or text, or none")
      ->needs(tokenizer)
      ->capture_default_str();
  option(*command, "--dtype", arguments->dtype, "of a token; auto: by the vocabulary",
         CLI::IsMember({"auto", "uint16", "uint32"}))
      ->capture_default_str();
  command->callback(
      [arguments, &chosen] { chosen = [arguments] { return tokenize(*arguments); }; });
}

}  // namespace espalier::cli
