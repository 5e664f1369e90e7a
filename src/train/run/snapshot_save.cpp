// A stage -> a checkpoint: rank 0 writes, one parameter at a time, its own and those that other
// stages send it.
#include <algorithm>
#include <array>
#include <optional>

#include "parallel/transport/collectives.h"
#include "sparse/index/file_index.h"
#include "src/config/dump.h"
#include "src/core/mirror.h"
#include "src/train/run/agreement.h"
#include "src/train/run/snapshot.h"

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
  Tensor values;  ///< of `mirror`, of `state`, or `memory`
  WholeState state;
  std::vector<std::byte> memory;
  std::optional<Mirror> mirror;  ///< of the store
  std::vector<float> factor;     ///< of codec powersgd, [columns, factor_width]; or empty
  int64_t factor_width = 0;
};

Saved saved_of(const sparse::Store& store, const sparse::Parameter& parameter, WholeState state) {
  Saved saved{.index = sparse::to_file(parameter.index, store.options().file_index),
              .nnz = parameter.kept(),
              .values = {},
              .state = std::move(state),
              .memory = {},
              .mirror = {}};
  // The values that compute reads: vectors are exact; of the others in 16 bits the master copy is
  // more exact and stands in /optim.
  if (parameter.spec.shape.rank() == 1) {
    saved.values = view_of(saved.state.master);
  } else {
    saved.mirror.emplace(store.stream(), store.part(store.value(), parameter));
    saved.values = saved.mirror->read().host();
  }
  return saved;
}

void add_factor(Saved& saved, const sparse::Parameter& parameter,
                const parallel::LowRank* low_rank) {
  const auto* matrix = low_rank == nullptr ? nullptr : low_rank->find(parameter.offset);
  if (matrix != nullptr) {
    const Mirror factor(low_rank->stream(), low_rank->factor(*matrix));
    const auto columns = factor.read().host().span<float>();
    saved.factor.assign(columns.begin(), columns.end());
    saved.factor_width = matrix->cols;
  }
}

void write_parameter(io::CheckpointWriter& writer, const sparse::ParameterSpec& spec,
                     Saved& saved) {
  writer.parameter({.name = spec.name,
                    .shape = spec.shape,
                    .encoding = std::string(saved.index.encoding.name),
                    .nnz = saved.nnz,
                    .values = saved.values,
                    .index = saved.index.bytes});
  writer.optimizer(spec.name, "master", view_of(saved.state.master));
  for (size_t which = 0; which < saved.state.moments.size(); ++which) {
    writer.optimizer(spec.name, kMoments.at(which), view_of(saved.state.moments[which]));
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

/// What the receiver must know first.
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

void send_saved(parallel::Communicator& comm, const Saved& saved) {
  const SavedHeader header{.nnz = saved.nnz,
                           .index_bytes = static_cast<int64_t>(saved.index.bytes.size()),
                           .moments = static_cast<int64_t>(saved.state.moments.size()),
                           .factor = static_cast<int64_t>(saved.factor.size()),
                           .factor_width = saved.factor_width,
                           .encoding = sparse::number_of(saved.index.encoding),
                           .dtype = static_cast<int32_t>(saved.values.dtype)};
  send(comm, std::as_bytes(std::span(&header, 1)));
  send(comm, std::as_bytes(std::span(saved.index.bytes)));
  send(comm, {static_cast<const std::byte*>(saved.values.data), saved.values.bytes()});
  send(comm, std::as_bytes(std::span(saved.state.master)));
  for (const auto& moment : saved.state.moments) {
    send(comm, std::as_bytes(std::span(moment)));
  }
  send(comm, std::as_bytes(std::span(saved.factor)));
}

Saved receive_saved(parallel::Communicator& comm, int from) {
  SavedHeader header;
  receive(comm, from, std::as_writable_bytes(std::span(&header, 1)));
  const auto count = static_cast<size_t>(header.nnz);
  const auto dtype = static_cast<DType>(header.dtype);
  Saved saved;
  saved.nnz = header.nnz;
  saved.index.encoding = *sparse::encodings()[static_cast<size_t>(header.encoding)];
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
  saved.factor_width = header.factor_width;
  saved.factor.resize(static_cast<size_t>(header.factor));
  receive(comm, from, std::as_writable_bytes(std::span(saved.factor)));
  return saved;
}

/// What each replica of `owner` keeps of a parameter's errors, one after another; `write(kind,
/// values)` on rank 0.
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

/// Of the store, if it has that parameter and does not borrow it.
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
      add_factor(saved, *parameter, owners.low_rank);
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

}  // namespace espalier::train
