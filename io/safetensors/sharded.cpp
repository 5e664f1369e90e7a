#include "io/safetensors/sharded.h"

#include <algorithm>
#include <set>
#include <utility>

#include "io/files/folders.h"
#include "io/files/raw_file.h"
#include "io/safetensors/json_events.h"
#include "src/core/error.h"

namespace espalier::io {
namespace {

namespace fs = std::filesystem;

class IndexHandler : public JsonHandler {
 public:
  explicit IndexHandler(std::string_view file) : file_(file) {}
  bool found() const { return found_; }
  std::map<std::string, std::string> take() { return std::move(shards_); }

  bool key(int64_t level, std::string& name) override {
    if (level == 1) {
      const bool wanted = name == "weight_map";
      check(!wanted || !found_, "{} has \"weight_map\" twice; {}", file_, kSafetensorsFix);
      found_ = found_ || wanted;
      return wanted;
    }
    tensor_ = name;
    return true;
  }
  void begin(int64_t level, Kind kind) override {
    if (level > 1 || kind == Kind::list) {
      refuse(level, kind == Kind::list ? "a list" : "an object");
    }
  }
  void end(int64_t, Kind) override {}
  void text(int64_t level, std::string& value) override {
    if (level != 2) {
      refuse(level, quoted_text(value));
    }
    const bool plain = !value.empty() && value != "." && value != ".." &&
                       value.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos;
    if (!plain) {
      fail(
          "{} places tensor {} in {}, which is no name of a file in the index's folder; download "
          "the index again",
          file_, quoted_text(tensor_), quoted_text(value));
    }
    if (!shards_.emplace(tensor_, value).second) {
      fail("{} lists tensor {} twice; {}", file_, quoted_text(tensor_), kSafetensorsFix);
    }
  }
  void number(int64_t level, uint64_t value) override { refuse(level, fmt::format("{}", value)); }
  void other(int64_t level, std::string_view value) override { refuse(level, value); }

 private:
  [[noreturn]] void refuse(int64_t level, std::string_view value) const {
    fail("{}: {} is {} instead of {}; {}", file_,
         level == 0   ? "its outermost value"
         : level == 1 ? "weight_map"
                      : "the shard of tensor " + quoted_text(tensor_),
         value, level < 2 ? "an object" : "the name of a file", kSafetensorsFix);
  }

  std::string_view file_;
  bool found_ = false;
  std::string tensor_{};
  std::map<std::string, std::string> shards_{};
};

std::vector<std::string> with_end(const std::vector<std::string>& names, std::string_view end) {
  std::vector<std::string> out;
  std::ranges::copy_if(names, std::back_inserter(out),
                       [&](const std::string& name) { return name.ends_with(end); });
  return out;
}

/// The file of a folder that holds its model or the model's index.
fs::path model_file_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const fs::path& entry : entries_of(folder)) {
    names.push_back(entry.filename().string());
  }
  for (const char* usual : {"model.safetensors", "model.safetensors.index.json"}) {
    if (std::ranges::find(names, usual) != names.end()) {
      return folder / usual;
    }
  }
  const auto files = with_end(names, kSafetensorsSuffix);
  const auto indices = with_end(names, fmt::format("{}{}", kSafetensorsSuffix,  //
                                                   kSafetensorsIndexSuffix));
  const auto& wanted = indices.empty() ? files : indices;
  if (wanted.size() == 1) {
    return folder / wanted.front();
  }
  if (wanted.size() > 1) {
    fail(
        "{} holds no model.safetensors and no model.safetensors.index.json, but {}; name one of "
        "them, or download the index",
        folder.string(), quoted_texts(wanted));
  }
  for (const char* end : {".bin", ".pt", ".pth"}) {
    const auto pickles = with_end(names, end);
    if (!pickles.empty()) {
      fail(
          "{} holds {}, and only safetensors files are read, because a pickle runs code; in the "
          "folder, convert with: python3 -c \"import glob, torch, safetensors.torch as s; "
          "s.save_file({{k: v.contiguous().clone() for f in glob.glob('*{}') for k, v in "
          "torch.load(f, weights_only=True).items()}}, 'model.safetensors')\"",
          folder.string(), quoted_texts(pickles), end);
    }
  }
  fail("{} holds no safetensors file, but {}; name the folder or file of a model", folder.string(),
       names.empty() ? "is empty" : quoted_texts(names));
}

}  // namespace

std::map<std::string, std::string> parse_safetensors_index(std::string_view json,
                                                           std::string_view file) {
  IndexHandler handler(file);
  size_t place = 0;
  const bool whole = read_json_events(json, handler, place);
  check(whole, "{} is no JSON from byte {} on; {}", file, place, kSafetensorsFix);
  check(handler.found(), "{} has no \"weight_map\"; name the index of a model's safetensors files",
        file);
  return handler.take();
}

ShardedSafetensors::ShardedSafetensors(const fs::path& path) : path_(path) {
  std::error_code ignored;  // a path that cannot be examined is opened, which gives the cause
  if (fs::is_directory(path, ignored)) {
    path_ = model_file_in(path);
  }
  if (path_.extension() == ".json") {
    open_index();
    return;
  }
  shards_.emplace_back(path_);
  metadata_ = shards_.front().metadata();
  for (const SafetensorsTensor& tensor : shards_.front().tensors()) {
    names_.push_back(tensor.name);
    shard_of_.emplace(tensor.name, 0);
  }
}

void ShardedSafetensors::open_index() {
  const std::string index = path_.string();
  const auto listed =
      parse_safetensors_index(read_text(path_, "index", kMaxSafetensorsHeader), index);
  std::set<std::string> files;
  for (const auto& [tensor, file] : listed) {
    files.insert(file);
  }
  const fs::path folder = path_.parent_path();
  std::vector<std::string> missing;
  std::ranges::copy_if(files, std::back_inserter(missing),
                       [&](const std::string& file) { return !path_exists(folder / file); });
  if (!missing.empty()) {
    fail("{} names {} files, and {} of them are missing: {}; download them into its folder", index,
         files.size(), missing.size(), quoted_texts(missing));
  }
  for (const std::string& file : files) {
    const SafetensorsReader& reader = shards_.emplace_back(folder / file);
    metadata_.insert(reader.metadata().begin(), reader.metadata().end());
    for (const SafetensorsTensor& tensor : reader.tensors()) {
      const auto [place, fresh] = shard_of_.emplace(tensor.name, shards_.size() - 1);
      check(fresh,
            "{} and {} both have tensor {}; download index and files of one version of the model",
            shards_[place->second].path().string(), reader.path().string(),
            quoted_text(tensor.name));
      names_.push_back(tensor.name);
    }
  }
  for (const auto& [tensor, file] : listed) {
    const auto found = shard_of_.find(tensor);
    if (found == shard_of_.end() || shards_[found->second].path() != folder / file) {
      fail(
          "{} places tensor {} in {}, which has no such tensor; download index and files of one "
          "version of the model",
          index, quoted_text(tensor), file);
    }
  }
}

const SafetensorsReader& ShardedSafetensors::shard(const std::string& name) const {
  const auto found = shard_of_.find(name);
  if (found == shard_of_.end()) {
    fail("{} has no tensor {}; of its {} tensors the first are: {}", path_.string(),
         quoted_text(name), names_.size(), quoted_texts(names_));
  }
  return shards_[found->second];
}

}  // namespace espalier::io
