#pragma once
// Sources of samples: token sequences or images. A sample is a pure function of (seed, step, index
// in the global batch), so it does not depend on ranks, micro-batches or resumes.
#include <memory>

#include "io/config/config.h"
#include "io/data/tokens.h"
#include "src/core/tensor.h"
#include "src/train/stage/part.h"

namespace espalier::train {

class Source {
 public:
  virtual ~Source() = default;

  /// The extents of a network for this data.
  virtual ProblemShape problem() const = 0;
  virtual int64_t validation_samples() const = 0;

  /// Fills inputs [n, features] (int32 or fp32) and targets int32 [n * problem().rows] with
  /// samples [first, first + n) of the global batch of `step`. Either may be empty: a
  /// pipeline stage reads one of them, or none.
  virtual void train(int64_t step, int64_t first, const Tensor& inputs,
                     const Tensor& targets) const = 0;
  /// Fills both with validation samples [first, first + n), which never overlap with the training
  /// data.
  virtual void validation(int64_t first, const Tensor& inputs, const Tensor& targets) const = 0;
  /// The characters of text tokens; empty for other data.
  virtual io::Vocabulary characters() const { return {}; }
};

/// The validation samples of an evaluation of `batches` global batches: the first ones; 0: all.
int64_t evaluation_samples(const Source& source, const io::Config& config, int64_t batches);

/// Opens the data of a config. `characters`: the vocabulary of a checkpoint, for kind "chars". With
/// `evaluation`, only validation samples can be read, and files of data.train are not needed where
/// data.validation names others.
std::unique_ptr<Source> open_source(const io::Config& config,
                                    const io::Vocabulary* characters = nullptr,
                                    bool evaluation = false);

}  // namespace espalier::train
