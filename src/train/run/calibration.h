#pragma once
// Prunes trained weights by the inputs of their layers on calibration data (methods with
// Calibrated::prune: wanda, sparsegpt), in fp32. In forward order, for each layer:
//
//   1. For each of its prunable matrices: the layer runs on all samples, the statistic of the
//      matrix's inputs is summed, and the method prunes the matrix.
//   2. The layer runs on all samples once more; its outputs are the inputs of the next layer.
//
// So every matrix sees the activations of pruned ones before it, and the statistic of one matrix
// exists at a time. A layer of m matrices runs m + 1 times. Memory beside the weights:
// - the activations between two layers of all samples (GPT: 4 context width bytes a sample);
// - the tape of one micro-batch;
// - wanda: a vector. sparsegpt, for a matrix [out, in]: 12 in² + 8 in out bytes.
#include <functional>
#include <memory>

#include "io/config/config.h"
#include "io/data/tokens.h"
#include "pruning/registry.h"
#include "sparse/store/store.h"
#include "src/train/stage/part.h"

namespace espalier::train {

struct Calibration {
  int64_t samples = 0;
  /// Fills inputs [n, features] with samples [first, first + n).
  std::function<void(int64_t first, const Tensor& inputs)> read;
};

/// Draws up to `samples` samples evenly from files of the kind of config.data: contexts of text,
/// which do not overlap, or images. `characters`: the vocabulary of kind "chars"; `tokenizer`: of
/// texts for kind "tokens", or null. Throws Failure if the files hold less than one sample, and,
/// when read, for tokens outside the vocabulary.
Calibration open_calibration(const io::Config& config, const ProblemShape& problem,
                             const io::Vocabulary& characters, const io::Tokenizer* tokenizer,
                             std::vector<std::string> files, int64_t samples);

/// `done` of `total` passes of a micro-batch through a layer.
using OnPasses = std::function<void(int64_t done, int64_t total)>;

/// Masks of all parameters, in forward order. Values of pruned elements in `store`, which has fp32
/// values of the whole network, become zero, and the method's updates of the others are done; its
/// masks stay for the caller to set.
pruning::Result prune_by_inputs(const io::Config& config, const ProblemShape& problem,
                                sparse::Store& store, const kernels::Kernels& kernels,
                                const std::vector<bool>& prunable,
                                const pruning::Settings& settings, const Calibration& data,
                                const OnPasses& on_passes = {});

}  // namespace espalier::train
