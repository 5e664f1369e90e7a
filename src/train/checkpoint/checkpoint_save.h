#pragma once
// Saves a stage to a checkpoint. All ranks write one file, each the parameters that it holds;
// replicas share the work. A save has three parts:
//
//   prepare  constructor, collective   Indices are encoded. Rank 0 makes the file with all
//                                      datasets; every rank learns their places, and copies its
//                                      arrays (or writes them at once: `copies`).
//   write    tasks, each rank          Checksums, writes, fsync. No communication. A number that is
//                                      not finite is an error: such a file would replace good ones.
//   commit   tasks, rank 0             Sets the checksums of all ranks, renames the file, reads it
//                                      back, removes older ones. No communication.
//
//   CheckpointSave save(path, store, progress, comm, options, background);
//   while (!save.advance()) { … a step of training … }
//
// The tasks run in a Background, beside the training. `advance` is collective: the ranks agree
// whether a part has ended everywhere, and begin the next one or throw the failure of any rank on
// all. The file has the same bits however its parts are run.
//
// A rank that does not see rank 0's disk sends its arrays to rank 0 while the save is prepared: no
// rank copies then. A slow disk causes no timeout, and a full disk is an error on every rank.
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "io/checkpoint/checkpoint.h"
#include "parallel/transport/communicator.h"
#include "pruning/early_bird.h"
#include "sparse/index/file_index.h"
#include "sparse/store/store.h"
#include "src/train/checkpoint/background.h"
#include "src/train/checkpoint/snapshot.h"

namespace espalier::train {

struct SaveOptions {
  Owners owners{};
  /// Masks of earlier steps of the store's parameters (Pruner::history); null: none.
  const pruning::MaskHistory* history = nullptr;
  /// Whether arrays are copied, so that the store may change before they are written. Memory: this
  /// rank's share of the file; else one parameter at a time. All ranks must wish it.
  bool copies = false;
  /// Called on rank 0, in any thread: right before the file appears (nothing appears if it throws),
  /// and after it has been read back.
  std::function<void()> before_commit{}, after_commit{};
};

class CheckpointSave {
 public:
  /// Collective. `store` and `options` are not used after it. The other references must outlive the
  /// save; `background` has no other tasks.
  CheckpointSave(const std::filesystem::path& path, sparse::Store& store,
                 const RunProgress& progress, parallel::Communicator& comm,
                 const SaveOptions& options, Background& background);
  /// Without the end of `advance`, no file stays.
  ~CheckpointSave() = default;
  CheckpointSave(const CheckpointSave&) = delete;
  CheckpointSave& operator=(const CheckpointSave&) = delete;

  /// Collective. True: the file is at its path, and has been read back. Does not wait for disks,
  /// unless the background has no thread: its tasks then run here.
  bool advance() { return advance(!background_.has_thread()); }
  /// Collective. Waits for the end.
  void finish();

 private:
  class Preparation;
  /// The bytes of an array; `owner` keeps them alive (null: they are the store's).
  struct Array {
    std::span<const std::byte> bytes;
    std::shared_ptr<const void> owner;
    DType dtype = DType::uint8;
    std::string name{};  ///< of parameter and array, for messages
  };
  /// Of an array of this rank. (Their order decides where HDF5 places them in the file.)
  struct Checksum {
    int64_t dataset = 0;  ///< number in the file
    uint64_t checksum = 0;
  };

  bool advance(bool wait);
  bool first() const { return comm_.rank() == 0; }
  template <class Action>
  void attempt(const Action& action);
  void run_tasks();
  /// Throws Failure if a number is not finite.
  void add_checksum(size_t dataset, const Array& array);
  void write(size_t dataset, const Array& array);
  void begin_commit();
  void share_failure();

  parallel::Communicator& comm_;
  std::filesystem::path path_;
  int64_t step_;
  std::function<void()> before_commit_, after_commit_;
  std::optional<io::CheckpointWriter> writer_;  ///< rank 0
  std::vector<io::ReservedDataset> datasets_;   ///< rank 0
  std::vector<uint64_t> offsets_;               ///< [datasets] in the file
  std::optional<io::ReservedDatasetWriter> part_;
  bool committing_ = false;
  // Used by tasks while there are any:
  std::vector<Checksum> checksums_;
  std::optional<Failure> failure_;

  /// Tasks end before the members that they use.
  struct Tasks {
    Background& background;
    ~Tasks() { background.cancel(); }
  } tasks_;
  Background& background_;
};

/// Collective. Saves at once, without a copy.
void save(const std::filesystem::path& path, sparse::Store& store, const RunProgress& progress,
          parallel::Communicator& comm, const SaveOptions& options = {});

}  // namespace espalier::train
