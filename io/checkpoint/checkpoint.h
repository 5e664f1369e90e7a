#pragma once
// Checkpoints: one HDF5 file with every parameter by name (docs/formats.md), whatever the grid of
// ranks.
//
//   /meta                                  attributes: format, version, step, config, vocabulary, …
//   /params/NAME                           attributes: shape, encoding, nnz, dtype
//   /params/NAME/{values,index}            kept values (row-major) and encoded positions
//   /optim/NAME/{master,moment1,moment2}   one value a kept element
//   /optim/NAME/feedback.R                 likewise: error feedback of replica R
//   /optim/NAME/mask_history               likewise: masks of method early-bird, as bits
//
// Each dataset, and each group with text attributes, has a `checksum` (xxHash64, 16 hex digits);
// HDF5 checksums the rest of its metadata. Both classes stream: one tensor at a time, no copy of
// the data. The writer writes `PATH.tmp-PID-HOST`; `commit` flushes, fsyncs and renames, so that
// PATH is the old file or the new one at any moment. HDF5 is not thread-safe: all calls take one
// process-wide lock.
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/files/raw_file.h"
#include "io/hdf5/hdf5.h"
#include "io/hdf5/reader.h"
#include "src/core/tensor.h"

namespace espalier::io {

/// Version 2: attributes are scalars and UTF-8 texts of variable length, groups have a checksum,
/// data_cursor and rng are gone. Version 1 is read as well.
inline constexpr int kCheckpointVersion = 2;
/// Masks of earlier steps (pruning/early_bird.h): bits of one number for each kept element.
inline constexpr std::string_view kMaskHistoryKind = "mask_history";

struct CheckpointMeta {
  int64_t step = 0;      ///< steps done
  std::string config{};  ///< resolved, TOML
  std::map<std::string, std::string>
      extra{};  ///< more attributes, text without NUL (e.g. vocabulary)
};

/// The texts of `meta.extra` that belong to the model, not to the run: kTokenizerText, and those
/// that begin with kHubTexts. A checkpoint that is made from another gets them, too.
std::map<std::string, std::string> texts_of_model(const CheckpointMeta& meta);
/// The tokenizer.json of the model.
inline constexpr std::string_view kTokenizerText = "tokenizer";
/// Files of the Hugging Face directory that the model comes from (src/hub): "hub.config.json".
inline constexpr std::string_view kHubTexts = "hub.";

/// One parameter to write. `index` is empty and nnz = shape.count() when encoding =
/// "full".
struct ParameterRecord {
  std::string name{};  ///< no '/'
  Shape shape{};       ///< of the dense parameter
  std::string encoding = "full";
  int64_t nnz = 0;
  Tensor values{};  ///< fp32, bf16 or fp16, nnz elements, contiguous
  std::span<const uint8_t> index{};
};

/// One parameter whose bytes others write (ReservedDatasetWriter).
struct ReservedParameter {
  std::string name{};
  Shape shape{};
  std::string encoding = "full";
  int64_t nnz = 0;
  DType dtype = DType::fp32;
  int64_t index_bytes = 0;
  std::vector<std::string> states{};  ///< kinds of optimizer state, fp32, of nnz elements
};

struct ReservedDataset {
  std::string path{};
  uint64_t offset = 0;  ///< in the temporary file
};

struct StoredParameter {
  std::string name{};
  Shape shape{};
  std::string encoding{};
  int64_t nnz = 0;
  DType dtype = DType::fp32;
  size_t value_bytes = 0;
  size_t index_bytes = 0;
  std::vector<std::string> optimizer{};  ///< kinds present under /optim/NAME
};

class CheckpointWriter {
 public:
  /// Makes missing folders of `path`. Any later error throws Failure with the cause ("No space left
  /// on device") and leaves PATH as it was.
  explicit CheckpointWriter(const std::filesystem::path& path);

