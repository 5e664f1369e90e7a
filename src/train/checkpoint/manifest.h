#pragma once
// The manifest of a run: facts that decide its results besides the config, and choices made by
// timing. Checkpoints, manifest.json and summary.json hold it as JSON (docs/formats.md).
//
//   start    compare_program, compare_inputs: ranks that differ are named before the first step
//   repeat   check_inputs: the same command again, for several runs, continues with the same files
//   resume   check_resume: a difference that changes results silently is a Failure, unless the user
//            accepts it; other differences are notes
//            timings_are_valid: whether choices by timing are restored instead of timed again
#include <array>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/config/config.h"
#include "parallel/transport/communicator.h"
#include "src/kernels/kernels.h"
#include "src/train/masks/initial_masks.h"

namespace espalier::train {

struct Manifest {
  // Content of files (io/data/fingerprint.h); empty: there is none.
  std::string train_data{};
  std::string validation_data{};
  std::string mask_file{};  ///< pruning.file
  std::string teacher{};    ///< train.teacher

  int64_t seed = 0;
  int64_t global_batch = 0;
  int64_t context = 0;

  int64_t ranks = 1;
  int64_t ranks_per_machine = 1;  ///< on the machine of rank 0
  int64_t replicas = 1;
  int64_t stages = 1;
  int64_t micro_batch = 0;
  int64_t threads = 1;  ///< of rank 0

  std::string kernels{};  ///< name of their table: the instruction set
  std::string program{};  ///< version, and the content of the program's file
  std::string gemm{};     ///< library of dense products
  std::string hdf5{};
  std::string mpi{};

  /// Storages that sparse.storage = "auto" chose, by parameter. Codecs that were chosen by timing
  /// are in RunProgress::codec_choice.
  std::map<std::string, std::string> storages{};
};

nlohmann::ordered_json json_of(const Manifest& manifest);
/// From the text of json_of. Throws Failure, which begins with `where`, if it is no such text.
Manifest manifest_of(std::string_view text, const std::string& where);

/// The entries that do not depend on the config. Reads the program's file. `version`: of the
/// program.
Manifest manifest_of_program(const std::string& version, const kernels::Kernels& kernels,
                             const parallel::Communicator& comm);
/// Adds the entries of the config and of its files, which it reads.
void add_inputs(const io::Config& config, Manifest& manifest);

/// Collective. Throws SharedFailure, with the values and ranks, if ranks run different programs,
/// libraries or kernels.
void compare_program(const Manifest& manifest, parallel::Communicator& comm);
/// Collective. The same of data and of the files to start from.
void compare_inputs(const Manifest& manifest, const WeightSource& files,
                    parallel::Communicator& comm);

/// Changes that a resumed run may make only if --accept-changes names them.
inline constexpr auto kAcceptableChanges = std::to_array<std::string_view>(
    {"data", "seed", "order", "masks", "parametrization", "teacher"});

/// The run that wrote a checkpoint.
struct SavedRun {
  const io::Config& config;
  const Manifest* manifest = nullptr;  ///< null: of an older version of the program
  std::string file{};
};
/// Throws Failure that names the differences which change results silently, unless `accepted` (of
/// kAcceptableChanges) has them all. Returns notes about all other differences.
std::vector<std::string> check_resume(const SavedRun& before, const io::Config& config,
                                      const Manifest& manifest,
                                      std::span<const std::string> accepted);

/// Throws Failure if the run in `directory` read other files than `inputs` (of add_inputs) has: the
/// command's results would be those of different inputs. A directory without manifest.json has no
/// run yet.
void check_inputs(const std::filesystem::path& directory, const Manifest& inputs);

/// Whether storages or codecs that the checkpoint's run chose by timing stay valid: settings,
/// kernels and, for codecs, ranks are the same.
enum class Timed : uint8_t { storages, codecs };
bool timings_are_valid(const SavedRun& before, const io::Config& config, const Manifest& manifest,
                       Timed timed);

}  // namespace espalier::train
