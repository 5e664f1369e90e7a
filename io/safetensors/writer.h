#pragma once
// Writes a model as one safetensors file, or as several (shards) with an index.
//
//   SafetensorsWriter writer("DIR/model.safetensors", tensors);   name, type and shape of each
//   writer.write(name, values);       the next elements of a tensor; tensors in any order
//   writer.commit();
//
// The bytes of a file are those that the reference implementation writes: tensors of wider types
// first, then by name. Memory holds one piece of 256 KiB, whatever the sizes of tensors.
//
// Files: those of a tensor list that does not fit `max_shard_bytes` are model-00001-of-00003.
// safetensors …, filled in the order of the list, and model.safetensors.index.json (sharded.h).
// All are written under temporary names and flushed; `commit` renames them. An old index is removed
// before and the new one comes last: a crash leaves the old model, files without an index, or the
// new model, never an index of a mixture. Without `commit` no file stays.
#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "io/files/raw_file.h"
#include "io/safetensors/type.h"
#include "src/core/tensor.h"

namespace espalier::io {

/// A tensor to write.
struct SafetensorsEntry {
  std::string name{};  ///< UTF-8
  SafetensorsType type = SafetensorsType::f32;
  std::vector<int64_t> shape{};
};

struct SafetensorsOptions {
  /// Of the tensors in a file; a larger tensor gets a file of its own.
  uint64_t max_shard_bytes = 5'000'000'000;
  /// Of each file. The library "transformers" requires `format`.
  std::map<std::string, std::string> metadata{{"format", "pt"}};
};

class SafetensorsWriter {
 public:
  /// Makes missing folders. Throws Failure if two tensors have one name, a shape has no size, the
  /// path does not end in ".safetensors", or the folder holds files of a model with this name and
  /// another number of files, which readers would mix with the new ones.
  SafetensorsWriter(const std::filesystem::path& path, const std::vector<SafetensorsEntry>& tensors,
                    const SafetensorsOptions& options = {});

  /// The next elements of a tensor of type F64, F32, F16 or BF16, rounded to it. `values`: fp32,
  /// bf16 or fp16, contiguous, on the host. Throws Failure with the cause if the disk fails.
  void write(const std::string& name, const Tensor& values);
  void write(const std::string& name, std::span<const float> values);
  /// The next bytes of a tensor of any type.
  void write_bytes(const std::string& name, std::span<const std::byte> bytes);
  /// Throws Bug unless all tensors are written.
  void commit();

  /// Those that `commit` makes; the index, if there is one, comes last.
  const std::vector<std::filesystem::path>& files() const { return paths_; }

 private:
  struct Place {
    size_t file = 0;  ///< index of files_
    SafetensorsType type = SafetensorsType::f32;
    uint64_t next = 0;  ///< in the file, of the next byte
    uint64_t end = 0;
  };
  Place& place(const std::string& name, uint64_t bytes);

  std::vector<std::filesystem::path> paths_;
  std::vector<std::unique_ptr<AtomicFile>> files_;
  std::map<std::string, Place, std::less<>> places_;
  std::string index_;  ///< text; empty: one file
};

}  // namespace espalier::io
