#include "src/train/run/snapshot.h"

#include <algorithm>
#include <array>
#include <memory>
#include <optional>

#include "io/checkpoint/plain_hdf5.h"
#include "parallel/transport/collectives.h"
#include "sparse/index/file_index.h"
#include "src/config/dump.h"
#include "src/config/parse.h"
#include "src/core/mirror.h"
#include "src/train/exchange/agreement.h"
#include "src/train/masks/mask_files.h"

namespace espalier::train {
namespace {

constexpr std::array<const char*, 2> kMoments{"moment1", "moment2"};

/// Sets the store's masks unless they are equal: a change costs time and memory.
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

Tensor view_of(std::vector<float>& values) {
  return Tensor(values.data(), DType::fp32, Shape{static_cast<int64_t>(values.size())});
}

/// One parameter in the layout of the file, with its optimizer state from all shards.
struct Saved {
  sparse::FileIndex index{};
  int64_t nnz = 0;
  Tensor values{};  ///< view of `mirror`, `master` or `memory`
  std::vector<float> master{};
  std::vector<std::vector<float>> moments{};
  std::vector<std::byte> memory{};
  std::optional<Mirror> mirror{};  ///< of the store
  std::vector<float> factor{};     ///< of codec powersgd, [columns, factor_width]; may be empty
  int64_t factor_width = 0;
};

/// Collective when the store is sharded.
Saved saved_of(sparse::Store& store, const sparse::Parameter& parameter,
               const parallel::LowRank* low_rank) {
  Saved saved{.index = sparse::to_file(parameter.index, store.options().file_index),
              .nnz = parameter.kept(),
              .master = store.master(parameter)};
  for (int which = 0; which < store.options().moments; ++which) {
    saved.moments.push_back(store.moment(parameter, which));
  }
  // The values that kernels read: vectors are exact; of 16-bit matrices /optim has the exact master
  // copy.
  if (parameter.spec.shape.rank() == 1) {
    saved.values = view_of(saved.master);
  } else {
    saved.mirror.emplace(store.stream(), store.part(store.value(), parameter));
    saved.values = saved.mirror->read().host();
  }
  const auto* matrix = low_rank == nullptr ? nullptr : low_rank->find(parameter.offset);
  if (matrix != nullptr) {
    const Mirror factor(low_rank->stream(), low_rank->factor(*matrix));
    const auto columns = factor.read().host().span<float>();
    saved.factor.assign(columns.begin(), columns.end());
    saved.factor_width = matrix->cols;
  }
  return saved;
}

void write_parameter(io::CheckpointWriter& writer, const sparse::ParameterSpec& spec,
                     Saved& saved) {
  writer.parameter({.name = spec.name,
                    .shape = spec.shape,
                    .encoding = std::string(saved.index.encoding.name),
                    .nnz = saved.nnz,
                    .values = saved.values,
                    .index = saved.index.bytes});
  writer.optimizer(spec.name, "master", view_of(saved.master));
  for (size_t which = 0; which < saved.moments.size(); ++which) {
    writer.optimizer(spec.name, kMoments.at(which), view_of(saved.moments[which]));
  }
  if (!saved.factor.empty()) {
    const auto columns = static_cast<int64_t>(saved.factor.size()) / saved.factor_width;
    writer.optimizer(spec.name, std::string(io::kLowRankKind),
                     Tensor(saved.factor.data(), DType::fp32, Shape{columns, saved.factor_width}));
  }
}

/// The ranks that hold a parameter.
struct Replicas {
  int first = 0, count = 1, stride = 1;
};

constexpr parallel::Tag kSaveTag{parallel::kTagNumbers - 2, parallel::Traffic::other};

/// Sent before a parameter's arrays.
struct SavedHeader {
  int64_t nnz = 0, index_bytes = 0, moments = 0, factor = 0, factor_width = 0;
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

/// Calls move(bytes) for each array of a parameter.
template <class Move>
void for_each_array(Saved& saved, const Move& move) {
  move(std::as_writable_bytes(std::span(saved.index.bytes)));
  move(std::span(static_cast<std::byte*>(saved.values.data), saved.values.bytes()));
  move(std::as_writable_bytes(std::span(saved.master)));
  for (auto& moment : saved.moments) {
    move(std::as_writable_bytes(std::span(moment)));
  }
  move(std::as_writable_bytes(std::span(saved.factor)));
}

void send_saved(parallel::Communicator& comm, Saved& saved) {
  const SavedHeader header{.nnz = saved.nnz,
                           .index_bytes = static_cast<int64_t>(saved.index.bytes.size()),
                           .moments = static_cast<int64_t>(saved.moments.size()),
                           .factor = static_cast<int64_t>(saved.factor.size()),
                           .factor_width = saved.factor_width,
                           .encoding = sparse::number_of(saved.index.encoding),
                           .dtype = static_cast<int32_t>(saved.values.dtype)};
  send(comm, std::as_bytes(std::span(&header, 1)));
  for_each_array(saved, [&](std::span<std::byte> bytes) { send(comm, bytes); });
}

Saved receive_saved(parallel::Communicator& comm, int from) {
  SavedHeader header;
  receive(comm, from, std::as_writable_bytes(std::span(&header, 1)));
  const auto count = static_cast<size_t>(header.nnz);
  const auto dtype = static_cast<DType>(header.dtype);
  Saved saved{.nnz = header.nnz, .factor_width = header.factor_width};
  saved.index.encoding = *sparse::encodings()[static_cast<size_t>(header.encoding)];
  saved.index.bytes.resize(static_cast<size_t>(header.index_bytes));
  saved.memory.resize(count * size_of(dtype));
  saved.values = Tensor(saved.memory.data(), dtype, Shape{header.nnz});
  saved.master.resize(count);
  saved.moments.assign(static_cast<size_t>(header.moments), std::vector<float>(count));
  saved.factor.resize(static_cast<size_t>(header.factor));
  for_each_array(saved, [&](std::span<std::byte> bytes) { receive(comm, from, bytes); });
  return saved;
}

/// Error feedback of one parameter, replica by replica; calls `write(kind, values)` on rank 0.
template <class Write>
void save_feedback(const sparse::Store& store, const sparse::Parameter* parameter, int64_t kept,
                   parallel::Communicator& comm, const Replicas& replicas, const Write& write) {
  for (int replica = 0; replica < replicas.count; ++replica) {
    const int holder = replicas.first + replica * replicas.stride;
    std::vector<float> values;
    if (comm.rank() == holder) {
      const Mirror mine(store.stream(), store.part(store.feedback(), *parameter));
      const auto errors = mine.read().host().span<float>();
      values.assign(errors.begin(), errors.end());
    }
    if (holder != 0 && comm.rank() == holder) {
      send(comm, std::as_bytes(std::span(values)));
    } else if (holder != 0 && comm.rank() == 0) {
      values.resize(static_cast<size_t>(kept));
      receive(comm, holder, std::as_writable_bytes(std::span(values)));
    }
    if (comm.rank() == 0) {
      write(fmt::format("feedback.{}", replica), view_of(values));
    }
  }
}

/// Null if the store does not have the parameter, or borrows it.
const sparse::Parameter* own_parameter(sparse::Store& store, const std::string& name) {
  const auto found = std::ranges::find_if(store.parameters(), [&](const auto& parameter) {
    return parameter.spec.name == name && !parameter.spec.borrowed;
  });
  return found == store.parameters().end() ? nullptr : &*found;
}

io::CheckpointMeta meta_of(const Progress& progress) {
  io::CheckpointMeta meta{
      .step = progress.step, .config = config::to_toml(progress.config), .extra = {}};
  if (progress.characters.size() > 0) {
    meta.extra["vocabulary"] = progress.characters.text();
  }
  if (!progress.codec_choice.empty()) {
    meta.extra["codec_choice"] = progress.codec_choice;
  }
  if (!progress.loss_scale.empty()) {
    meta.extra["loss_scale"] = progress.loss_scale;
  }
  return meta;
}

}  // namespace

void save(const std::filesystem::path& path, sparse::Store& store, const Progress& progress,
          parallel::Communicator& comm, const Owners& owners, const parallel::LowRank* low_rank) {
  std::string error;
  auto attempt = [&](const auto& action) {
    if (comm.rank() == 0 && error.empty()) {
      try {
        action();
      } catch (const Failure& failure) {
        error = failure.what();  // shared with all ranks below
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
      saved = saved_of(store, *parameter, low_rank);
    }
    if (owner != 0 && comm.rank() == owner) {
      send_saved(comm, saved);
    } else if (owner != 0 && comm.rank() == 0) {
      saved = receive_saved(comm, owner);
    }
    attempt([&] { write_parameter(*writer, network[p], saved); });
    if (store.options().feedback) {
      save_feedback(store, parameter, saved.nnz, comm,
                    {.first = owner, .count = owners.replicas, .stride = owners.replica_stride},
                    [&](const std::string& kind, const Tensor& values) {
                      attempt([&] { writer->optimizer(network[p].name, kind, values); });
                    });
    }
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
  const auto text = [&](const char* name) {
    const auto found = meta.extra.find(name);
    return found == meta.extra.end() ? std::string() : found->second;
  };
  return {.step = meta.step,
          .config = config::parse(meta.config, reader.path().string() + " (config)"),
          .characters = io::Vocabulary::from_text(text("vocabulary")),
          .codec_choice = text("codec_choice"),
          .loss_scale = text("loss_scale")};
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
    if (store.state(parameter).apart) {  // the common value of all ranks
      reader.values(name, view);
      store.set_common(parameter, values);
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

void load_feedback(const io::CheckpointReader& reader, sparse::Store& store, int replica,
                   int replicas) {
  const Tensor flat = store.feedback();
  if (!flat) {
    return;
  }
  for (const sparse::Parameter& parameter : store.parameters()) {
    const std::string& name = parameter.spec.name;
    const auto kind = [](int r) { return fmt::format("feedback.{}", r); };
    int saved = 0;
    while (reader.has_optimizer(name, kind(saved))) {
      ++saved;
    }
    const Mirror errors(store.stream(), store.part(flat, parameter));
    const Tensor& mine = errors.host();
    if (saved == replicas) {
      reader.optimizer(name, kind(replica), mine);
      errors.write();
      continue;
    }
    std::vector<float> one(static_cast<size_t>(parameter.kept()));
    std::vector<double> sum(one.size());
    for (int r = 0; r < saved; ++r) {
      reader.optimizer(name, kind(r), Tensor(one.data(), DType::fp32, mine.shape));
      for (size_t i = 0; i < one.size(); ++i) {
        sum[i] += static_cast<double>(one[i]);
      }
    }
    std::ranges::transform(sum, mine.get<float>(),
                           [&](double lost) { return static_cast<float>(lost / replicas); });
    errors.write();
  }
}

void load_low_rank(const io::CheckpointReader& reader, const sparse::Store& store,
                   parallel::LowRank& low_rank) {
  const std::string kind(io::kLowRankKind);
  for (const sparse::Parameter& parameter : store.parameters()) {
    const parallel::LowRankMatrix* matrix = low_rank.find(parameter.offset);
    const std::string& name = parameter.spec.name;
    if (matrix == nullptr || !reader.has_optimizer(name, kind)) {
      continue;
    }
    const Shape saved = reader.optimizer_shape(name, kind);
    check(saved.rank() == 2 && saved.cols() == matrix->cols && saved.rows() <= matrix->rows,
          "{}: {} of \"{}\" has shape {}, which does not fit: the file is damaged, use another "
          "checkpoint",
          reader.path().string(), kind, name, saved.text());
    std::vector<float> columns(static_cast<size_t>(saved.count()));
    reader.optimizer(name, kind, Tensor(columns.data(), DType::fp32, saved));
    const Mirror factor(low_rank.stream(), low_rank.factor(*matrix));
    const auto kept = factor.read().host().span<float>();
    columns.resize(std::min(columns.size(), kept.size()));  // other RANK: common columns
    std::ranges::copy(columns, kept.begin());
    factor.write();
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
