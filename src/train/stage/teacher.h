#pragma once
// The teacher of a distillation (`train.teacher`): the network of a checkpoint, which predicts the
// targets of each training micro-batch. The part that ends the student's network uses it; in a
// pipeline that part reads the inputs as well, and no other rank holds the teacher.
//
// Its weights are in the compute type of the run, without gradients and optimizer state. Of a
// micro-batch it holds the input of its last layer, [rows, width]. The student's last layer
// requests logits for the rows of one chunk at a time. One tape serves all micro-batches, because
// a training forward ends before the next one begins.
#include <filesystem>
#include <memory>
#include <optional>

#include "io/config/config.h"
#include "io/data/tokens.h"
#include "src/model/network.h"
#include "src/model/networks/registry.h"
#include "src/train/masks/initial_masks.h"

namespace espalier::train {

/// An opened teacher whose weights are not read yet.
struct TeacherFile {
  std::filesystem::path path;
  io::Config config;            ///< of the file, with the types of the run
  model::ProblemShape problem;  ///< its classes and features
  io::Vocabulary characters;    ///< empty: not text, or unknown
  InitialMasks start;           ///< its masks
  std::string manifest{};       ///< of the run that trained it, JSON; empty: unknown
};

/// Throws Failure if `train.teacher` is set, and the file is missing or no checkpoint.
void check_teacher_file(const io::Config& config);

/// Opens `train.teacher`; empty: the run has none. Throws Failure as check_teacher_file does, and
/// if the file has no config, or is a network of another kind, for other data, or for shorter
/// sequences.
std::optional<TeacherFile> open_teacher(const io::Config& config);

/// Throws Failure unless its classes are those of the data, and its inputs fit.
void check_teacher_fits_data(const TeacherFile& file, const model::ProblemShape& problem,
                             const io::Vocabulary& characters);

class Teacher {
 public:
  /// `config`: of the student. A `dry` teacher needs no memory, on a dry arena.
  Teacher(const TeacherFile& file, const io::Config& config, Stream& stream,
          const kernels::Kernels& kernels, bool dry);

  /// Weights are zero until the caller loads them.
  sparse::Store& store() { return *store_; }
  /// Call once before the first pass; a dry teacher accepts any size.
  void allocate(size_t tape_bytes);
  size_t tape_bytes() const { return tape_->high_water(); }

  /// Enqueues its forward for the inputs of the student's pass. The result holds until the next
  /// call; `losses`: see model::DistillationTarget.
  const model::DistillationTarget& predict(const model::Pass& student, const Tensor& losses);

 private:
  Stream& stream_;
  const kernels::Kernels& kernels_;
  DType dtype_;
  std::unique_ptr<sparse::Store> store_;
  model::Network network_;
  std::unique_ptr<model::Tape> tape_;
  std::optional<model::Pass> pass_;         ///< the last one
  Tensor hidden_;                           ///< of the last pass
  std::optional<model::Tape::Scope> rows_;  ///< of the last requested logits
  model::DistillationTarget distillation_;
};

}  // namespace espalier::train
