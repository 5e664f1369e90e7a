#include "src/cli/weights_file.h"

#include <algorithm>
#include <optional>
#include <string_view>

#include "io/checkpoint/plain_hdf5.h"
#include "io/files/folders.h"
#include "sparse/index/file_index.h"
#include "src/config/parse.h"
#include "src/core/cpus.h"
#include "src/hub/array_match.h"
#include "src/train/generation/generator.h"
#include "src/train/masks/mask_files.h"
#include "src/train/masks/pruner.h"
#include "src/train/run/run_directory.h"
#include "src/train/run/snapshot.h"
#include "src/train/run/source.h"

namespace espalier::cli {
namespace {

/// The extents that depend on the data, from the shapes of the weights.
template <class ShapeOf>
train::ProblemShape problem_from_shapes(const io::Config& config, const fs::path& path,
                                        const ShapeOf& shape_of) {
  auto matrix = [&](const std::string& name) {
    const Shape shape = shape_of(name);
    check(shape.rank() == 2,
          "{}: \"{}\" has shape {}, but model.kind = \"{}\" needs a matrix; use a file of that "
          "kind of network, or change model.kind in --config",
          path.string(), name, shape.text(), config.model.kind);
    return shape;
  };
  return model::network_of(config.model).problem_of(config.model, matrix);
}

io::Config config_of(const WeightsFile& file, const ConfigSource& source) {
  if (!source.file.empty()) {
    return config::load(source.file, source.overrides);
  }
  check(!file.meta.config.empty(),
        "{} does not describe its network ({}); add --config CONFIG.toml", file.path.string(),
        file.checkpoint ? "it was pruned without a config" : "it is not an Espalier checkpoint");
  return config::parse(file.meta.config, file.path.string() + " (config)", source.overrides);
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
          .masks = train::masks_in(file.path, std::move(specs), std::move(prunable))};
}

int threads_of(const io::Config& config) {
  return config.run.threads > 0 ? static_cast<int>(config.run.threads) : usable_cpu_count();
}

/// Of a run directory; commands may write its report.html.
bool is_file_of_run(const std::string& name) {
  return name == ".lock" || name == "supervise.jsonl" ||
         std::ranges::find(train::kRunFiles, name) != train::kRunFiles.end();
}

bool is_run(const fs::path& folder) {
  return io::path_exists(folder / "manifest.json") || io::path_exists(folder / "config.toml");
}

/// The run of a folder RUN/checkpoints or RUN/checkpoints/set-aside-N.
std::optional<fs::path> run_with_checkpoints(fs::path folder) {
  if (folder.filename().string().starts_with("set-aside-")) {
    folder = folder.parent_path();
  }
  const fs::path run = folder.parent_path();
  return folder.filename() == "checkpoints" && is_run(run) ? std::optional(run) : std::nullopt;
}

}  // namespace

WeightsFile open_weights(const fs::path& path, const ConfigSource& source) {
  WeightsFile file{.path = path, .checkpoint = io::is_checkpoint(path)};
  if (file.checkpoint) {
    const io::CheckpointReader reader(path);
    file.meta = reader.meta();
    const auto vocabulary = file.meta.extra.find("vocabulary");
    if (vocabulary != file.meta.extra.end()) {
      file.characters = io::Vocabulary::from_text(vocabulary->second);
    }
    file.config = config_of(file, source);
    file.problem = problem_from_shapes(file.config, path, [&](const std::string& name) {
      check(reader.has(name),
            "{} is a checkpoint of another model: it has no parameter \"{}\", which model.kind = "
            "\"{}\" has (compare with `espalier inspect`)",
            path.string(), name, file.config.model.kind);
      return reader.info(name).shape;
    });
    if (!file.meta.config.empty()) {
      train::check_same_model(
          file.config, config::parse(file.meta.config, path.string() + " (config)"), path.string());
    }
    return file;
  }
  file.config = config_of(file, source);
  const io::PlainReader reader(path);
  file.problem = problem_from_shapes(file.config, path, [&](const std::string& name) {
    if (!reader.has(name)) {
      fail(
          "{} has no dataset \"{}\", which the model in --config has; `espalier import` translates "
          "names (--map), or correct the config:{}",
          path.string(), name,
          io::expected_and_found(hub::expected_names(file.config), reader.named_shapes()));
    }
    return reader.shape(name);
  });
  train::check_all_layers(reader, path, parameters_of(file.config, file.problem));
  return described_weights(path, file.config, file.problem);
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
  options.fp8 = false;
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
  train::load_weights(file.path, stage.store(),
                      train::prunable_of(stage.store(), file.config.pruning));
}

void check_output(const fs::path& out, std::span<const std::string> inputs) {
  io::check_replaceable(out);
  std::error_code missing;
  const fs::path written = fs::weakly_canonical(fs::absolute(out), missing);  // "new/../in" is "in"
  for (const std::string& in : inputs) {
    check(!fs::equivalent(in, written, missing),
          "{} is the input {}, which would be replaced; name another output file with -o",
          out.string(), in);
  }
  const fs::path folder = written.parent_path();
  const auto run = run_with_checkpoints(folder);
  check(!run || !io::checkpoint_step(out),
        "{} would be a checkpoint of the run {}, but without the optimizer's state: it could not "
        "be resumed; name another output file with -o",
        out.string(), run ? run->string() : "");
  check(!is_run(folder) || !is_file_of_run(out.filename().string()),
        "{} is a file of the run {}, which would be replaced; name another output file with -o",
        out.string(), folder.string());
}

std::map<std::string, DType> types_in(const fs::path& path) {
  std::map<std::string, DType> types;
  if (io::is_checkpoint(path)) {
    const io::CheckpointReader reader(path);
    for (const std::string& name : reader.names()) {
      types[name] = reader.info(name).dtype;
    }
  }
  return types;
}

void write_weights(const fs::path& path, sparse::Store& store, const std::string& config,
                   const io::Vocabulary& characters,
                   const std::map<std::string, std::string>& texts,
                   const std::map<std::string, DType>& types) {
  io::CheckpointWriter writer(path);
  io::CheckpointMeta meta{.config = config, .extra = texts};
  if (characters.size() > 0) {
    meta.extra["vocabulary"] = characters.text();
  }
  writer.write_meta(meta);
  for (const sparse::Parameter& parameter : store.parameters()) {
    const std::vector<float> values = store.values(parameter);
    const sparse::FileIndex index = sparse::to_file(parameter.index, store.options().file_index);
    const auto type = types.find(parameter.spec.name);
    with_number(type == types.end() ? DType::fp32 : type->second, [&]<class Number>(Number) {
      std::vector<Number> numbers(values.size());
      std::ranges::transform(values, numbers.begin(),
                             [](float x) { return from_float<Number>(x); });
      writer.write_parameter(
          {.name = parameter.spec.name,
           .shape = parameter.spec.shape,
           .encoding = std::string(index.encoding.name),
           .nnz = parameter.kept(),
           .values = Tensor(numbers.data(), dtype_of<Number>(), Shape{parameter.kept()}),
           .index = index.bytes});
    });
  }
  writer.commit();
}

}  // namespace espalier::cli
