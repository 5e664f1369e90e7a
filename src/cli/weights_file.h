#pragma once
// Files of weights that subcommands read: an Espalier checkpoint, which holds its config, or a
// plain HDF5 file of dense arrays, which needs --config.
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "io/checkpoint/checkpoint.h"
#include "io/config/config.h"
#include "io/data/tokens.h"
#include "sparse/store/store.h"
#include "src/kernels/backend.h"
#include "src/train/stage/stage.h"

namespace espalier::cli {

namespace fs = std::filesystem;

/// --config and --set of a subcommand.
struct ConfigSource {
  std::string file;
  std::vector<std::string> overrides;
};

/// A file of weights before its arrays are read.
struct WeightsFile {
  fs::path path;
  bool checkpoint = false;
  io::CheckpointMeta meta;    ///< of a checkpoint
  io::Vocabulary characters;  ///< the vocabulary of text; empty: not text, or not known
  io::Config config;
  train::ProblemShape
      problem;  ///< vocabulary or classes, and features, from the shapes of the arrays
};

/// Throws Failure when there is no such file, it is neither kind, or there is no config for it.
WeightsFile open_weights(const fs::path& path, const ConfigSource& source);

/// A store of weights only, fp32, for work on the arrays. Prunable flags belong to its parameters.
struct Weights {
  Arena arena;
  Stream stream;
  std::unique_ptr<sparse::Store> store;
  std::vector<bool> prunable;

  Weights() : stream(arena, 1) {}
  /// Zeros, with the parameters of the network that the config of `file` describes.
  explicit Weights(const WeightsFile& file);
};

/// A network with the weights of a file in the compute type of its config.
struct Inference {
  kernels::Backend backend;
  train::Stage stage;

  Inference(const WeightsFile& file, const train::ProblemShape& problem, int64_t micro_batch);
};

/// A checkpoint of weights and masks, without optimizer: `train --init` starts from it. Values are
/// fp32; step 0.
void write_weights(const fs::path& path, sparse::Store& store, const std::string& config,
                   const io::Vocabulary& characters);

}  // namespace espalier::cli
