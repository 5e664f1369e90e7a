#pragma once
// The state of a run in checkpoints: what they hold, and loading it (checkpoint_save.h: saving). A
// checkpoint stores parameters by name, independently of the ranks. All ranks read one file, each
// the parameters that it holds.
#include <array>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "io/checkpoint/checkpoint.h"
#include "io/checkpoint/plain_hdf5.h"
#include "io/config/config.h"
#include "io/data/tokens.h"
#include "parallel/transport/communicator.h"
#include "sparse/store/store.h"
#include "src/train/checkpoint/manifest.h"

namespace espalier::train {

/// Kinds of optimizer state, by number of the moment.
inline constexpr std::array<const char*, 2> kMomentKinds{"moment1", "moment2"};
/// Of the arrays of a pruning method.
inline constexpr std::array<const char*, 2> kPruningKinds{"pruning1", "pruning2"};

/// Text in a checkpoint: the working directory of the run, which relative paths in its config begin
/// in.
inline constexpr std::string_view kWorkingDirectory = "directory";

/// State of a run outside the stage.
struct RunProgress {
  int64_t step = 0;  ///< steps done
  io::Config config;
  io::Vocabulary characters;                         ///< empty for other data than text
  std::string codec_choice{};                        ///< CodecChoice::state of all stages
  std::string loss_scale{};                          ///< LossScale::state
  std::optional<Manifest> manifest{};                ///< none in files of older versions
  std::map<std::string, std::string> model_texts{};  ///< io::texts_of_model
};

/// The ranks that hold the parameters.
struct Owners {
  std::vector<sparse::ParameterSpec> network{};  ///< all parameters; empty: rank 0 has all
  std::vector<int> ranks{};                      ///< [network] first rank that holds the parameter
  /// Error feedback of each replica is saved, too: replica r of a parameter's owner is rank
  /// owner + r `replica_stride`.
  int replicas = 1;
  int replica_stride = 1;
};

RunProgress progress_of(const io::CheckpointReader& reader);

/// Throws Failure unless the network of a checkpoint (`saved`, in `file`) has the settings of
/// `config` that the shapes of its parameters do not determine, such as the number of heads.
void check_same_model(const io::Config& config, const io::Config& saved, const std::string& file);

struct LoadOptions {
  /// Also this rank's part of master copies, moments and arrays of the pruning method.
  bool optimizer = false;
  bool whole = true;  ///< the store has all parameters of the network
  bool masks = true;  ///< false: the store was built with the masks of the file
};
/// Loads masks and values, bit for bit. Not collective. Throws Failure if the file is of another
/// model. If all masks are equal, the store is not rebuilt.
void load(const io::CheckpointReader& reader, sparse::Store& store, const LoadOptions& options);

/// Loads this replica's error feedback if the same number of replicas saved theirs; else every
/// replica gets (sum of the saved errors) / replicas.
void load_feedback(const io::CheckpointReader& reader, sparse::Store& store, int replica,
                   int replicas);

/// Loads masks and values from a plain HDF5 file of arrays (masks_in). Calls `on_progress(done,
/// total)` with elements read: each is read for its mask and for its value.
void load_plain(std::shared_ptr<const io::PlainReader> reader, sparse::Store& store,
                const std::vector<bool>& prunable,
                const std::function<void(int64_t done, int64_t total)>& on_progress = {});

/// Loads weights and masks from a checkpoint or plain file; no optimizer.
void load_weights(const std::filesystem::path& path, sparse::Store& store,
                  const std::vector<bool>& prunable, bool whole = true);

}  // namespace espalier::train
