#include "src/hub/directory.h"

#include <algorithm>
#include <array>
#include <bit>

#include "io/checkpoint/stored_tokenizer.h"
#include "io/files/folders.h"
#include "io/files/raw_file.h"
#include "io/run/metrics.h"
#include "io/run/parse_json.h"
#include "src/core/error.h"
#include "src/hub/config_json.h"

namespace espalier::hub {
namespace {

namespace fs = std::filesystem;

/// Files that export writes back.
constexpr std::array<std::string_view, 5> kCarried{io::kTokenizerConfigFile,
                                                   "special_tokens_map.json", "added_tokens.json",
                                                   "generation_config.json", "chat_template.jinja"};
constexpr uint64_t kMaxTokenizer = uint64_t{256} << 20;

/// Checkpoints hold texts without NUL.
std::string read_plain_text(const fs::path& path, uint64_t most = 4 * io::kMaxConfig) {
  std::string text = io::read_text(path, "text of a model", most);
  check(text.find('\0') == std::string::npos,
        "{} is no text (it holds a zero byte); download it again", path.string());
  return text;
}

/// Without a slash at the end; of a link, the folder that it names.
fs::path target_of(const fs::path& path) {
  fs::path target = path.has_filename() ? path : path.parent_path();
  std::error_code ignored;
  if (fs::is_symlink(target, ignored)) {
    target = fs::weakly_canonical(target);
  }
  check(target.filename() != "." && target.filename() != "..",
        "{} is the folder that this command runs in, or holds it, and an export makes a new one; "
        "name another output folder with -o",
        path.string());
  return target;
}

}  // namespace

std::map<std::string, std::string> read_texts(const fs::path& folder,
                                              std::vector<std::string>& notes) {
  std::map<std::string, std::string> texts;
  const fs::path config = folder / "config.json";
  check(io::path_exists(config),
        "{} has no config.json, which describes the network; download it into the folder of the "
        "weights",
        folder.empty() ? "." : folder.string());
  texts[std::string(kConfigText)] = read_plain_text(config);
  for (const std::string_view name : kCarried) {
    if (io::path_exists(folder / name)) {
      const std::string& text = texts[std::string(io::kHubTexts) + std::string(name)] =
          read_plain_text(folder / name);
      if (name.ends_with(".json") && !io::parse_json<Json>(text).is_object()) {
        notes.push_back(
            fmt::format("{} is no JSON object ({}), and is not read; export writes it back",
                        (folder / name).string(), io::json_fault(text)));
      }
    }
  }
  const auto tokenizer = std::ranges::find_if(
      io::kTokenizerFiles,
      [&](const io::TokenizerFile& file) { return io::path_exists(folder / file.name); });
  if (tokenizer != io::kTokenizerFiles.end()) {
    const fs::path path = folder / tokenizer->name;
    io::store_tokenizer(
        {.file = *tokenizer,
         .bytes = tokenizer->is_binary ? io::read_text(path, "tokenizer", kMaxTokenizer)
                                       : read_plain_text(path, kMaxTokenizer)},
        texts);
  } else {
    notes.push_back(fmt::format(
        "{} has no tokenizer.json and no tokenizer.model: texts need `data tokenize --tokenizer "
        "FILE`{}",
        folder.string(),
        io::path_exists(folder / "vocab.json")
            ? "; its other tokenizer files become one with transformers: "
              "AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)"
            : ""));
  }
  return texts;
}

void write_texts(const fs::path& folder, const std::map<std::string, std::string>& texts) {
  for (const std::string_view name : kCarried) {
    const auto found = texts.find(std::string(io::kHubTexts) + std::string(name));
    if (found != texts.end()) {
      io::write_text_atomically(folder / name, found->second);
    }
  }
  if (const auto tokenizer = io::stored_tokenizer(texts, "the checkpoint"); tokenizer) {
    io::write_text_atomically(folder / tokenizer->file.name, tokenizer->bytes);
  }
}

std::string text_of(const FileFacts& facts) {
  Json json{{"prefix", facts.prefix},
            {"type", facts.type},
            {"other_types", facts.other_types},
            {"numbers", Json::object()}};
  for (const auto& [name, values] : facts.numbers) {
    std::string bits;
    for (const float value : values) {
      bits += fmt::format("{:08x}", std::bit_cast<uint32_t>(value));
    }
    json["numbers"][name] = bits;
  }
  return json.dump(-1, ' ', true);
}

FileFacts file_facts_of(const std::string& text, const std::string& file) {
  const Json json = io::parse_json<Json>(text);
  const auto expect = [&](bool ok) {
    check(ok, "{}: its text \"{}\" is damaged; import the model again", file, kLayoutText);
  };
  const auto word = [&](const Json& value) {
    expect(value.is_string());
    return value.get<std::string>();
  };
  expect(json.is_object());
  for (const char* key : {"prefix", "type", "other_types", "numbers"}) {
    expect(json.contains(key));
  }
  expect(json["other_types"].is_object() && json["numbers"].is_object());
  FileFacts facts{.prefix = word(json["prefix"]), .type = word(json["type"])};
  for (const auto& [name, type] : json["other_types"].items()) {
    facts.other_types[name] = word(type);
  }
  for (const auto& [name, bits] : json["numbers"].items()) {
    constexpr size_t kDigits = 8;
    constexpr int kHexadecimal = 16;
    const std::string digits = word(bits);
    expect(digits.size() % kDigits == 0 &&
           digits.find_first_not_of("0123456789abcdef") == std::string::npos);
    std::vector<float>& values = facts.numbers[name];
    for (size_t at = 0; at < digits.size(); at += kDigits) {
      values.push_back(std::bit_cast<float>(
          static_cast<uint32_t>(std::stoul(digits.substr(at, kDigits), nullptr, kHexadecimal))));
    }
  }
  return facts;
}

AtomicFolder::AtomicFolder(fs::path path)
    : path_(target_of(path)), temporary_(io::temporary_name(path_)) {
  std::error_code ignored;
  check(!io::path_exists(path_) || fs::is_directory(path_, ignored),
        "{} is no folder; name another output folder with -o", path_.string());
  check(io::entries_of(path_).empty(),
        "{} is not empty, and an export does not mix with other files; remove it, or name another "
        "output folder with -o",
        path_.string());
  io::make_folder_of(path_);
  for (const fs::path& abandoned : io::abandoned_of(path_)) {
    fs::remove_all(abandoned, ignored);
  }
  fs::remove_all(temporary_, ignored);  // of an earlier process with our PID
  check(io::make_folder(temporary_), "{} exists already; remove it", temporary_.string());
}

AtomicFolder::~AtomicFolder() {
  if (!committed_) {
    std::error_code ignored;
    fs::remove_all(temporary_, ignored);
  }
}

void AtomicFolder::commit() {
  io::sync_folder(temporary_);
  io::publish(temporary_, path_);
  committed_ = true;
}

}  // namespace espalier::hub
