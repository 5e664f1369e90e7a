#pragma once
// Files of unsigned little-endian numbers of 1, 2 or 4 bytes, one after the other, as one sequence.
// Internal to io; datasets (tokens.h) cut it into splits and give it a vocabulary.
#include <span>
#include <string>
#include <vector>

#include "io/config/config.h"
#include "io/files/mapped_file.h"

namespace espalier::io {

class TokenFiles {
 public:
  /// `data.kind` and `data.token_type` say what the files hold.
  TokenFiles(const DataConfig& data, std::span<const std::string> paths);

  int64_t size() const { return size_; }
  /// A number above 2^31 - 1 comes out negative.
  void read(int64_t offset, std::span<int32_t> out) const;
  /// Sets seen[b] for every byte value b in the files.
  void mark_bytes(std::span<bool, 256> seen) const;
  int64_t largest() const;
  /// "FILE, token 17"
  std::string place(int64_t offset) const;

 private:
  struct Segment {
    MappedFile file;
    size_t header = 0;  ///< bytes before the first token
    int width = 1;      ///< bytes a token
    int64_t begin = 0;  ///< of the sequence
    int64_t end = 0;
  };
  const Segment& segment_at(int64_t offset) const;
  std::vector<Segment> segments_;
  int64_t size_ = 0;
};

}  // namespace espalier::io
