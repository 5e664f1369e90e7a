#include "io/safetensors/writer.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "io/files/folders.h"
#include "io/safetensors/header.h"
#include "io/safetensors/json_events.h"
#include "io/safetensors/numbers.h"
#include "io/safetensors/sharded.h"
#include "src/core/error.h"

namespace espalier::io {
namespace {

namespace fs = std::filesystem;

/// Checks the list; the result's places are not set.
std::vector<SafetensorsTensor> sized_tensors(const std::vector<SafetensorsEntry>& entries,
                                             const std::string& file) {
  std::vector<SafetensorsTensor> tensors;
  std::set<std::string_view> names;
  for (const SafetensorsEntry& entry : entries) {
    if (entry.name == kSafetensorsMetadata || !names.insert(entry.name).second) {
      fail("{}: two tensors would be named {}, or it is the format's own name; rename one", file,
           quoted_text(entry.name));
    }
    const bool sized = std::ranges::all_of(entry.shape, [](int64_t n) { return n >= 0; });
    const auto bytes = sized ? safetensors_bytes(entry.type, entry.shape) : std::nullopt;
    SafetensorsTensor tensor{.name = entry.name, .type = entry.type, .shape = entry.shape};
    if (!bytes) {
      fail("{}: tensor {} has the shape {} of {}, whose size is no number of bytes; correct it",
           file, quoted_text(entry.name), tensor.shape_text(), name_of(entry.type));
    }
    tensor.end = *bytes;
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

/// In the order of the list; a file ends before the tensor that it has no room for.
std::vector<SafetensorsHeader> split_into_files(std::vector<SafetensorsTensor> tensors,
                                                const SafetensorsOptions& options) {
  std::vector<SafetensorsHeader> files(1);
  uint64_t filled = 0;
  for (SafetensorsTensor& tensor : tensors) {
    if (!files.back().tensors.empty() && filled + tensor.end > options.max_shard_bytes) {
      files.emplace_back();
      filled = 0;
    }
    filled += tensor.end;
    files.back().tensors.push_back(std::move(tensor));
  }
  for (SafetensorsHeader& file : files) {
    file.metadata = options.metadata;
    std::ranges::sort(file.tensors, [](const auto& a, const auto& b) {
      return a.type != b.type ? a.type > b.type : a.name < b.name;
    });
    uint64_t end = 0;
    for (SafetensorsTensor& tensor : file.tensors) {
      tensor.begin = std::exchange(end, end + tensor.end);
      tensor.end = end;
    }
  }
  return files;
}

/// Whether `name` is STEM-00001-of-00003.safetensors, with any digits.
bool is_shard_name(std::string_view name, std::string_view stem) {
  if (!name.starts_with(stem)) {
    return false;
  }
  std::string rest(name.substr(stem.size()));
  std::ranges::replace_if(
      rest, [](char c) { return c >= '0' && c <= '9'; }, '0');
  return rest == fmt::format("-00000-of-00000{}", kSafetensorsSuffix);
}

/// Readers may prefer, or add, files of an earlier model of this name that are not replaced.
void check_leftovers(const fs::path& path, const std::vector<fs::path>& written) {
  const fs::path folder = path.has_parent_path() ? path.parent_path() : ".";
  const std::string file = path.filename().string();
  for (const fs::path& entry : entries_of(folder)) {
    const std::string name = entry.filename().string();
    const bool of_model = name == file ||
                          name == fmt::format("{}{}", file, kSafetensorsIndexSuffix) ||
                          is_shard_name(name, path.stem().string());
    const bool replaced =
        std::ranges::any_of(written, [&](const fs::path& to) { return to.filename() == name; });
    check(!of_model || replaced,
          "{} belongs to an earlier model with another number of files, which would be mixed with "
          "the new one; remove it, or name another output",
          entry.string());
  }
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(const fs::path& path,
                                     const std::vector<SafetensorsEntry>& tensors,
                                     const SafetensorsOptions& options) {
  check(path.extension() == kSafetensorsSuffix,
        "{} does not end in {}, by which programs know the format; name the output so",
        path.string(), kSafetensorsSuffix);
  const auto headers = split_into_files(sized_tensors(tensors, path.string()), options);
  const size_t count = headers.size();
  for (size_t i = 0; i < count; ++i) {
    paths_.push_back(count == 1 ? path
                                : path.parent_path() / fmt::format("{}-{:05}-of-{:05}{}",
                                                                   path.stem().string(), i + 1,
                                                                   count, kSafetensorsSuffix));
  }
  if (count > 1) {
    paths_.emplace_back(path.string() + std::string(kSafetensorsIndexSuffix));
  }
  check_leftovers(path, paths_);
  nlohmann::ordered_json weight_map = nlohmann::ordered_json::object();
  uint64_t total = 0;
  for (size_t i = 0; i < count; ++i) {
    const std::string head = safetensors_header_text(headers[i], paths_[i].string());
    files_.push_back(std::make_unique<AtomicFile>(paths_[i]));
    files_.back()->write(0, std::as_bytes(std::span(head)));
    for (const SafetensorsTensor& tensor : headers[i].tensors) {
      places_[tensor.name] = {.file = i,
                              .type = tensor.type,
                              .next = head.size() + tensor.begin,
                              .end = head.size() + tensor.end};
      total += tensor.bytes();
    }
  }
  if (count > 1) {
    for (const auto& [name, place] : places_) {
      weight_map[name] = paths_[place.file].filename().string();
    }
    const nlohmann::ordered_json index{{"metadata", {{"total_size", total}}},
                                       {"weight_map", std::move(weight_map)}};
    constexpr int kIndent = 2;
    index_ = index.dump(kIndent) + "\n";
  }
}

SafetensorsWriter::Place& SafetensorsWriter::place(const std::string& name, uint64_t bytes) {
  const auto found = places_.find(name);
  require(found != places_.end(), "a tensor that is written is in the list", name);
  Place& place = found->second;
  require(bytes <= place.end - place.next, "a tensor gets no more values than its shape has", name);
  return place;
}

void SafetensorsWriter::write(const std::string& name, const Tensor& values) {
  require(values.contiguous() && !values.on_device, "values are contiguous on the host", name);
  const auto count = values.count();
  Place& to = place(name, 0);
  require(is_convertible(to.type), "the type has values", name, name_of(to.type));
  const uint64_t width = bits_of(to.type) / 8;
  place(name, static_cast<uint64_t>(count) * width);
  if (same_bits(to.type) == values.dtype) {
    write_bytes(name, {static_cast<const std::byte*>(values.data), values.bytes()});
    return;
  }
  const int64_t most = kSafetensorsPiece / static_cast<int64_t>(width);
  std::vector<std::byte> bytes(static_cast<size_t>(std::min(most, count)) * width);
  const Tensor flat = values.reshaped(Shape{count});
  for (int64_t done = 0; done < count; done += most) {
    const int64_t part = std::min(most, count - done);
    const auto piece = std::span(bytes).first(static_cast<size_t>(part) * width);
    encode_numbers(flat.elements(done, part), to.type, piece);
    write_bytes(name, piece);
  }
}

void SafetensorsWriter::write(const std::string& name, std::span<const float> values) {
  // Only read: a tensor is a view of memory that may be written.
  auto* data = const_cast<float*>(values.data());
  write(name, Tensor(data, DType::fp32, Shape{std::ssize(values)}));
}

void SafetensorsWriter::write_bytes(const std::string& name, std::span<const std::byte> bytes) {
  Place& to = place(name, bytes.size());
  files_[to.file]->write(to.next, bytes);
  to.next += bytes.size();
}

void SafetensorsWriter::commit() {
  for (const auto& [name, place] : places_) {
    require(place.next == place.end, "all elements of a tensor are written", name);
  }
  if (!index_.empty()) {
    files_.push_back(std::make_unique<AtomicFile>(paths_.back()));
    files_.back()->append(index_);
  }
  for (const auto& file : files_) {
    file->complete();
  }
  if (!index_.empty()) {
    remove_file(paths_.back());
    sync_folder(paths_.back().has_parent_path() ? paths_.back().parent_path() : ".");
  }
  for (const auto& file : files_) {
    file->commit();
  }
}

}  // namespace espalier::io