  void write_meta(const CheckpointMeta& meta);
  void write_parameter(const ParameterRecord& record);
  /// `kind`: "master", "moment1", "moment2", "pruning1", "pruning2" (of pruning methods that learn
  /// from every step), kMaskHistoryKind, or "feedback.R" of replica R; one element for each kept
  /// one.
  void write_optimizer(const std::string& name, const std::string& kind, const Tensor& tensor);
  /// Makes the datasets of a parameter: values, index unless the encoding is "full", states.
  std::vector<ReservedDataset> reserve(const ReservedParameter& layout);
  /// Of a reserved dataset; needed once for each.
  void set_checksum(const ReservedDataset& dataset, uint64_t checksum);
  /// Where CheckpointParts write.
  const std::filesystem::path& temporary() const { return file_.temporary(); }
  /// To the disk, still under the temporary name.
  void complete();
  /// Completes unless that is done, and renames; without it, no file stays.
  void commit();

 private:
  hdf5::File file_;
};

/// xxHash64 with seed 0, as in the attribute `checksum`.
uint64_t checkpoint_checksum(std::span<const std::byte> bytes);
/// The same. Calls `look` on consecutive pieces of 64 KiB while the cache holds them.
uint64_t checkpoint_checksum(std::span<const std::byte> bytes,
                             const std::function<void(std::span<const std::byte>)>& look);

/// The same checksum, of bytes that come in pieces.
class CheckpointChecksum {
 public:
  CheckpointChecksum();
  ~CheckpointChecksum();
  CheckpointChecksum(const CheckpointChecksum&) = delete;
  CheckpointChecksum& operator=(const CheckpointChecksum&) = delete;
  void add(std::span<const std::byte> bytes);
  uint64_t value() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Writes reserved datasets; any process that sees the file can.
class ReservedDatasetWriter {
 public:
  /// Throws Failure if the file cannot be opened.
  explicit ReservedDatasetWriter(const std::filesystem::path& temporary)
      : path_(temporary), file_(RawFile::open_to_write(temporary)) {}
  void write(uint64_t offset, std::span<const std::byte> bytes) {
    file_.write(offset, bytes.size(), bytes.data());
  }
  /// To the disk. Throws Failure with the cause of the first write that failed.
  void finish();

 private:
  std::filesystem::path path_;
  RawFile file_;
};

/// Whether an HDF5 file is laid out as a checkpoint (else it may hold plain arrays). Throws Failure
/// when it is missing or not HDF5.
bool is_checkpoint(const std::filesystem::path& path);

/// One of `count` parts of a checkpoint, of about equal bytes: consecutive datasets, each in one
/// part.
struct FilePart {
  int index = 0;
  int count = 1;
};

class CheckpointReader {
 public:
  /// Throws Failure when `path` is missing, not HDF5, not a checkpoint, truncated or of a newer
  /// version.
  explicit CheckpointReader(std::filesystem::path path);

  const std::filesystem::path& path() const { return path_; }
  CheckpointMeta meta() const;
  /// In the order they were written.
  const std::vector<std::string>& names() const { return names_; }
  bool has(const std::string& name) const;
  /// Checks that shape, nnz and dataset sizes agree. `encoding` may be any text.
  StoredParameter info(const std::string& name) const;
  /// `out` has nnz elements, fp32, bf16 or fp16 (converted when the file has another). Verifies the
  /// checksum.
  void values(const std::string& name, const Tensor& out) const;
  /// Kept values [first, ...) as bytes of the file's type. Their checksum is not verified:
  /// `verify_values` compares it with that of all values, in order.
  void value_bytes(const std::string& name, uint64_t first, std::span<std::byte> out) const;
  /// Throws Failure that the file is damaged unless the values have this checksum.
  void verify_values(const std::string& name, uint64_t checksum) const;
  /// The encoded bytes, checksum verified; empty for "full".
  std::vector<uint8_t> index(const std::string& name) const;
  bool has_optimizer(const std::string& name, const std::string& kind = "moment1") const;
  void optimizer(const std::string& name, const std::string& kind, const Tensor& out) const;

