#include "src/train/run/lottery.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "io/checkpoint/checkpoint.h"
#include "io/files/folders.h"
#include "io/files/raw_file.h"
#include "io/run/metrics.h"
#include "io/run/parse_json.h"
#include "parallel/transport/collectives.h"
#include "sparse/index/file_index.h"
#include "src/config/dump.h"
#include "src/train/exchange/agreement.h"
#include "src/train/masks/mask_files.h"
#include "src/train/masks/pruner.h"
#include "src/train/run/manifest.h"
#include "src/train/run/snapshot.h"

namespace espalier::train {
namespace {

namespace fs = std::filesystem;

std::vector<float> elements_of(std::span<const float> packed, const sparse::Mask& before,
                               const sparse::Mask& mask) {
  std::vector<float> kept;
  size_t next = 0;
  sparse::for_each_one(before.words(), [&](int64_t position) {
    if (mask[position]) {
      kept.push_back(packed[next]);
    }
    ++next;
  });
  return kept;
}

Tensor tensor_of(std::vector<float>& values) {
  return Tensor(values.data(), DType::fp32, Shape{static_cast<int64_t>(values.size())});
}

/// Copies a checkpoint, with the kept elements of `masks` only: values, master copies, moments and
/// error feedback. Choices of the run by timing are left out.
void write_pruned(const std::filesystem::path& from, const std::vector<sparse::Mask>& masks,
                  const io::Config& config, const std::filesystem::path& to) {
  const io::CheckpointReader reader(from);
  io::CheckpointMeta meta = reader.meta();
  meta.extra.erase("manifest");
  meta.config = config::to_toml(config);
  io::CheckpointWriter writer(to);
  writer.write_meta(meta);
  for (size_t p = 0; p < reader.names().size(); ++p) {
    const std::string& name = reader.names()[p];
    const io::StoredParameter info = reader.info(name);
    const sparse::Mask before = read_mask(reader, name);
    const sparse::Mask& mask = masks.empty() ? before : masks[p];
    std::vector<float> packed(static_cast<size_t>(info.nnz));
    reader.values(name, tensor_of(packed));
    std::vector<float> kept = elements_of(packed, before, mask);
    Arena arena;
    const sparse::Index index(
        arena, mask,
        mask.kept() == mask.size() ? sparse::Encoding::full : sparse::Encoding::bitmap);
    const sparse::FileIndex encoded = sparse::to_file(index);
    writer.write_parameter({.name = name,
                            .shape = info.shape,
                            .encoding = std::string(encoded.encoding.name),
                            .nnz = mask.kept(),
                            .values = tensor_of(kept),
                            .index = encoded.bytes});
    for (const std::string& kind : info.optimizer) {
      if (kind == io::kLowRankKind) {
        const Shape shape = reader.optimizer_shape(name, kind);
        std::vector<float> factor(static_cast<size_t>(shape.count()));
        const Tensor view = tensor_of(factor).reshaped(shape);
        reader.optimizer(name, kind, view);
        writer.write_optimizer(name, kind, view);
      } else {
        reader.optimizer(name, kind, tensor_of(packed));
        std::vector<float> state = elements_of(packed, before, mask);
        writer.write_optimizer(name, kind, tensor_of(state));
      }
    }
  }
  writer.commit();
}

/// Whether the run has trained to `step` (0: to its end). A damaged summary does not say so.
bool reached(const fs::path& directory, int64_t step) {
  const fs::path file = directory / "summary.json";
  if (!io::path_exists(file)) {
    return false;
  }
  const auto summary = io::parse_json(io::read_text(file, "summary.json"));
  if (!summary.is_object()) {
    return false;
  }
  const auto value = summary.value(step == 0 ? "finished" : "steps", nlohmann::json());
  return step == 0 ? value == true : value.is_number_integer() && value >= step;
}

}  // namespace

Lottery::Lottery(const io::Config& config, int64_t rounds, int64_t rewind, Calls calls)
    : config_(config),
      rounds_(rounds),
      rewind_(rewind),
      calls_(std::move(calls)),
      out_(config.run.out) {
  std::vector<std::string_view> by_weights;
  for (const pruning::Method* method : pruning::methods()) {
    if (method->name != "none" && method->run != nullptr && method->without_training() &&
        method->sparsity == nullptr) {
      by_weights.push_back(method->name);
    }
  }
  check(config.pruning.prunes() &&
            std::ranges::find(by_weights, config.pruning.method) != by_weights.end() &&
            !config.pruning.gradual() && config.pruning.at_step < 0,
        "lottery prunes by weights at the end of each round: set pruning.method to one of {}, and "
        "no pruning.at_step, from_step or to_step",
        fmt::join(by_weights, ", "));
  check(rewind < config.train.steps,
        "--rewind {} is not before the end of training, train.steps = {}; name an earlier step",
        rewind, config.train.steps);
  check(config.train.checkpoint_every >= 0,
        "lottery needs checkpoints, and train.checkpoint_every = -1 writes none; set 0");
}

bool Lottery::run(parallel::Communicator& comm) const {
  on_first_rank_first(comm, [&] {
    if (comm.rank() == 0) {
      claim_directory();
    }
  });
  bool done = train_to(comm, out_ / "rewind", rewind_);
  for (int64_t round = 0; done && round <= rounds_; ++round) {
    on_first_rank_first(comm, [&] {
      if (comm.rank() == 0) {
        begin(round);
      }
    });
    done = train_to(comm, round_directory(round), 0);
  }
  return done;
}

fs::path Lottery::round_directory(int64_t round) const {
  return out_ / fmt::format("round-{}", round);
}

double Lottery::sparsity(int64_t round) const {
  return 1 - std::pow(1 - config_.pruning.sparsity,
                      static_cast<double>(round) / static_cast<double>(rounds_));
}

/// Rounds are runs that do not prune by themselves.
io::Config Lottery::config_of_run(const fs::path& directory) const {
  io::Config config = config_;
  config.pruning = {.exclude = config_.pruning.exclude};
  config.run.out = directory.string();
  return config;
}

fs::path Lottery::checkpoint(const fs::path& directory, int64_t step) const {
  return directory / "checkpoints" / io::checkpoint_name(step);
}

/// The directory holds these rounds, or nothing.
void Lottery::claim_directory() const {
  const fs::path file = out_ / "lottery.toml";
  const std::string mine = fmt::format("# espalier lottery --rounds {} --rewind {}\n{}", rounds_,
                                       rewind_, config::to_toml(config_));
  if (io::path_exists(file)) {
    check(io::read_text(file, "lottery.toml") == mine,
          "{} holds rounds of another config, --rounds or --rewind; choose another directory "
          "with --out, or remove it",
          out_.string());
    check_inputs(out_ / "rewind", config_of_run(out_ / "rewind"));
    return;
  }
  check(!io::path_exists(out_ / "metrics.jsonl"),
        "{} holds a run of its own; choose another directory with --out", out_.string());
  io::make_folder_of(file);
  io::write_text_atomically(file, mine);
}

/// Resumes a run and trains it to `step` (0: to the end), unless that is done.
bool Lottery::train_to(parallel::Communicator& comm, const fs::path& directory,
                       int64_t step) const {
  std::array<double, 1> done{comm.rank() == 0 && reached(directory, step) ? 1.0 : 0.0};
  parallel::all_reduce_small(comm, done, parallel::Combine::sum);
  return done[0] > 0 || calls_.train(config_of_run(directory), step);
}

/// Writes the checkpoint from which the round starts, unless it has one.
void Lottery::begin(int64_t round) const {
  const fs::path directory = round_directory(round);
  // A round's first checkpoint has no manifest that its training could check.
  for (const fs::path& run : {out_ / "rewind", directory}) {
    check_inputs(run, config_of_run(run));
  }
  if (!io::checkpoints_in(directory / "checkpoints").empty()) {
    return;
  }
  std::vector<sparse::Mask> masks;
  if (round > 0) {
    const pruning::Result result = masks_after(round);
    for (const std::string& warning : result.warnings) {
      calls_.note("pruning: " + warning);
    }
    masks = result.masks;
  }
  const fs::path start = checkpoint(directory, rewind_);
  io::make_folder_of(start);
  write_pruned(checkpoint(out_ / "rewind", rewind_), masks, config_of_run(directory), start);
  calls_.note(fmt::format("round {} of {}: rewound to step {}, sparsity {:.4f}", round, rounds_,
                          rewind_, sparsity(round)));
}

/// Masks of all parameters, of the trained weights of the round before.
pruning::Result Lottery::masks_after(int64_t round) const {
  const fs::path trained = checkpoint(round_directory(round - 1), config_.train.steps);
  pruning::Result result;
  calls_.with_store(trained, [&](sparse::Store& store) {
    const std::vector<bool> prunable = prunable_of(store, config_.pruning);
    load_weights(trained, store, prunable);
    pruning::Settings settings =
        pruning::settings_of(config_.pruning, static_cast<uint64_t>(config_.train.seed));
    settings.sparsity = sparsity(round);
    result = compute_masks(store, prunable, settings);
  });
  return result;
}

}  // namespace espalier::train
