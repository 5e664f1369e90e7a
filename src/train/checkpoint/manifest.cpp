#include "src/train/checkpoint/manifest.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "io/checkpoint/checkpoint.h"
#include "io/data/fingerprint.h"
#include "io/files/folders.h"
#include "io/files/raw_file.h"
#include "parallel/pipeline/schedule/registry.h"
#include "parallel/transport/mpi_communicator.h"
#include "src/config/dump.h"
#include "src/train/exchange/agreement.h"

namespace espalier::train {
namespace {

using Json = nlohmann::ordered_json;
using Names = std::span<const std::string_view>;

/// Settings that change no result, or whose effect the manifest compares. A name that ends in '.'
/// is a section.
constexpr auto kWithoutEffect = std::to_array<std::string_view>({"run.",
                                                                 "data.train",
                                                                 "data.validation",
                                                                 "train.eval_every",
                                                                 "train.checkpoint_every",
                                                                 "train.keep_checkpoints",
                                                                 "train.recompute",
                                                                 "train.memory_budget",
                                                                 "train.teacher",
                                                                 "pruning.file",
                                                                 "sparse.index",
                                                                 "parallel.pipeline",
                                                                 "parallel.partition",
                                                                 "parallel.bucket_mb",
                                                                 "parallel.overlap",
                                                                 "parallel.zero",
                                                                 "parallel.device_link",
                                                                 "parallel.timeout_s",
                                                                 "parallel.check_every",
                                                                 "parallel.check_state"});
/// Settings of the order and form in which training reads its data.
constexpr auto kOrder = std::to_array<std::string_view>(
    {"train.global_batch", "model.context", "data.kind", "data.token_type",
     "data.validation_fraction", "data.format", "data.mean", "data.deviation", "data.crop",
     "data.flip", "data.order"});
/// Storages are timed for these settings.
constexpr auto kOfStorages = std::to_array<std::string_view>(
    {"model.", "sparse.", "pruning.", "train.dtype", "train.memory_budget"});
/// Sums are timed for these settings, except for the second list.
constexpr auto kOfCodecs =
    std::to_array<std::string_view>({"model.", "parallel.", "train.dtype", "train.gradient_dtype"});
constexpr auto kNotOfCodecs = std::to_array<std::string_view>(
    {"parallel.timeout_s", "parallel.check_every", "parallel.check_state"});

bool listed(Names names, const std::string& key) {
  return std::ranges::any_of(names, [&](std::string_view name) {
    return name.ends_with('.') ? key.starts_with(name) : key == name;
  });
}

/// Calls visit(key, member) for each entry.
template <class AnyManifest, class Visit>
void for_each_entry(AnyManifest& manifest, const Visit& visit) {
  visit("train_data", manifest.train_data);
  visit("validation_data", manifest.validation_data);
  visit("mask_file", manifest.mask_file);
  visit("teacher", manifest.teacher);
  visit("seed", manifest.seed);
  visit("global_batch", manifest.global_batch);
  visit("context", manifest.context);
  visit("ranks", manifest.ranks);
  visit("ranks_per_machine", manifest.ranks_per_machine);
  visit("data", manifest.replicas);
  visit("pipeline", manifest.stages);
  visit("micro_batch", manifest.micro_batch);
  visit("threads", manifest.threads);
  visit("kernels", manifest.kernels);
  visit("program", manifest.program);
  visit("gemm", manifest.gemm);
  visit("hdf5", manifest.hdf5);
  visit("mpi", manifest.mpi);
  visit("storages", manifest.storages);
}

/// The content of the program's file.
const std::string& own_content() {
  static const std::string kContent = io::fingerprint(std::vector<std::string>{"/proc/self/exe"});
  return kContent;
}

/// A setting that differs, and the words for it.
struct Changed {
  std::string key;
  std::string text;
};

/// "auto" reads the type in the note of the file, and its content is compared. Versions before
/// "auto" wrote "uint16" into the config of every run.
bool may_have_same_type(const io::Config& before, const io::Config& now) {
  return now.data.kind != "tokens" || before.data.token_type == "auto" ||
         now.data.token_type == "auto";
}

/// "auto" is one of several schedules, which a resumed run keeps.
bool may_have_same_schedule(const io::Config& before, const io::Config& now) {
  const std::string& was = before.parallel.schedule;
  const std::string& is = now.parallel.schedule;
  return (was == "auto" || is == "auto") && parallel::schedule_entry(was).automatic &&
         parallel::schedule_entry(is).automatic;
}

std::vector<Changed> changed_settings(const io::Config& before, const io::Config& now) {
  static const io::Config kDefaults;
  std::vector<Changed> changed;
  for (const config::Field* row : config::members()) {
    if (!row->of_key.empty()) {
      continue;  // in the text of its key
    }
    const config::Field& field = *row;
    const std::string was = config::toml_value(field, before);
    const std::string is = config::toml_value(field, now);
    // Versions before hidden members were hidden wrote them; a config that has none says nothing.
    if (config::find_field(field.section, field.name) == nullptr &&
        was == config::toml_value(field, kDefaults)) {
      continue;
    }
    if (was != is && !(field.key() == "data.token_type" && may_have_same_type(before, now)) &&
        !(field.key() == "parallel.schedule" && may_have_same_schedule(before, now))) {
      changed.push_back({field.key(), fmt::format("{} was {} and is {}", field.key(), was, is)});
    }
  }
  return changed;
}

/// The key of kAcceptableChanges that a setting belongs to; empty: none.
std::string_view acceptable_change_of(const Changed& setting) {
  return setting.key == "train.seed"              ? "seed"
         : listed(kOrder, setting.key)            ? "order"
         : setting.key == "train.parametrization" ? "parametrization"
                                                  : "";
}

/// The differences that change results silently, by their key of kAcceptableChanges.
using SilentDifferences = std::map<std::string_view, std::vector<std::string>>;

void compare_content(std::string_view key, std::string_view name, const std::string& was,
                     const std::string& is, SilentDifferences& found) {
  if (was != is) {
    found[key].push_back(fmt::format("{} had {} and has {}", name, was.empty() ? "no file" : was,
                                     is.empty() ? "no file" : is));
  }
}

SilentDifferences different_inputs(const Manifest& was, const Manifest& is) {
  SilentDifferences found;
  compare_content("data", "data.train", was.train_data, is.train_data, found);
  compare_content("data", "data.validation", was.validation_data, is.validation_data, found);
  compare_content("masks", "pruning.file", was.mask_file, is.mask_file, found);
  compare_content("teacher", "train.teacher", was.teacher, is.teacher, found);
  return found;
}

SilentDifferences silent_differences(const SavedRun& before, const Manifest& manifest,
                                     const std::vector<Changed>& settings) {
  SilentDifferences found;
  if (before.manifest != nullptr) {
    found = different_inputs(*before.manifest, manifest);
  }
  for (const Changed& setting : settings) {
    if (const std::string_view change = acceptable_change_of(setting); !change.empty()) {
      found[change].push_back(setting.text);
    }
  }
  return found;
}

/// Differences that may change bits, but not the quality of results.
std::vector<std::string> machine_differences(const Manifest& was, const Manifest& is) {
  std::vector<std::string> texts;
  const auto compare = [&texts](std::string_view name, const auto& before, const auto& now) {
    if (before != now) {
      texts.push_back(fmt::format("{} were {} and are {}", name, before, now));
    }
  };
  compare("ranks", was.ranks, is.ranks);
  compare("ranks per machine", was.ranks_per_machine, is.ranks_per_machine);
  compare("threads", was.threads, is.threads);
  compare("kernels", was.kernels, is.kernels);
  compare("programs", was.program, is.program);
  compare("libraries", was.gemm, is.gemm);
  compare("libraries", was.hdf5, is.hdf5);
  compare("libraries", was.mpi, is.mpi);
  return texts;
}

}  // namespace

Json json_of(const Manifest& manifest) {
  Json json;
  for_each_entry(manifest, [&json](const char* key, const auto& value) { json[key] = value; });
  return json;
}

Manifest manifest_of(std::string_view text, const std::string& where) {
  Manifest manifest;
  try {
    const Json json = Json::parse(text);
    for_each_entry(manifest, [&json](std::string_view key, auto& value) {
      if (key != "teacher" || json.contains(key)) {  // absent in files of earlier versions
        json.at(key).get_to(value);
      }
    });
  } catch (const Json::exception& error) {
    fail("{}: manifest: {}: the file is damaged, use another checkpoint", where, error.what());
  }
  return manifest;
}

Manifest manifest_of_program(const std::string& version, const kernels::Kernels& kernels,
                             const parallel::Communicator& comm) {
  const std::vector<int>& machines = comm.members().node;
  return {.ranks = comm.size(),
          // The same on all ranks: they decide by it whether to time codecs, which is collective.
          .ranks_per_machine = std::ranges::count(machines, machines.front()),
          .kernels = std::string(kernels.name),
          .program = fmt::format("{} ({})", version, own_content()),
          .gemm = kernels::gemm_library(),
          .hdf5 = io::hdf5_library(),
          .mpi = parallel::mpi_library()};
}

void add_inputs(const io::Config& config, Manifest& manifest) {
  manifest.train_data = io::fingerprint(config.data.train);
  manifest.validation_data = io::fingerprint(config.data.validation);
  if (!config.pruning.file.empty()) {
    manifest.mask_file =
        io::fingerprint(std::vector<std::string>{config.pruning.file}, "pruning.file");
  }
  if (!config.train.teacher.empty()) {
    manifest.teacher = io::fingerprint(std::vector<std::string>{config.train.teacher});
  }
  manifest.seed = config.train.seed;
  manifest.global_batch = config.train.global_batch;
  manifest.context = config.model.context;
}

void compare_program(const Manifest& manifest, parallel::Communicator& comm) {
  constexpr const char* kLibraries = "use the same libraries on all machines";
  const std::vector<Fact> facts{
      {"programs", manifest.program, "start the same program file on all machines"},
      {"kernels", manifest.kernels,
       "set ESPALIER_KERNELS to a table that all machines have (espalier info lists them)"},
      {"libraries", manifest.gemm, kLibraries},
      {"libraries", manifest.hdf5, kLibraries},
      {"libraries", manifest.mpi, kLibraries}};
  compare_facts(facts, comm);
}

void compare_inputs(const Manifest& manifest, const WeightSource& files,
                    parallel::Communicator& comm) {
  constexpr const char* kCopy = "copy the same files to all machines";
  const auto content = [](const std::string& file, std::string_view what) {
    return file.empty() ? file : io::fingerprint(std::vector<std::string>{file}, what);
  };
  std::string resume;
  std::string init;
  on_first_rank_first(comm, [&] {
    resume = content(files.resume ? files.resume->string() : "", "--resume");
    init = content(files.init, "--init");
  });
  const std::vector<Fact> facts{
      {"files of data.train", manifest.train_data, kCopy},
      {"files of data.validation", manifest.validation_data, kCopy},
      {"files of pruning.file", manifest.mask_file, kCopy},
      {"files of train.teacher", manifest.teacher, kCopy},
      {"checkpoints to resume from", resume, "use a run directory that all machines share"},
      {"files of --init", init, kCopy}};
  compare_facts(facts, comm);
}

std::vector<std::string> check_resume(const SavedRun& before, const io::Config& config,
                                      const Manifest& manifest,
                                      std::span<const std::string> accepted) {
  const std::vector<Changed> settings = changed_settings(before.config, config);
  std::vector<std::string> refused;
  std::vector<std::string> texts;
  std::vector<std::string> notes;
  for (const auto& [key, differences] : silent_differences(before, manifest, settings)) {
    const bool accepts = std::ranges::find(accepted, key) != accepted.end();
    if (accepts) {
      notes.push_back(fmt::format("accepted: {}", fmt::join(differences, "; ")));
    } else {
      refused.emplace_back(key);
      texts.insert(texts.end(), differences.begin(), differences.end());
    }
  }
  check(refused.empty(),
        "{} is of a run with other {}: {}; restore what changed, or accept it with "
        "--accept-changes {}",
        before.file, fmt::join(refused, ", "), fmt::join(texts, "; "), fmt::join(refused, ","));
  texts.clear();
  for (const Changed& setting : settings) {
    if (acceptable_change_of(setting).empty() && !listed(kWithoutEffect, setting.key)) {
      texts.push_back(setting.text);
    }
  }
  if (!texts.empty()) {
    notes.push_back(
        fmt::format("settings differ from the checkpoint's: {}", fmt::join(texts, "; ")));
  }
  if (before.manifest == nullptr) {
    notes.push_back(fmt::format(
        "{} has no manifest: whether data and machine are the same is unknown", before.file));
  } else if (const auto found = machine_differences(*before.manifest, manifest); !found.empty()) {
    notes.push_back(fmt::format("bits may differ from those of a run without a break: {}",
                                fmt::join(found, "; ")));
  }
  return notes;
}

void check_inputs(const std::filesystem::path& directory, const Manifest& inputs) {
  const std::filesystem::path file = directory / "manifest.json";
  if (!io::path_exists(file)) {
    return;
  }
  const Manifest was = manifest_of(io::read_text(file, "manifest"), file.string());
  const SilentDifferences found = different_inputs(was, inputs);
  if (!found.empty()) {
    const auto& [key, differences] = *found.begin();
    fail(
        "{} is of a run with other {}: {}; restore what changed, or choose another directory with "
        "--out",
        directory.string(), key, fmt::join(differences, "; "));
  }
}

bool timings_are_valid(const SavedRun& before, const io::Config& config, const Manifest& manifest,
                       Timed timed) {
  if (before.manifest == nullptr || before.manifest->kernels != manifest.kernels) {
    return false;
  }
  const std::vector<Changed> settings = changed_settings(before.config, config);
  if (timed == Timed::storages) {
    return std::ranges::none_of(
        settings, [](const Changed& setting) { return listed(kOfStorages, setting.key); });
  }
  const auto ranks = [](const Manifest& of) { return std::pair(of.ranks, of.ranks_per_machine); };
  return ranks(*before.manifest) == ranks(manifest) &&
         std::ranges::none_of(settings, [](const Changed& setting) {
           return listed(kOfCodecs, setting.key) && !listed(kNotOfCodecs, setting.key);
         });
}

}  // namespace espalier::train