  struct Verified {
    std::string dataset;
    size_t bytes = 0;
    bool ok = false;
    std::string error;        ///< empty when ok
    bool unreadable = false;  ///< is_unreadable
    bool finite = true;       ///< no element is a NaN or an infinity
  };
  /// Reads every dataset of `part`; a damaged one is reported, not thrown.
  std::vector<Verified> verify_all(FilePart part = {}) const;

 private:
  /// Throws Failure that the file is damaged unless `ok`; `what` is the fault.
  void expect(bool ok, std::string_view what) const;
  void expect_attribute(const std::string& group, const std::string& name) const;
  int64_t number(const std::string& group, const std::string& name) const;
  std::string text(const std::string& at, const std::string& name) const;
  std::map<std::string, std::string> texts(const std::string& group,
                                           std::span<const std::string> names) const;
  void check_format();
  StoredParameter read_info(const std::string& name) const;
  int part_at(uint64_t before, int count) const;
  hdf5::Dataset dataset(const std::string& at) const;
  Shape shape(const std::string& group) const;
  void expect_checksum(const std::string& at, uint64_t checksum) const;
  void verified_read(const std::string& at, hdf5::Type type, std::span<std::byte> out) const;
  void read_tensor(const std::string& at, const Tensor& out) const;

  std::filesystem::path path_;
  hdf5::Reader file_;
  int64_t version_ = 0;
  std::vector<std::string> names_;
  std::set<std::string, std::less<>> known_;                ///< `names_`
  mutable std::map<std::string, StoredParameter> infos_{};  ///< of `info`, by name
};

/// Version of the library behind the files, for `espalier info`.
std::string hdf5_library();

/// "step-000100.h5"
std::string checkpoint_name(int64_t step);
/// The step in a name made by checkpoint_name; empty for any other name.
std::optional<int64_t> checkpoint_step(const std::filesystem::path& path);
/// Checkpoints in `folder`, oldest step first; empty when the folder does not exist.
std::vector<std::filesystem::path> checkpoints_in(const std::filesystem::path& folder);
/// The checkpoint that a user names by `path`: of a run's directory, or of a folder of checkpoints,
/// the one of the highest step; likewise of FOLDER/last.h5 if there is no such file. It is not
/// verified. Any other path stays as it is. Throws Failure for a folder without checkpoints.
std::filesystem::path checkpoint_named(const std::filesystem::path& path);
/// Whether a reader failed because the disk could not read a block (EIO): the file is damaged, or
/// the disk failed once.
bool is_unreadable(const Failure& failure);
/// Why a checkpoint cannot be used.
struct Damage {
  std::string why{};        ///< empty: it is intact
  bool unreadable = false;  ///< is_unreadable
};
/// Reads the structure of a checkpoint and the datasets of `part`. Throws Failure for causes
/// outside its content (permissions, too many open files).
Damage damage_of(const std::filesystem::path& path, FilePart part = {});
/// Reads a checkpoint that was just written, from the disk where the system allows it, before
/// earlier ones are removed. If it is damaged, renames it to PATH.damaged and throws Failure.
void verify_written_checkpoint(const std::filesystem::path& path);
/// The intact checkpoint with the highest step, and why later ones were skipped.
struct NewestIntact {
  std::optional<std::filesystem::path> file;
  std::vector<std::string> skipped;  ///< a sentence for each damaged file
  bool unreadable = false;           ///< one of them only could not be read: it may be intact

  /// Files are added from the last step on, until one is intact.
  void add(const std::filesystem::path& path, const Damage& damage);
};
/// Reads whole files.
NewestIntact newest_intact_checkpoint(const std::filesystem::path& folder);
/// Moves checkpoints after `step` into FOLDER/set-aside-N, with the first unused N: they belong to
/// a branch of the run that is given up. Returns that folder; empty if there are none. The moves
/// are on the disk when the call returns.
std::filesystem::path set_aside_checkpoints(const std::filesystem::path& folder, int64_t step);
/// Removes all but the `keep` latest checkpoints, and temporary files of this machine's processes
/// that have ended.
void remove_old_checkpoints(const std::filesystem::path& folder, int64_t keep);

}  // namespace espalier::io
