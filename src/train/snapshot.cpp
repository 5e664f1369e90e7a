#include "src/train/snapshot.h"

#include <algorithm>
#include <array>
#include <memory>
#include <optional>

#include "io/plain_hdf5.h"
#include "parallel/collectives.h"
#include "pruning/pruning.h"
#include "sparse/index_file.h"
#include "src/train/agreement.h"

namespace espalier::train {
namespace {

constexpr std::array<const char*, 2> kMoments{"moment1", "moment2"};

/// What optimizers keep of one parameter, whole.
struct WholeState {
  std::vector<float> master;
  std::vector<std::vector<float>> moments;
};

/// Collective when the store is sharded.
WholeState whole_state(sparse::Store& store, const sparse::Parameter& parameter) {
  WholeState state{.master = store.master(parameter), .moments = {}};
  for (int which = 0; which < store.options().moments; ++which) {
    state.moments.push_back(store.moment(parameter, which));
  }
  return state;
}

Tensor view_of(std::vector<float>& values) {
  return Tensor(values.data(), DType::fp32, Shape{static_cast<int64_t>(values.size())});
}

void write_parameter(io::CheckpointWriter& writer, const sparse::Store& store,
                     const sparse::Parameter& parameter, WholeState& state) {
  const sparse::FileIndex index = sparse::to_file(parameter.index, store.options().file_index);
  // The values that compute reads: vectors are exact; of the others in bf16 the master copy is more
  // exact and stands in /optim.
  const bool exact = parameter.spec.shape.rank() == 1;
  writer.parameter({.name = parameter.spec.name,
                    .shape = parameter.spec.shape,
                    .encoding = std::string(sparse::name_of(index.encoding)),
                    .nnz = parameter.kept(),
                    .values = exact ? view_of(state.master) : store.part(store.value(), parameter),
                    .index = index.bytes});
  writer.optimizer(parameter.spec.name, "master", view_of(state.master));
  for (size_t which = 0; which < state.moments.size(); ++which) {
    writer.optimizer(parameter.spec.name, kMoments.at(which), view_of(state.moments[which]));
  }
}

io::CheckpointMeta meta_of(const Progress& progress) {
  io::CheckpointMeta meta{.step = progress.step,
                          .data_cursor = progress.step * progress.config.train.global_batch,
                          .rng = progress.config.train.seed,
                          .config = io::to_toml(progress.config),
                          .extra = {}};
  if (progress.characters.size() > 0) {
    meta.extra["vocabulary"] = progress.characters.text();
  }
  return meta;
}

void check_same_parameters(const io::CheckpointReader& reader,
                           std::span<const sparse::ParameterSpec> specs) {
  const std::string file = reader.path().string();
  for (const sparse::ParameterSpec& spec : specs) {
    check(reader.has(spec.name),
          "{} is a checkpoint of another model: it has no parameter \"{}\" (compare [model] with "
          "`espalier inspect`)",
          file, spec.name);
    const Shape shape = reader.info(spec.name).shape;
    check(shape == spec.shape,
          "{} is a checkpoint of another model: \"{}\" has shape {} there and {} here (compare "
          "[model] with `espalier inspect`)",
          file, spec.name, shape.text(), spec.shape.text());
  }
  check(reader.names().size() == specs.size(),
        "{} is a checkpoint of another model: it has {} parameters, this one has {} (compare "
        "[model] with `espalier inspect`)",
        file, reader.names().size(), specs.size());
}

void check_same_parameters(const io::PlainReader& reader, const std::filesystem::path& path,
                           std::span<const sparse::ParameterSpec> specs) {
  for (const sparse::ParameterSpec& spec : specs) {
    check(reader.has(spec.name),
          "{} has no dataset for parameter \"{}\"; name datasets as `espalier inspect` shows them "
          "('/' counts as '.')",
          path.string(), spec.name);
    check(reader.shape(spec.name) == spec.shape,
          "{}: dataset \"{}\" has shape {}, the model needs {}", path.string(), spec.name,
          reader.shape(spec.name).text(), spec.shape.text());
  }
}

sparse::Mask mask_of_zeros(const io::PlainReader& reader, const std::string& name) {
  const std::vector<float> values = reader.read(name);
  const std::vector<pruning::DenseValues> one{{.name = name, .values = values}};
  return std::move(pruning::masks_from_dense_zeros(one).front());
}

/// Gives the store these masks, unless it has them: moving takes time and memory.
void take_masks(sparse::Store& store, const MaskOf& masks) {
  const size_t count = store.parameters().size();
  bool same = true;
  for (size_t p = 0; p < count && same; ++p) {
    same = masks(p) == store.parameters()[p].index.mask();
  }
  if (same) {
    return;
  }
  std::vector<sparse::Mask> all;
  for (size_t p = 0; p < count; ++p) {
    all.push_back(masks(p));
  }
  store.restart(all);
}

}  // namespace

void save(const std::filesystem::path& path, sparse::Store& store, const Progress& progress,
          parallel::Communicator& comm) {
  std::string error;
  auto attempt = [&](const auto& action) {
    if (comm.rank() == 0 && error.empty()) {
      try {
        action();
      } catch (const Failure& failure) {
        error = failure.what();  // told to all ranks below
      }
    }
  };
  std::optional<io::CheckpointWriter> writer;
  attempt([&] {
    writer.emplace(path);
    writer->meta(meta_of(progress));
  });
  for (const sparse::Parameter& parameter : store.parameters()) {
    WholeState state;
    if (comm.rank() == 0 || store.options().sharding) {
      state = whole_state(store, parameter);
    }
    attempt([&] { write_parameter(*writer, store, parameter, state); });
    parallel::barrier(comm);
  }
  attempt([&] { writer->commit(); });
  writer.reset();
  agree(comm, error);
}

Progress progress_of(const io::CheckpointReader& reader) {
  const io::CheckpointMeta meta = reader.meta();
  check(!meta.config.empty(),
        "{} holds weights without a config, it cannot be resumed: start from it with --init",
        reader.path().string());
  Progress progress{.step = meta.step,
                    .config = io::parse_config(meta.config, reader.path().string() + " (config)"),
                    .characters = {}};
  const auto vocabulary = meta.extra.find("vocabulary");
  if (vocabulary != meta.extra.end()) {
    progress.characters = io::Vocabulary::from_text(vocabulary->second);
  }
  return progress;
}

sparse::Mask read_mask(const io::CheckpointReader& reader, const std::string& name) {
  const io::ParameterInfo info = reader.info(name);
  const auto encoding = sparse::encoding_by_name(info.encoding);
  if (encoding == sparse::Encoding::full) {
    return sparse::Mask(info.shape.count());
  }
  const std::vector<uint8_t> bytes = reader.index(name);
  try {
    return sparse::mask_from_file(encoding, info.shape.count(), info.nnz, bytes);
  } catch (const Failure& failure) {
    fail("{}: index of \"{}\": {}; the file is damaged, use another checkpoint",
         reader.path().string(), name, failure.what());
  }
}

std::vector<sparse::ParameterSpec> specs_of(const sparse::Store& store) {
  std::vector<sparse::ParameterSpec> specs;
  for (const sparse::Parameter& parameter : store.parameters()) {
    specs.push_back(parameter.spec);
  }
  return specs;
}

MaskOf masks_in(const std::filesystem::path& path, std::vector<sparse::ParameterSpec> specs,
                std::vector<bool> prunable) {
  if (io::is_checkpoint(path)) {
    const auto reader = std::make_shared<io::CheckpointReader>(path);
    check_same_parameters(*reader, specs);
    return
        [reader, specs = std::move(specs)](size_t p) { return read_mask(*reader, specs[p].name); };
  }
  const auto reader = std::make_shared<io::PlainReader>(path);
  check_same_parameters(*reader, path, specs);
  return [reader, specs = std::move(specs), prunable = std::move(prunable)](size_t p) {
    return prunable[p] ? mask_of_zeros(*reader, specs[p].name)
                       : sparse::Mask(specs[p].shape.count());
  };
}

void load(const io::CheckpointReader& reader, sparse::Store& store, bool optimizer) {
  check_same_parameters(reader, specs_of(store));
  take_masks(store, [&](size_t p) { return read_mask(reader, store.parameters()[p].spec.name); });
  for (sparse::Parameter& parameter : store.parameters()) {
    const std::string& name = parameter.spec.name;
    std::vector<float> values(static_cast<size_t>(parameter.kept()));
    const Tensor view(values.data(), DType::fp32, Shape{parameter.kept()});
    // The master copy is the exact value where there is one.
    if (reader.has_optimizer(name, "master")) {
      reader.optimizer(name, "master", view);
    } else {
      reader.values(name, view);
    }
    store.set_values(parameter, values);
    if (!optimizer) {
      continue;
    }
    for (int which = 0; which < store.options().moments; ++which) {
      const char* kind = kMoments.at(static_cast<size_t>(which));
      check(reader.has_optimizer(name, kind),
            "{} holds no {} of \"{}\": it cannot be resumed; start from its weights with --init",
            reader.path().string(), kind, name);
      reader.optimizer(name, kind, view);
      store.set_moment(parameter, which, values);
    }
  }
}

void load_plain(const std::filesystem::path& path, sparse::Store& store,
                const std::vector<bool>& prunable) {
  take_masks(store, masks_in(path, specs_of(store), prunable));
  const io::PlainReader reader(path);
  for (sparse::Parameter& parameter : store.parameters()) {
    const std::vector<float> values = reader.read(parameter.spec.name);
    std::vector<float> packed;
    for (const int32_t position : parameter.index.positions()) {
      packed.push_back(values[static_cast<size_t>(position)]);
    }
    store.set_values(parameter, packed);
  }
}

void load_weights(const std::filesystem::path& path, sparse::Store& store,
                  const std::vector<bool>& prunable) {
  if (io::is_checkpoint(path)) {
    load(io::CheckpointReader(path), store, false);
  } else {
    load_plain(path, store, prunable);
  }
}

}  // namespace espalier::train
