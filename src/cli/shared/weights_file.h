#pragma once
// Files of weights that subcommands read: an Espalier checkpoint, which contains its config, or a
// plain HDF5 file of dense arrays, which needs --config.
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "io/checkpoint/checkpoint.h"
#include "io/checkpoint/plain_hdf5.h"
#include "io/config/config.h"
#include "io/data/tokens.h"
#include "sparse/store/store.h"
#include "src/hub/array_match.h"
#include "src/kernels/backend.h"
#include "src/train/stage/stage.h"

namespace espalier::cli {

namespace fs = std::filesystem;

/// --config and --set of a subcommand.
struct ConfigSource {
  std::string file;
  std::vector<std::string> overrides;
};

/// An opened file of weights whose arrays are not read yet.
struct WeightsFile {
  fs::path path;
  bool checkpoint = false;
  io::CheckpointMeta meta;    ///< of a checkpoint
  io::Vocabulary characters;  ///< vocabulary of text; empty: no text, or unknown
  io::Config config;
  bool data_of_run = false;  ///< config.data names the files of training, by the checkpoint
  train::ProblemShape
      problem;  ///< vocabulary or classes, and features, from the shapes of the arrays
  /// Of a plain file: its arrays by the names of the parameters; null: a checkpoint.
  std::shared_ptr<const io::PlainReader> arrays{};
};

/// Opens a checkpoint, or finds the parameters of the config's network in a plain file as `import`
/// does without --map, with notes to the user. Throws Failure if the file is missing, is of neither
/// kind, has no config, or is of another network.
WeightsFile open_weights(const fs::path& path, const ConfigSource& source);

// Parts of it, for `import`.

/// `dtype`: train.dtype where the config does not set it.
io::Config config_for_type(const ConfigSource& source, DType dtype);
/// Notes on arrays of a plain file that were mapped, split, or read as masks.
void print_notes(const io::PlainReader& reader, const hub::ArrayMatch& match,
                 const WeightsFile& file);
/// Of arrays with the parameters of the network of `config`. Throws Failure if the vocabulary of
/// the data is another one.
WeightsFile described_weights(const fs::path& path, const io::Config& config,
                              const train::ProblemShape& problem);

/// A store of fp32 weights only, for work on the arrays. `prunable`: flags over its parameters.
struct Weights {
  Arena arena;
  Stream stream;
  std::unique_ptr<sparse::Store> store;
  std::vector<bool> prunable;

  Weights() : stream(arena, 1) {}
  /// Zero weights, with the parameters of the network that the config of `file` describes.
  explicit Weights(const WeightsFile& file);
};

/// A network with the weights of a file, in the compute type of its config.
struct Inference {
  kernels::Backend backend;
  train::Stage stage;

  /// `generation`: for train::Generator.
  Inference(const WeightsFile& file, const train::ProblemShape& problem, int64_t micro_batch,
            bool generation = false);
};

/// The types of the values of a checkpoint, or of a plain file, by parameter of the store.
std::map<std::string, DType> types_in(const fs::path& checkpoint, const sparse::Store& store);
std::map<std::string, DType> types_in(const io::PlainReader& reader, const sparse::Store& store);

/// Writes a checkpoint of weights and masks without optimizer state, for `train --init`; step 0.
/// `texts`: io::texts_of_model of the file that the weights come from. `types`: of the values, fp32
/// where it has none; throws Failure where a value is beyond the largest of its type.
/// `on_progress`: with elements written. `advice`: what the user can do about such a value; empty:
/// choose --dtype.
void write_weights(const fs::path& path, sparse::Store& store, const std::string& config,
                   const io::Vocabulary& characters,
                   const std::map<std::string, std::string>& texts = {},
                   const std::map<std::string, DType>& types = {},
                   const std::function<void(int64_t done)>& on_progress = {},
                   std::string_view advice = {});

}  // namespace espalier::cli
