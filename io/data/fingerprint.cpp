#include "io/data/fingerprint.h"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <memory>

#include "io/files/mapped_file.h"
#include "src/core/error.h"

namespace espalier::io {
namespace {

constexpr uint64_t kWhole = uint64_t{64} << 20;
constexpr uint64_t kBlock = uint64_t{64} << 10;
constexpr uint64_t kBlocks = 64;

class Hash {
 public:
  Hash() : state_(XXH64_createState(), &XXH64_freeState) { XXH64_reset(state_.get(), 0); }

  void add(std::span<const uint8_t> bytes) {
    XXH64_update(state_.get(), bytes.data(), bytes.size());
  }
  /// Eight bytes, the lowest first.
  void add(uint64_t number) {
    std::array<uint8_t, 8> bytes{};
    for (size_t i = 0; i < bytes.size(); ++i) {
      bytes.at(i) = static_cast<uint8_t>(number >> (8 * i));
    }
    add(bytes);
  }
  uint64_t value() const { return XXH64_digest(state_.get()); }

 private:
  std::unique_ptr<XXH64_state_t, decltype(&XXH64_freeState)> state_;
};

/// Bytes [begin, begin + count) of all files in a row.
void add_range(Hash& hash, std::span<const MappedFile> files, uint64_t begin, uint64_t count) {
  for (const MappedFile& file : files) {
    const std::span<const uint8_t> bytes = file.bytes();
    if (begin < bytes.size()) {
      const uint64_t part = std::min<uint64_t>(count, bytes.size() - begin);
      hash.add(bytes.subspan(begin, part));
      begin += part;
      count -= part;
    }
    begin -= bytes.size();
    if (count == 0) {
      return;
    }
  }
}

std::string text_of(uint64_t bytes, const Hash& hash) {
  return fmt::format("{} bytes, xxHash64 {:016x}", bytes, hash.value());
}

}  // namespace

std::string fingerprint(std::span<const std::string> files, std::string_view what) {
  if (files.empty()) {
    return "";
  }
  std::vector<MappedFile> mapped;
  uint64_t total = 0;
  for (const std::string& file : files) {
    mapped.emplace_back(file, what);
    total += mapped.back().bytes().size();
  }
  Hash hash;
  if (total <= kWhole) {
    add_range(hash, mapped, 0, total);
  } else {
    for (uint64_t block = 0; block < kBlocks; ++block) {
      add_range(hash, mapped, (total - kBlock) * block / (kBlocks - 1), kBlock);
    }
  }
  if (files.size() > 1) {
    for (const MappedFile& file : mapped) {
      hash.add(file.bytes().size());
    }
  }
  return text_of(total, hash);
}

std::string fingerprint_of(std::string_view content) {
  Hash hash;
  hash.add({reinterpret_cast<const uint8_t*>(content.data()), content.size()});
  return text_of(content.size(), hash);
}

FileStamps::FileStamps(const std::vector<std::string>& files) {
  for (const std::string& file : files) {
    if (struct stat now{}; ::stat(file.c_str(), &now) == 0) {
      found_.emplace_back(file, now);
    }
  }
}

std::string FileStamps::changed() const {
  for (const auto& [file, then] : found_) {
    struct stat now {};
    const bool same_file =
        ::stat(file.c_str(), &now) == 0 && now.st_dev == then.st_dev && now.st_ino == then.st_ino;
    if (same_file && (now.st_size != then.st_size || now.st_mtim.tv_sec != then.st_mtim.tv_sec ||
                      now.st_mtim.tv_nsec != then.st_mtim.tv_nsec)) {
      return file;
    }
  }
  return "";
}

}  // namespace espalier::io
