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

/// One parameter as it is written.
struct Saved {
  sparse::FileIndex index;
  int64_t nnz = 0;
  Tensor values;  ///< of the store, of `state`, or `memory`
  WholeState state;
  std::vector<std::byte> memory;
};

Saved saved_of(const sparse::Store& store, const sparse::Parameter& parameter, WholeState state) {
  Saved saved{.index = sparse::to_file(parameter.index, store.options().file_index),
              .nnz = parameter.kept(),
              .values = store.part(store.value(), parameter),
              .state = std::move(state),
              .memory = {}};
  // The values that compute reads: vectors are exact; of the others in bf16 the master copy is more
  // exact and stands in /optim.
  if (parameter.spec.shape.rank() == 1) {
    saved.values = view_of(saved.state.master);
  }
  return saved;
}

void write_parameter(io::CheckpointWriter& writer, const sparse::ParameterSpec& spec,
                     Saved& saved) {
  writer.parameter({.name = spec.name,
                    .shape = spec.shape,
                    .encoding = std::string(sparse::name_of(saved.index.encoding)),
                    .nnz = saved.nnz,
                    .values = saved.values,
                    .index = saved.index.bytes});
  writer.optimizer(spec.name, "master", view_of(saved.state.master));
  for (size_t which = 0; which < saved.state.moments.size(); ++which) {
    writer.optimizer(spec.name, kMoments.at(which), view_of(saved.state.moments[which]));
  }
}

constexpr parallel::Tag kSaveTag{parallel::kTagNumbers - 2, parallel::Traffic::other};

/// What the receiver must know first.
struct SavedHeader {
  int64_t nnz = 0, index_bytes = 0, moments = 0;
  int32_t encoding = 0, dtype = 0;
};

void send(parallel::Communicator& comm, std::span<const std::byte> bytes) {
  parallel::Request request = comm.isend(0, kSaveTag, bytes);
  comm.wait(request);
}

void receive(parallel::Communicator& comm, int from, std::span<std::byte> bytes) {
  parallel::Request request = comm.irecv(from, kSaveTag, bytes);
  comm.wait(request);
}

void send_saved(parallel::Communicator& comm, const Saved& saved) {
  const SavedHeader header{.nnz = saved.nnz,
                           .index_bytes = static_cast<int64_t>(saved.index.bytes.size()),
                           .moments = static_cast<int64_t>(saved.state.moments.size()),
                           .encoding = static_cast<int32_t>(saved.index.encoding),
                           .dtype = static_cast<int32_t>(saved.values.dtype)};
  send(comm, std::as_bytes(std::span(&header, 1)));
  send(comm, std::as_bytes(std::span(saved.index.bytes)));
  send(comm, {static_cast<const std::byte*>(saved.values.data), saved.values.bytes()});
  send(comm, std::as_bytes(std::span(saved.state.master)));
  for (const auto& moment : saved.state.moments) {
    send(comm, std::as_bytes(std::span(moment)));
  }
}

Saved receive_saved(parallel::Communicator& comm, int from) {
  SavedHeader header;
  receive(comm, from, std::as_writable_bytes(std::span(&header, 1)));
  const auto count = static_cast<size_t>(header.nnz);
  const auto dtype = static_cast<DType>(header.dtype);
  Saved saved;
  saved.nnz = header.nnz;
  saved.index.encoding = static_cast<sparse::Encoding>(header.encoding);
  saved.index.bytes.resize(static_cast<size_t>(header.index_bytes));
  receive(comm, from, std::as_writable_bytes(std::span(saved.index.bytes)));
  saved.memory.resize(count * size_of(dtype));
  receive(comm, from, saved.memory);
  saved.values = Tensor(saved.memory.data(), dtype, Shape{header.nnz});
  saved.state.master.resize(count);
  receive(comm, from, std::as_writable_bytes(std::span(saved.state.master)));
  for (int64_t which = 0; which < header.moments; ++which) {
    auto& moment = saved.state.moments.emplace_back(count);
    receive(comm, from, std::as_writable_bytes(std::span(moment)));
  }
  return saved;
}

/// Of the store, if it has that parameter and does not borrow it.
const sparse::Parameter* own_parameter(sparse::Store& store, const std::string& name) {
  const auto found = std::ranges::find_if(store.parameters(), [&](const auto& parameter) {
    return parameter.spec.name == name && !parameter.spec.borrowed;
  });
  return found == store.parameters().end() ? nullptr : &*found;
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
                           std::span<const sparse::ParameterSpec> specs, bool whole = true) {
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
  check(!whole || reader.names().size() == specs.size(),
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
          parallel::Communicator& comm, const Owners& owners) {
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
  const auto network = owners.network.empty() ? specs_of(store) : owners.network;
  for (size_t p = 0; p < network.size(); ++p) {
    const int owner = owners.ranks.empty() ? 0 : owners.ranks[p];
    const sparse::Parameter* parameter = own_parameter(store, network[p].name);
    Saved saved;
    if (parameter != nullptr && (comm.rank() == owner || store.options().sharding)) {
      saved = saved_of(store, *parameter, whole_state(store, *parameter));
    }
    if (owner != 0 && comm.rank() == owner) {
      send_saved(comm, saved);
    } else if (owner != 0 && comm.rank() == 0) {
      saved = receive_saved(comm, owner);
    }
    attempt([&] { write_parameter(*writer, network[p], saved); });
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

void load(const io::CheckpointReader& reader, sparse::Store& store, bool optimizer, bool whole) {
  check_same_parameters(reader, specs_of(store), whole);
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
                  const std::vector<bool>& prunable, bool whole) {
  if (io::is_checkpoint(path)) {
    load(io::CheckpointReader(path), store, false, whole);
  } else {
    load_plain(path, store, prunable);
  }
}

}  // namespace espalier::train
