#include "src/cli/shared/weights_file.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "io/files/folders.h"
#include "io/files/raw_file.h"
#include "sparse/index/file_index.h"
#include "src/cli/shared/console.h"
#include "src/config/parse.h"
#include "src/core/cpus.h"
#include "src/hub/array_names.h"
#include "src/hub/masked_array.h"
#include "src/train/checkpoint/run_directory.h"
#include "src/train/checkpoint/snapshot.h"
#include "src/train/generation/generator.h"
#include "src/train/masks/mask_files.h"
#include "src/train/masks/pruner.h"
#include "src/train/run/source.h"
#include "src/train/stage/store_options.h"

namespace espalier::cli {
namespace {

/// The extents that depend on the data, from the shapes of a checkpoint's weights.
train::ProblemShape problem_from_shapes(const io::Config& config,
                                        const io::CheckpointReader& reader) {
  const std::string path = reader.path().string();
  auto matrix = [&](const std::string& name) {
    check(reader.has(name),
          "{} is a checkpoint of another model: it has no parameter \"{}\", which model.kind = "
          "\"{}\" has (compare with `espalier inspect`)",
          path, name, config.model.kind);
    const Shape shape = reader.info(name).shape;
    check(shape.rank() == 2,
          "{}: \"{}\" has shape {}, but model.kind = \"{}\" needs a matrix; use a file of that "
          "kind of network, or change model.kind in --config",
          path, name, shape.text(), config.model.kind);
    return shape;
  };
  return model::network_of(config.model).problem_of(config.model, matrix);
}

io::Config config_of(const WeightsFile& file, const ConfigSource& source) {
  if (!source.file.empty()) {
    return config::load(source.file, source.overrides);
  }
  check(!file.meta.config.empty(),
        "{} does not describe its network (it was pruned without a config); add --config "
        "CONFIG.toml",
        file.path.string());
  return config::parse_saved(file.meta.config, file.path.string() + " (config)", source.overrides);
}

/// The folders that relative paths in a checkpoint's config may begin in: the one above its run's
/// directory that run.out begins in, wherever the run was moved, and the working directory of the
/// training.
std::vector<fs::path> folders_of_training(const WeightsFile& file, const std::string& out) {
  std::vector<fs::path> folders;
  std::error_code missing;
  fs::path run = fs::weakly_canonical(fs::absolute(file.path), missing).parent_path();
  while (run.filename().string().starts_with("set-aside-")) {
    run = run.parent_path();
  }
  const fs::path place = fs::path(out).lexically_normal();
  if (run.filename() == "checkpoints" && place.is_relative()) {
    fs::path begin = run.parent_path();
    fs::path rest = place.has_filename() ? place : place.parent_path();
    while (!rest.empty() && begin.filename() == rest.filename()) {
      begin = begin.parent_path();
      rest = rest.parent_path();
    }
    if (rest.empty()) {
      folders.push_back(begin);
    }
  }
  if (const auto found = file.meta.extra.find(std::string(train::kWorkingDirectory));
      found != file.meta.extra.end()) {
    folders.emplace_back(found->second);
  }
  return folders;
}

/// Finds the data files that a checkpoint's config (`saved`) names, from any working directory.
/// Those that --config or --set names are relative to the present one.
void find_data(const io::Config& saved, WeightsFile& file) {
  io::DataConfig& data = file.config.data;
  file.data_of_run = data.train == saved.data.train && data.validation == saved.data.validation;
  if (!file.data_of_run) {
    return;
  }
  const std::vector<fs::path> folders = folders_of_training(file, saved.run.out);
  std::error_code unknown;
  const fs::path here = fs::current_path(unknown);
  for (std::vector<std::string>* files : {&data.train, &data.validation}) {
    for (std::string& name : *files) {
      const auto found = std::ranges::find_if(
          folders, [&](const fs::path& folder) { return fs::exists(folder / name, unknown); });
      if (fs::path(name).is_relative() && found != folders.end() && *found != here) {
        name = (*found / name).string();
      }
    }
  }
}

/// For a plain file: the vocabulary of kind "chars" comes from the data.
io::Vocabulary characters_of(const io::Config& config) {
  return config.data.kind == "bytes"   ? io::Vocabulary::all_bytes()
         : config.data.kind == "chars" ? train::open_source(config)->characters()
                                       : io::Vocabulary();
}

std::vector<sparse::ParameterSpec> parameters_of(const io::Config& config,
                                                 const train::ProblemShape& problem) {
  return model::parameters_of(model::make_layers(config.model, problem));
}

/// A stage laid out for the masks of the file.
train::Stage::Options options_for(const WeightsFile& file, const train::ProblemShape& problem,
                                  int64_t micro_batch, bool generation) {
  auto specs = parameters_of(file.config, problem);
  auto prunable = train::prunable_of(specs, file.config.pruning);
  return {.micro_batch = micro_batch,
          .training = false,
          .generation = generation,
          .masks = file.arrays ? train::masks_in(file.arrays, std::move(specs), std::move(prunable))
                               : train::masks_in(file.path, std::move(specs), std::move(prunable))};
}

int threads_of(const io::Config& config) {
  return config.run.threads > 0 ? static_cast<int>(config.run.threads) : usable_cpu_count();
}

/// As hub::match_arrays; says how to use a map where that is the fix.
hub::ArrayMatch match_of(const io::PlainReader& reader, const io::Config& config,
                         const std::string& config_file) {
  try {
    return hub::match_arrays(reader, config, {});
  } catch (const hub::MapFailure& failure) {
    fail(
        "{}\n  this command has no --map: import it first (espalier import {} -o OUT.h5 --config "
        "{} --map FILE), and name OUT.h5 here",
        failure.what(), reader.path().string(), config_file);
  }
}

WeightsFile open_plain(const fs::path& path, const ConfigSource& source) {
  check(!source.file.empty(),
        "{} does not describe its network (it is not an Espalier checkpoint); add --config "
        "CONFIG.toml",
        path.string());
  const auto reader = std::make_shared<io::PlainReader>(path);
  const io::Config config = config_for_type(source, DType::fp32);
  const hub::ArrayMatch match = match_of(*reader, config, source.file);
  reader->set_views(match.views);
  const DType type = reader->type(parameters_of(config, match.problem).front().name);
  WeightsFile file = described_weights(path, config_for_type(source, type), match.problem);
  file.arrays = reader;
  print_notes(*reader, match, file);
  return file;
}

}  // namespace

io::Config config_for_type(const ConfigSource& source, DType dtype) {
  io::Config defaults;
  defaults.train.dtype = name_of(dtype);
  return config::parse(io::read_text(source.file, "config", io::kMaxConfig), source.file,
                       source.overrides, defaults);
}

void print_notes(const io::PlainReader& reader, const hub::ArrayMatch& match,
                 const WeightsFile& file) {
  if (!match.names.empty()) {
    print_note("arrays are named as in " + match.names);
  }
  for (const std::string& text : match.notes) {
    print_note(text);
  }
  const std::vector<sparse::ParameterSpec> specs = parameters_of(file.config, file.problem);
  const std::vector<bool> prunable = train::prunable_of(specs, file.config.pruning);
  int64_t masked = 0;
  std::vector<std::string> zeros;
  for (size_t p = 0; p < specs.size(); ++p) {
    if (reader.has_mask(specs[p].name)) {
      ++masked;
      if (!prunable[p]) {
        zeros.push_back(specs[p].name);
      }
    }
  }
  if (masked > 0) {
    print_note(
        fmt::format("masks of {} parameter{} are in the file", masked, masked == 1 ? "" : "s"));
  }
  if (!zeros.empty()) {
    print_note(fmt::format(
        "masks of parameters that are not prunable became zeros, which training may change: {}",
        fmt::join(zeros, ", ")));
  }
}

WeightsFile open_weights(const fs::path& path, const ConfigSource& source) {
  if (!io::is_checkpoint(path)) {
    return open_plain(path, source);
  }
  const io::CheckpointReader reader(path);
  WeightsFile file{.path = path, .checkpoint = true, .meta = reader.meta()};
  const auto vocabulary = file.meta.extra.find("vocabulary");
  if (vocabulary != file.meta.extra.end()) {
    file.characters = io::Vocabulary::from_text(vocabulary->second);
  }
  file.config = config_of(file, source);
  file.problem = problem_from_shapes(file.config, reader);
  if (!file.meta.config.empty()) {
    const io::Config saved = config::parse_saved(file.meta.config, path.string() + " (config)");
    train::check_same_model(file.config, saved, path.string());
    if (source.file.empty()) {
      find_data(saved, file);
    }
  }
  return file;
}

WeightsFile described_weights(const fs::path& path, const io::Config& config,
                              const train::ProblemShape& problem) {
  WeightsFile file{.path = path, .config = config, .problem = problem};
  file.characters = characters_of(file.config);
  check(file.characters.size() == 0 || file.characters.size() == file.problem.classes,
        "{} belongs to a network with {} characters, but the data of the config hold {}; name the "
        "data that the network was trained with",
        path.string(), file.problem.classes, file.characters.size());
  return file;
}

Weights::Weights(const WeightsFile& file)
    : stream(arena, kernels::usable_threads(threads_of(file.config))) {
  sparse::StoreOptions options = train::store_options(file.config, false);
  options.dtype = options.gradient = DType::fp32;
  // This storage holds any mask.
  options.storage = [](const std::string&) { return sparse::Storage::expanded; };
  store = std::make_unique<sparse::Store>(stream, kernels::by_name("cpu"),
                                          parameters_of(file.config, file.problem), options);
  prunable = train::prunable_of(*store, file.config.pruning);
}

Inference::Inference(const WeightsFile& file, const train::ProblemShape& problem,
                     int64_t micro_batch, bool generation)
    : backend(kernels::by_name(file.config.run.backend), threads_of(file.config)),
      stage(file.config, problem, backend.stream(), backend.kernels(),
            options_for(file, problem, micro_batch, generation)) {
  if (generation) {
    train::choose_generation_storages(file.config, stage.store());
  }
  const std::vector<bool> prunable = train::prunable_of(stage.store(), file.config.pruning);
  if (file.arrays) {
    train::load_plain(file.arrays, stage.store(), prunable);
  } else {
    train::load_weights(file.path, stage.store(), prunable);
  }
}

std::map<std::string, DType> types_in(const fs::path& checkpoint, const sparse::Store& store) {
  const io::CheckpointReader reader(checkpoint);
  std::map<std::string, DType> types;
  for (const sparse::Parameter& parameter : store.parameters()) {
    types[parameter.spec.name] = reader.info(parameter.spec.name).dtype;
  }
  return types;
}

std::map<std::string, DType> types_in(const io::PlainReader& reader, const sparse::Store& store) {
  std::map<std::string, DType> types;
  for (const sparse::Parameter& parameter : store.parameters()) {
    types[parameter.spec.name] = reader.type(parameter.spec.name);
  }
  return types;
}

void write_weights(const fs::path& path, sparse::Store& store, const std::string& config,
                   const io::Vocabulary& characters,
                   const std::map<std::string, std::string>& texts,
                   const std::map<std::string, DType>& types,
                   const std::function<void(int64_t done)>& on_progress, std::string_view advice) {
  io::CheckpointWriter writer(path);
  io::CheckpointMeta meta{.config = config, .extra = texts};
  if (characters.size() > 0) {
    meta.extra["vocabulary"] = characters.text();
  }
  writer.write_meta(meta);
  int64_t done = 0;
  for (const sparse::Parameter& parameter : store.parameters()) {
    const std::vector<float> values = store.values(parameter);
    const sparse::FileIndex index = sparse::to_file(parameter.index);
    const auto type = types.find(parameter.spec.name);
    with_number(type == types.end() ? DType::fp32 : type->second, [&]<class Number>(Number) {
      std::vector<Number> numbers(values.size());
      std::ranges::transform(values, numbers.begin(),
                             [](float x) { return from_float<Number>(x); });
      const Tensor stored(numbers.data(), dtype_of<Number>(), Shape{parameter.kept()});
      hub::check_rounded(stored, parameter.spec.name, advice);
      writer.write_parameter({.name = parameter.spec.name,
                              .shape = parameter.spec.shape,
                              .encoding = std::string(index.encoding.name),
                              .nnz = parameter.kept(),
                              .values = stored,
                              .index = index.bytes});
    });
    done += parameter.size();
    if (on_progress) {
      on_progress(done);
    }
  }
  writer.commit();
}

}  // namespace espalier::cli
