#include "tests/support/recorded_files.h"

#include <fcntl.h>
#include <xxhash.h>

#include <algorithm>

#include "src/core/error.h"

namespace espalier::testing {

namespace fs = std::filesystem;
using Kind = FileOperation::Kind;

RecordedFiles::RecordedFiles(fs::path root) : root_(std::move(root)), names_(1) {}

int RecordedFiles::add_node() {
  names_.emplace_back();
  return static_cast<int>(names_.size()) - 1;
}

RecordedFiles::Place RecordedFiles::place_of(const fs::path& path) const {
  const fs::path relative = fs::absolute(path).lexically_normal().lexically_relative(root_);
  require(!relative.empty() && *relative.begin() != "..", "files are below the root",
          path.string());
  Place place{.folder = 0, .name = {}};
  for (const fs::path& part : relative) {
    if (part == "." || part.empty()) {
      continue;
    }
    if (!place.name.empty()) {
      place.folder = names_[static_cast<size_t>(place.folder)].at(place.name);
    }
    place.name = part.string();
  }
  return place;
}

int RecordedFiles::open(const fs::path& path, int flags) {
  const int file = FileSystem::open(path, flags);
  if (file < 0 || (flags & (O_CREAT | O_RDWR | O_DIRECTORY)) == 0) {
    return file;
  }
  const Place place = place_of(path);
  auto& entries = names_[static_cast<size_t>(place.folder)];
  if (place.name.empty()) {
    open_[file] = 0;
  } else if (const auto found = entries.find(place.name); found != entries.end()) {
    open_[file] = found->second;
  } else {
    const int node = add_node();
    names_[static_cast<size_t>(place.folder)][place.name] = open_[file] = node;
    operations_.push_back(
        {.kind = Kind::create, .node = node, .folder = place.folder, .name = place.name});
  }
  return file;
}

ssize_t RecordedFiles::write(int file, const void* data, size_t bytes, uint64_t offset) {
  operations_.push_back({.kind = Kind::write,
                         .node = open_.at(file),
                         .offset = offset,
                         .data = std::string(static_cast<const char*>(data), bytes)});
  return FileSystem::write(file, data, bytes, offset);
}

int RecordedFiles::resize(int file, uint64_t size) {
  operations_.push_back({.kind = Kind::resize, .node = open_.at(file), .offset = size});
  return FileSystem::resize(file, size);
}

int RecordedFiles::sync(int file) {
  operations_.push_back({.kind = Kind::sync, .node = open_.at(file)});
  return 0;
}

int RecordedFiles::close(int file) {
  open_.erase(file);
  return FileSystem::close(file);
}

int RecordedFiles::rename(const fs::path& from, const fs::path& to) {
  const int result = FileSystem::rename(from, to);
  if (result == 0) {
    const Place source = place_of(from);
    const Place target = place_of(to);
    auto& old = names_[static_cast<size_t>(source.folder)];
    const int node = old.at(source.name);
    old.erase(source.name);
    names_[static_cast<size_t>(target.folder)][target.name] = node;
    operations_.push_back({.kind = Kind::rename,
                           .node = node,
                           .folder = source.folder,
                           .to_folder = target.folder,
                           .name = source.name,
                           .to_name = target.name});
  }
  return result;
}

int RecordedFiles::unlink(const fs::path& path) {
  const int result = FileSystem::unlink(path);
  if (result == 0) {
    const Place place = place_of(path);
    auto& entries = names_[static_cast<size_t>(place.folder)];
    operations_.push_back({.kind = Kind::unlink,
                           .node = entries.at(place.name),
                           .folder = place.folder,
                           .name = place.name});
    entries.erase(place.name);
  }
  return result;
}

int RecordedFiles::make_folder(const fs::path& path) {
  const int result = FileSystem::make_folder(path);
  if (result == 0) {
    const Place place = place_of(path);
    const int node = add_node();
    names_[static_cast<size_t>(place.folder)][place.name] = node;
    operations_.push_back(
        {.kind = Kind::make_folder, .node = node, .folder = place.folder, .name = place.name});
  }
  return result;
}

CrashStates::CrashStates(std::vector<FileOperation> operations, size_t most, uint64_t seed)
    : operations_(std::move(operations)), most_(most), random_(seed) {
  int last = 0;
  for (const FileOperation& operation : operations_) {
    last = std::max(last, operation.node);
  }
  contents_.resize(static_cast<size_t>(last) + 1);
}

void CrashStates::issue(const FileOperation& operation) {
  Content& content = contents_[static_cast<size_t>(operation.node)];
  switch (operation.kind) {
    case Kind::write:
    case Kind::resize:
      content.pending.push_back(next_);
      break;
    case Kind::sync: {
      const std::vector<bool> all(content.pending.size(), true);
      content.durable = std::make_shared<std::string>(applied(content, all, false));
      content.pending.clear();
      for (NameChange& change : changes_) {
        const FileOperation& changed = operations_[change.operation];
        change.synced_from |= changed.folder == operation.node;
        change.synced_to |= changed.to_folder == operation.node;
      }
      break;
    }
    case Kind::none:
      break;
    default:
      changes_.push_back({.operation = next_});
  }
}

bool CrashStates::is_durable(const NameChange& change) const {
  const bool moves = operations_[change.operation].kind == Kind::rename;
  return change.synced_from && (!moves || change.synced_to);
}

/// All subsets of a few elements. Of many: the prefixes, all but one, only one, and random ones.
std::vector<std::vector<bool>> CrashStates::subsets_of(size_t count) {
  std::vector<std::vector<bool>> subsets;
  constexpr size_t kFew = 5;
  if (count <= kFew) {
    for (size_t bits = 0; bits < size_t{1} << count; ++bits) {
      auto& subset = subsets.emplace_back(count);
      for (size_t i = 0; i < count; ++i) {
        subset[i] = (bits >> i & 1U) != 0;
      }
    }
    return subsets;
  }
  for (size_t i = 0; i <= count; ++i) {
    auto& prefix = subsets.emplace_back(count, false);
    std::fill_n(prefix.begin(), i, true);
  }
  for (size_t i = 0; i < count; ++i) {
    subsets.emplace_back(count, true)[i] = false;
    subsets.emplace_back(count, false)[i] = true;
    auto& some = subsets.emplace_back(count);
    std::generate(some.begin(), some.end(), [&] { return (random_() & 1U) != 0; });
  }
  return subsets;
}

CrashStates::Names CrashStates::names_with(const std::vector<bool>& chosen) const {
  Names names(contents_.size());
  size_t pending = 0;
  for (const NameChange& change : changes_) {
    if (!is_durable(change) && !chosen[pending++]) {
      continue;
    }
    const FileOperation& operation = operations_[change.operation];
    auto& entries = names[static_cast<size_t>(operation.folder)];
    switch (operation.kind) {
      case Kind::rename:
        entries.erase(operation.name);
        names[static_cast<size_t>(operation.to_folder)][operation.to_name] = operation.node;
        break;
      case Kind::unlink:
        entries.erase(operation.name);
        break;
      default:
        entries[operation.name] = operation.node;
    }
  }
  return names;
}

/// The content with the chosen operations; `torn`: with the first half of the last write chosen.
std::string CrashStates::applied(const Content& content, const std::vector<bool>& chosen,
                                 bool torn) const {
  std::string out = *content.durable;
  const size_t last = static_cast<size_t>(
      chosen.rend() - std::find(chosen.rbegin(), chosen.rend(), true));  // one past it
  for (size_t i = 0; i < chosen.size(); ++i) {
    if (!chosen[i]) {
      continue;
    }
    const FileOperation& operation = operations_[content.pending[i]];
    if (operation.kind == Kind::resize) {
      out.resize(operation.offset, '\0');
      continue;
    }
    const bool half = torn && i + 1 == last;
    const size_t bytes = half ? (operation.data.size() + 1) / 2 : operation.data.size();
    out.resize(std::max<size_t>(out.size(), operation.offset + bytes), '\0');
    std::copy_n(operation.data.begin(), bytes,
                out.begin() + static_cast<std::ptrdiff_t>(operation.offset));
  }
  return out;
}

CrashStates::Contents CrashStates::variants_of(const Content& content) {
  const size_t count = content.pending.size();
  std::vector<std::string> texts;
  for (const auto& subset : subsets_of(count)) {
    texts.push_back(applied(content, subset, false));
    texts.push_back(applied(content, subset, true));
  }
  const std::string all = applied(content, std::vector<bool>(count, true), false);
  std::string zeros = *content.durable;
  zeros.resize(all.size(), '\0');
  texts.push_back(std::move(zeros));
  std::ranges::sort(texts);
  const auto [first, last] = std::ranges::unique(texts);
  texts.erase(first, last);
  // The extremes first: sampling keeps them.
  Contents variants{std::make_shared<std::string>(all), content.durable};
  for (std::string& text : texts) {
    if (text != all && text != *content.durable) {
      variants.push_back(std::make_shared<std::string>(std::move(text)));
    }
  }
  return variants;
}

void CrashStates::visit_contents(const Names& names, uint64_t context,
                                 const std::function<void(const FileTree&)>& visit) {
  struct Varied {
    std::string path;
    Contents variants;
  };
  FileTree tree;
  std::vector<Varied> varied;
  size_t product = 1;
  const std::function<void(int, const std::string&)> collect = [&](int folder,
                                                                   const std::string& at) {
    for (const auto& [name, node] : names[static_cast<size_t>(folder)]) {
      const std::string path = at + name;
      const Content& content = contents_[static_cast<size_t>(node)];
      const bool is_folder =
          std::ranges::any_of(changes_, [&, number = node](const NameChange& change) {
            const FileOperation& operation = operations_[change.operation];
            return operation.kind == Kind::make_folder && operation.node == number;
          });
      if (is_folder) {
        tree[path + "/"] = nullptr;
        collect(node, path + "/");
      } else if (name.find(".tmp-") != name.npos) {
        tree[path] = std::make_shared<std::string>("of no interest");
      } else if (content.pending.empty()) {
        tree[path] = content.durable;
      } else {
        varied.push_back({path, variants_of(content)});
        product *= varied.back().variants.size();
      }
    }
  };
  collect(0, "");
  for (size_t i = 0; i < std::min(product, most_); ++i) {
    // All combinations, or everything, nothing, and random ones.
    size_t rest = product <= most_ ? i : i < 2 ? i : random_() % product;
    for (const Varied& file : varied) {
      const size_t count = file.variants.size();
      tree[file.path] = file.variants[product > most_ && i < 2 ? i : rest % count];
      rest /= count;
    }
    XXH64_state_t* hash = XXH64_createState();
    XXH64_reset(hash, context);
    for (const auto& [path, content] : tree) {
      XXH64_update(hash, path.data(), path.size() + 1);
      const uint64_t digest =
          content == nullptr ? 0 : XXH64(content->data(), content->size(), content->size());
      XXH64_update(hash, &digest, sizeof(digest));
    }
    const bool is_new = seen_.insert(XXH64_digest(hash)).second;
    XXH64_freeState(hash);
    if (is_new) {
      visit(tree);
    }
  }
}

void CrashStates::advance(uint64_t context, const std::function<void(const FileTree&)>& visit) {
  issue(operations_[next_]);
  ++next_;
  const auto pending = static_cast<size_t>(
      std::ranges::count_if(changes_, [&](const auto& change) { return !is_durable(change); }));
  auto subsets = subsets_of(pending);
  if (subsets.size() > most_) {
    // Nothing and everything stay.
    std::iter_swap(subsets.begin() + 1,
                   std::ranges::find(subsets, std::vector<bool>(pending, true)));
    std::shuffle(subsets.begin() + 2, subsets.end(), random_);
    subsets.resize(most_);
  }
  for (const auto& chosen : subsets) {
    visit_contents(names_with(chosen), context, visit);
  }
}

}  // namespace espalier::testing
