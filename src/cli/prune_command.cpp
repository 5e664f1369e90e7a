// espalier prune IN.h5 -o OUT.h5: computes masks for existing weights, without training.
//
// IN is a checkpoint or a plain HDF5 file of dense arrays. Prunable arrays:
// - with a config: those that its network marks;
// - without a config (plain file only): every matrix whose name does not contain embed, wte, wpe,
//   head, classifier, norm, bias or mask.
// OUT holds weights and masks, no optimizer state, step 0.
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <optional>

#include "io/checkpoint/plain_hdf5.h"
#include "pruning/plan.h"
#include "pruning/registry.h"
#include "pruning/work.h"
#include "src/cli/commands.h"
#include "src/cli/shared/console.h"
#include "src/cli/shared/options.h"
#include "src/cli/shared/paths.h"
#include "src/cli/shared/text_codec.h"
#include "src/cli/shared/weights_file.h"
#include "src/config/dump.h"
#include "src/config/parse.h"
#include "src/train/checkpoint/snapshot.h"
#include "src/train/masks/pruner.h"
#include "src/train/run/calibration.h"

namespace espalier::cli {
namespace {

struct PruneArguments {
  std::string in;
  std::string out;
  ConfigSource config;
  std::string method;
  std::optional<double> sparsity;
  std::string scope;
  std::vector<std::string> exclude;
  int64_t seed = -1;
  std::vector<std::string> calibration;
  int64_t samples = 128;
  const CLI::App* command = nullptr;
};

/// The methods that this command can do.
std::string methods_without_training() {
  std::vector<std::string_view> names;
  for (const pruning::Method* method : pruning::methods()) {
    if (pruning::works_at_rest(*method)) {
      names.push_back(method->name);
    }
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

/// The limits of the config hold for options, too.
void check_settings(const io::PruningConfig& pruning) {
  const io::Config config{.pruning = pruning};
  for (const config::Field& field : config::fields()) {
    if (field.section == "pruning") {
      config::check_limits(field, config, "prune");
    }
  }
}

/// With pruning.method from its text, and without the steps of the run.
io::PruningConfig with_method(io::PruningConfig pruning, const std::string& text) {
  io::Config config{.pruning = std::move(pruning)};
  config::set_text(config, "pruning.method", text, "--method");
  config.pruning.at_step = config.pruning.from_step = config.pruning.to_step = -1;
  return config.pruning;
}

/// Applies --sparsity and the other options to the config's [pruning].
io::PruningConfig settings_from(const PruneArguments& arguments, io::PruningConfig config) {
  for (const std::string& set : arguments.config.overrides) {
    const std::string key = set.substr(0, set.find('='));
    if (key == "pruning.method" || key == "pruning.sparsity") {
      throw Usage(fmt::format("--set {} has no effect here: write --{}", key,
                              key.substr(sizeof("pruning"))));
    }
  }
  const std::string name = arguments.method.substr(0, arguments.method.find(':'));
  check(find_or_null(pruning::methods(), name) != nullptr,
        "unknown pruning method \"{}\": use one of {}", name, methods_without_training());
  const pruning::Method& method = pruning::method_by_name(name);
  check(pruning::works_at_rest(method),
        "pruning method \"{}\" needs training; use it in a config, or one of {} here", method.name,
        methods_without_training());
  config = with_method(std::move(config), arguments.method);
  if (method.check_config != nullptr) {
    method.check_config(config);
  }
  const auto reads = [&](const char* key) { return pruning::reads_key(config, key); };
  check_used(
      *arguments.command,
      {{"--sparsity", reads("sparsity"), "with methods other than nm, which keeps n of every m"},
       {"--scope", reads("scope"), "with methods whose elements compete across layers"},
       {"--seed", reads("seed"), "with method random"},
       {"--calibration", reads("calibration"), "with methods that read inputs: wanda, sparsegpt"},
       {"--samples", reads("calibration"), "with methods that read inputs: wanda, sparsegpt"}});
  if (reads("calibration") && arguments.calibration.empty()) {
    throw Usage(
        fmt::format("--calibration is missing: text like the training data, whose "
                    "activations method \"{}\" reads",
                    method.name));
  }
  if (!arguments.sparsity && reads("sparsity")) {
    throw Usage("--sparsity is missing: the share of zeros to reach, e.g. --sparsity 0.9");
  }
  config.sparsity = arguments.sparsity.value_or(0);
  if (!arguments.scope.empty()) {
    config.scope = arguments.scope;
  }
  config.exclude.insert(config.exclude.end(), arguments.exclude.begin(), arguments.exclude.end());
  check_settings(config);
  return config;
}

/// Whether a matrix is prunable, by its name alone.
bool looks_prunable(const std::string& name) {
  constexpr std::array<std::string_view, 8> kKept{"embed", "head", "classifier", "norm",
                                                  "bias",  "wte",  "wpe",        "mask"};
  std::string lower = name;
  std::ranges::transform(lower, lower.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return std::ranges::none_of(
      kKept, [&](std::string_view word) { return lower.find(word) != std::string::npos; });
}

/// Names the datasets that are no arrays of floats. Throws Failure if one looks like weights, which
/// the result would lack: a link, floats of more dimensions than a checkpoint can have, or a matrix
/// of small integers or unknown numbers.
void check_skipped(const io::PlainReader& reader) {
  for (const auto& [name, array] : reader.unusable()) {
    const bool unknown =
        array.type == io::hdf5::Type::other || array.type == io::hdf5::Type::other_integer;
    const bool matrix = array.extents.size() >= 2 && unknown && looks_prunable(name);
    const bool too_deep = array.extents.size() > Shape::kMaxRank && io::hdf5::is_float(array.type);
    check(!array.link && !matrix && !too_deep,
          "{}: {} cannot be used ({}), and the result would lack it; {}, remove it, or name the "
          "network with --config CONFIG.toml, which leaves out what the network does not need",
          reader.path().string(), name, array.why, array.fix);
  }
  if (!reader.skipped().empty()) {
    print_note(fmt::format("skipped, no weights: {}", hub::first_of(reader.skipped())));
  }
}

/// The arrays of a plain file, for any network.
std::unique_ptr<Weights> weights_without_config(const io::PlainReader& reader) {
  for (const std::string& mask : reader.loose_masks()) {
    fail(
        "{}: {} is named like a mask, and no array has its name; name it after its weight "
        "(NAME_mask, NAME.mask or masks.NAME), or remove it",
        reader.path().string(), mask);
  }
  check_skipped(reader);
  std::vector<sparse::ParameterSpec> specs;
  for (const std::string& name : reader.names()) {
    const Shape shape = reader.shape(name);
    specs.push_back(
        {.name = name, .shape = shape, .prunable = shape.rank() == 2 && looks_prunable(name)});
  }
  check(!specs.empty(),
        "{} holds no floating-point array; name a checkpoint or an HDF5 file of weights",
        reader.path().string());
  auto weights = std::make_unique<Weights>();
  weights->store =
      std::make_unique<sparse::Store>(weights->stream, kernels::by_name("cpu"), std::move(specs),
                                      sparse::StoreOptions{.training = false});
  return weights;
}

struct Loaded {
  std::unique_ptr<Weights> weights;
  std::shared_ptr<const io::PlainReader> arrays{};  ///< as WeightsFile has them
  io::Config config;
  std::string config_text;  ///< empty: unknown
  io::Vocabulary characters;
  train::ProblemShape problem;
  std::map<std::string, std::string> texts;  ///< io::texts_of_model
  std::optional<io::Tokenizer> tokenizer;    ///< of texts of --calibration
};

Loaded load(const PruneArguments& arguments) {
  Loaded loaded;
  if (!io::is_checkpoint(arguments.in) && arguments.config.file.empty()) {
    if (!arguments.config.overrides.empty()) {
      throw Usage("--set changes a config, and none is given; add --config CONFIG.toml");
    }
    loaded.arrays = std::make_shared<io::PlainReader>(arguments.in);
    loaded.weights = weights_without_config(*loaded.arrays);
  } else {
    const WeightsFile file = open_weights(arguments.in, arguments.config);
    loaded.weights = std::make_unique<Weights>(file);
    loaded.arrays = file.arrays;
    loaded.config = file.config;
    loaded.config_text = config::to_toml(file.config);
    loaded.characters = file.characters;
    loaded.problem = file.problem;
    loaded.texts = io::texts_of_model(file.meta);
    if (const auto found = file.meta.extra.find(std::string(train::kWorkingDirectory));
        found != file.meta.extra.end()) {
      loaded.texts.insert(*found);
    }
    if (!std::ranges::all_of(arguments.calibration, io::is_token_file)) {
      loaded.tokenizer = tokenizer_for(file);
    }
  }
  return loaded;
}

std::string density_table(sparse::Store& store, const std::vector<bool>& prunable) {
  Rows rows{{"parameter", "elements", "kept", "density"}};
  const auto add = [&rows](const std::string& name, int64_t size, int64_t kept) {
    const double density = size == 0 ? 1 : static_cast<double>(kept) / static_cast<double>(size);
    rows.push_back({name, grouped(size), grouped(kept), percent(density)});
  };
  int64_t size = 0;
  int64_t kept = 0;
  for (size_t p = 0; p < store.parameters().size(); ++p) {
    const sparse::Parameter& parameter = store.parameters()[p];
    if (prunable[p]) {
      add(parameter.spec.name, parameter.size(), parameter.kept());
      size += parameter.size();
      kept += parameter.kept();
    }
  }
  add("all prunable", size, kept);
  add("whole network", store.total_size(), store.total_kept());
  return table(rows);
}

pruning::Result masks_for(const PruneArguments& arguments, const Loaded& loaded,
                          const std::vector<bool>& prunable, const pruning::Settings& settings) {
  sparse::Store& store = *loaded.weights->store;
  if (arguments.calibration.empty()) {
    return pruning::prune({.store = store, .prunable = prunable}, settings);
  }
  check(!loaded.config_text.empty(),
        "{} does not describe its network, and method \"{}\" runs it; add --config CONFIG.toml",
        arguments.in, settings.method);
  const train::Calibration data = train::open_calibration(
      loaded.config, loaded.problem, loaded.characters,
      loaded.tokenizer ? &*loaded.tokenizer : nullptr, arguments.calibration, arguments.samples);
  if (data.samples < arguments.samples) {
    print_note(fmt::format("the calibration data hold {} samples; all are used", data.samples));
  }
  return train::prune_by_inputs(loaded.config, loaded.problem, store, kernels::by_name("cpu"),
                                prunable, settings, data,
                                [progress = std::make_shared<WorkProgress>("prune")](
                                    int64_t done, int64_t total) { progress->show(done, total); });
}

int prune(const PruneArguments& arguments) {
  check_output(arguments.out, std::array{arguments.in, arguments.config.file});
  check_output(arguments.out, arguments.calibration);
  Loaded loaded = load(arguments);
  check_output(arguments.out, loaded.config.data.train);
  const io::PruningConfig config = settings_from(arguments, loaded.config.pruning);
  sparse::Store& store = *loaded.weights->store;
  const std::vector<bool> prunable = train::prunable_of(store, config);
  check(std::ranges::find(prunable, true) != prunable.end(),
        "{} holds no prunable matrix (embeddings, heads, norms and biases are not pruned); rename "
        "the matrices of its linear layers, or describe the network with --config CONFIG.toml",
        arguments.in);
  if (loaded.arrays) {
    train::load_plain(loaded.arrays, store, prunable);
  } else {
    train::load_weights(arguments.in, store, prunable);
  }
  const auto seed =
      static_cast<uint64_t>(arguments.seed >= 0 ? arguments.seed : loaded.config.train.seed);
  const pruning::Result result =
      masks_for(arguments, loaded, prunable, pruning::settings_of(config, seed));
  for (const std::string& warning : result.warnings) {
    print_note("pruning: " + warning);
  }
  store.set_masks(result.masks);
  write_weights(
      arguments.out, store, loaded.config_text, loaded.characters, loaded.texts,
      loaded.arrays ? types_in(*loaded.arrays, store) : types_in(arguments.in, store), {},
      "choose a --method that changes no values, such as wanda, or store them as fp32 in the "
      "input");
  print(density_table(store, prunable));
  print_note(fmt::format("wrote {}: weights and masks, no optimizer; train from it with --init",
                         arguments.out));
  return 0;
}

}  // namespace

void register_prune(CLI::App& app, Action& chosen) {
  auto arguments = std::make_shared<PruneArguments>();
  CLI::App* command = app.add_subcommand("prune", "Prune a checkpoint or a plain HDF5 file");
  command->footer(
      "The result holds weights and masks, no optimizer state, step 0: `train --init` starts from "
      "it.\n"
      "Prunes the matrices that the network marks (GPT: all linear layers of the blocks). Of a "
      "plain\n"
      "file without --config: matrices whose name does not hold embed, head, classifier, norm, "
      "bias, wte,\n"
      "wpe or mask.");
  command->add_option("file", arguments->in, "checkpoint or plain HDF5")
      ->transform(checkpoint_path)
      ->required();
  command->add_option("-o,--out", arguments->out, "the pruned checkpoint")->required();
  command
      ->add_option(
          "--method", arguments->method,
          methods_without_training() + "; as pruning.method, with options: nm:2:4, block:16")
      ->required();
  command->add_option("--sparsity", arguments->sparsity,
                      "zeros / prunable elements, 0 <= S < 1 (not for nm: 1 - n/m)");
  command->add_option("--scope", arguments->scope, "where elements compete: global or layer");
  command->add_option("--exclude", arguments->exclude, "glob of parameter names left as they are")
      ->allow_extra_args(false);
  for (const auto& [removed, instead] : {std::pair{"--n", "nm:N:M"}, std::pair{"--m", "nm:N:M"},
                                         std::pair{"--block", "block:EDGE"}}) {
    command
        ->add_option_function<std::string>(
            removed,
            [removed = removed, instead = instead](const std::string&) {
              throw Usage(fmt::format("{} was removed: write --method {}", removed, instead));
            })
        ->group("");  // not in --help
  }
  option(*command, "--seed", arguments->seed, "of method random (the config's train.seed)",
         CLI::NonNegativeNumber);
  command
      ->add_option("--calibration", arguments->calibration,
                   "of methods wanda, sparsegpt: a file like the training data, or a text; may be "
                   "repeated")
      ->allow_extra_args(false);
  option(*command, "--samples", arguments->samples, "contexts or images drawn from --calibration",
         CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--config", arguments->config.file, "TOML file, instead of the checkpoint's");
  command->add_option("--set", arguments->config.overrides, "section.key=value")
      ->allow_extra_args(false);
  arguments->command = command;
  command->callback([arguments, &chosen] { chosen = [arguments] { return prune(*arguments); }; });
}

}  // namespace espalier::cli
