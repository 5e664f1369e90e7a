#pragma once
// Finds bits of a rank's state that change while nothing writes them (faulty memory): no comparison
// of ranks finds them where a rank holds the state alone. Between the end of an update and the
// begin of the next the state is constant:
//
//   check.verify();           before masks change, before a save
//   check.begin_update();     before the update
//   …                         the update, with check.observer_of(parameter)
//   check.end_update(step);   after it
//
// Arrays that the update reads and writes in blocks are hashed there, while a block is in cache:
// before it changes (verify) and after it (record). All others are hashed before and after the
// update. A difference is thrown by `end_update`, before anything is saved or sent.
//
// State: values, their dense copies, low halves and master copies, moments and their scales. Error
// feedback is constant only until the gradients are reduced: `verify_feedback` is called before a
// bucket is. Indices and lists of blocks are constant until masks change: their checksums are
// recorded once.
//
// A teacher's weights are recorded once and verified before saves and changes of masks.
//
// Not covered: gradients and activations; a bit that changes during an update, or while feedback is
// written; on a device, everything but indices (`parallel.check_every` compares replicas).
// Asynchronous stages record at the end of a segment: within one, only indices are covered.
//
// Cost: two hashes of the state per step, by the threads of the stream. Memory is read for them
// only where arrays are not hashed in the update: with sharded optimizers and dense copies.
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sparse/store/store.h"

namespace espalier::train {

class StateCheck {
 public:
  /// The store must outlive it. `rank`: of the world, for messages.
  StateCheck(const sparse::Store& store, int rank) : store_(store), rank_(rank) {}

  /// Records the checksums after step number `step`; of a teacher once, before the first step.
  void record(int64_t step);
  /// Verifies what the update does not observe.
  void begin_update();
  /// For Optimizer's hooks, between begin_update and end_update; null: not observed.
  const kernels::UpdateObserver* observer_of(const sparse::Parameter& parameter);
  /// Throws as `verify` if bits had changed before the update; else records.
  void end_update(int64_t step);
  /// Throws a retryable Failure that names parameter, array and rank if bits changed since
  /// `record`. Does nothing without a record, or after masks, storages or addresses have changed.
  void verify() const;
  /// As `verify`, of error feedback.
  void verify_feedback() const { verify(exchanged_, pieces_.size()); }
  /// Verifies error feedback of flat elements [0, end) that is not verified since `record`. Call it
  /// before it is written.
  void verify_feedback(int64_t end);
  /// Drops the records; call it after writing state outside of an update.
  void clear();

 private:
  struct Array {
    const sparse::Parameter* parameter;
    const char* kind;
  };
  /// Part of an array, hashed by one thread.
  struct Piece {
    std::span<const std::byte> bytes;
    size_t array = 0;
    int64_t first = 0;  ///< flat element at which its array begins
    uint64_t hash = 0;
  };
  /// Arrays of a parameter that are hashed in blocks of kObservedBlock elements.
  struct Blocks {
    struct Column {
      const char* kind;
      const std::byte* data;
      size_t element_bytes;
    };
    const sparse::Parameter* parameter = nullptr;
    std::vector<Column> columns{};
    std::vector<uint64_t> hashes{};      ///< [blocks][columns]
    std::atomic<const char*> changed{};  ///< kind of a column that had changed; null: none
    kernels::UpdateObserver observer{};

    uint64_t hash(size_t column, int64_t first, int64_t count) const;
    void record(int64_t first, int64_t count);
    void verify(int64_t first, int64_t count);
  };
  bool observes(const sparse::Parameter& parameter) const;
  void make_blocks();
  template <class Visit>
  void for_blocks(const Visit& visit) const;
  void check_blocks() const;
  [[noreturn]] void fail_changed(const sparse::Parameter& parameter, const char* kind) const;
  void add(const sparse::Parameter& parameter, const char* kind, const Tensor& tensor);
  void add_constants();
  void add_state();
  void add_feedback();
  void hash(size_t first);
  void verify(size_t first, size_t end) const;
  bool known() const { return changes_ == store_.changes(); }

  const sparse::Store& store_;
  int rank_;
  int64_t step_ = 0;
  int64_t changes_ = -1;  ///< of the store, at the last record
  std::vector<Array> arrays_;
  std::vector<Piece> pieces_;  ///< constants, state, then feedback in the order of the flat arrays
  size_t constant_arrays_ = 0, constants_ = 0;
  size_t exchanged_ = 0;  ///< first piece of feedback
  size_t next_ = 0;       ///< first piece of feedback that is not verified since `record`
  std::vector<std::unique_ptr<Blocks>> blocks_;  ///< [parameters]; null: not observed
  bool updating_ = false;                        ///< blocks are hashed in an update
};

}  // namespace espalier::train
