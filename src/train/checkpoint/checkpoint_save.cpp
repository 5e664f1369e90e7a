#include "src/train/checkpoint/checkpoint_save.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <iterator>
#include <utility>

#include "parallel/transport/collectives.h"
#include "src/config/dump.h"
#include "src/core/finite.h"
#include "src/core/mirror.h"
#include "src/train/exchange/agreement.h"
#include "src/train/masks/mask_files.h"
#include "src/train/masks/saved_layout.h"

namespace espalier::train {
namespace {

template <class T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

std::span<const std::byte> bytes_of(const Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.data), tensor.bytes()};
}

template <class T>
std::vector<T> from_bytes(std::span<const std::byte> bytes) {
  std::vector<T> out(bytes.size() / sizeof(T));
  std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

/// Null if the store does not have the parameter, or borrows it.
const sparse::Parameter* own_parameter(sparse::Store& store, const std::string& name) {
  const auto found = std::ranges::find_if(store.parameters(), [&](const auto& parameter) {
    return parameter.spec.name == name && !parameter.spec.borrowed;
  });
  return found == store.parameters().end() ? nullptr : &*found;
}

io::CheckpointMeta meta_of(const RunProgress& progress) {
  io::CheckpointMeta meta{.step = progress.step,
                          .config = config::to_toml(progress.config),
                          .extra = progress.model_texts};
  std::error_code unknown;  // then relative paths cannot be found from elsewhere
  if (const auto here = std::filesystem::current_path(unknown); !here.empty()) {
    meta.extra[std::string(kWorkingDirectory)] = here.string();
  }
  if (progress.characters.size() > 0) {
    meta.extra["vocabulary"] = progress.characters.text();
  }
  if (!progress.codec_choice.empty()) {
    meta.extra["codec_choice"] = progress.codec_choice;
  }
  if (!progress.loss_scale.empty()) {
    meta.extra["loss_scale"] = progress.loss_scale;
  }
  if (progress.manifest) {
    meta.extra["manifest"] = json_of(*progress.manifest).dump();
  }
  return meta;
}

constexpr parallel::Tag kSaveTag{parallel::kTagNumbers - 2, parallel::Traffic::other};

void send_to_first(parallel::Communicator& comm, std::span<const std::byte> bytes) {
  const uint64_t size = bytes.size();
  parallel::Request length = comm.isend(0, kSaveTag, std::as_bytes(std::span(&size, 1)));
  comm.wait(length);
  parallel::Request content = comm.isend(0, kSaveTag, bytes);
  comm.wait(content);
}

std::vector<std::byte> receive_from(parallel::Communicator& comm, int rank) {
  uint64_t size = 0;
  parallel::Request length =
      comm.irecv(rank, kSaveTag, std::as_writable_bytes(std::span(&size, 1)));
  comm.wait(length);
  std::vector<std::byte> bytes(size);
  parallel::Request content = comm.irecv(rank, kSaveTag, bytes);
  comm.wait(content);
  return bytes;
}

}  // namespace

/// Calls `action` unless this rank has failed; keeps its failure, which all ranks get.
template <class Action>
void CheckpointSave::attempt(const Action& action) {
  if (!failure_) {
    try {
      action();
    } catch (const Failure& failure) {
      failure_ = failure;
    }
  }
}

/// The first part: all that needs the store and communication.
class CheckpointSave::Preparation {
 public:
  Preparation(CheckpointSave& save, sparse::Store& store, const SaveOptions& options)
      : save_(save),
        store_(store),
        comm_(save.comm_),
        owners_(options.owners),
        history_(options.history),
        copies_(options.copies),
        network_(owners_.network.empty() ? specs_of(store) : owners_.network) {}

  void run(const RunProgress& progress) {
    encode_indices();
    const auto layouts = parallel::gather(comm_, bytes_of(my_layouts()));
    if (save_.first()) {
      attempt_now([&] {
        save_.writer_.emplace(save_.path_);
        save_.writer_->write_meta(meta_of(progress));
        reserve(layouts);
      });
    }
    agree(comm_, save_.failure_);
    distribute_places();
    for (size_t p = 0; p < network_.size(); ++p) {
      take_parameter(p);
    }
    if (save_.part_) {
      save_.background_.add([&save = save_] { save.attempt([&save] { save.part_->finish(); }); });
    }
  }

 private:
  int holder_of(size_t p, int replica) const {
    return (owners_.ranks.empty() ? 0 : owners_.ranks[p]) + replica * owners_.replica_stride;
  }
  int writer_of(size_t p) const { return holder_of(p, writing_replica(p, owners_.replicas)); }
  bool writes(size_t p) const { return comm_.rank() == writer_of(p); }

  /// An attempt on this thread. It may take long, and must not communicate.
  template <class Action>
  void attempt_now(const Action& action) {
    const parallel::Busy busy(comm_);
    save_.attempt(action);
  }

  void encode_indices() {
    indices_.resize(network_.size());
    std::vector<size_t> mine;
    for (size_t p = 0; p < network_.size(); ++p) {
      if (writes(p)) {
        mine.push_back(p);
      }
    }
    const parallel::Busy busy(comm_);
    std::exception_ptr error;
#pragma omp parallel for schedule(dynamic) num_threads(store_.stream().threads())
    for (size_t i = 0; i < mine.size(); ++i) {  // NOLINT(modernize-loop-convert): OpenMP's form
      try {
        const sparse::Parameter& parameter = *own_parameter(store_, network_[mine[i]].name);
        indices_[mine[i]] = sparse::to_file(parameter.index);
      } catch (...) {
#pragma omp critical
        error = std::current_exception();
      }
    }
    if (error) {
      std::rethrow_exception(error);
    }
  }

  /// From the rank that writes the parameters to rank 0.
  std::vector<SavedLayout> my_layouts() {
    std::vector<SavedLayout> layouts;
    for (size_t p = 0; p < network_.size(); ++p) {
      if (!writes(p)) {
        continue;
      }
      const sparse::Parameter& parameter = *own_parameter(store_, network_[p].name);
      SavedLayout& layout = layouts.emplace_back(saved_layout(
          store_, parameter, history_ != nullptr && history_->has(number_of(parameter))));
      layout.parameter = static_cast<int64_t>(p);
      layout.index_bytes = static_cast<int64_t>(indices_[p].bytes.size());
      layout.encoding = sparse::number_of(indices_[p].encoding);
    }
    return layouts;
  }

  size_t number_of(const sparse::Parameter& parameter) const {
    return static_cast<size_t>(&parameter - store_.parameters().data());
  }

  /// Makes all datasets. Rank 0.
  void reserve(const std::vector<std::vector<std::byte>>& layouts) {
    std::vector<SavedLayout> all(network_.size());
    for (const auto& of_rank : layouts) {
      for (const SavedLayout& layout : from_bytes<SavedLayout>(of_rank)) {
        all[static_cast<size_t>(layout.parameter)] = layout;
      }
    }
    for (size_t p = 0; p < network_.size(); ++p) {
      const SavedLayout& from = all[p];
      io::ReservedParameter layout{
          .name = network_[p].name,
          .shape = network_[p].shape,
          .encoding = std::string(sparse::encodings()[static_cast<size_t>(from.encoding)]->name),
          .nnz = from.nnz,
          .dtype = static_cast<DType>(from.dtype),
          .index_bytes = from.index_bytes};
      layout.states.emplace_back("master");
      for (int64_t which = 0; which < from.moments; ++which) {
        layout.states.emplace_back(kMomentKinds.at(static_cast<size_t>(which)));
      }
      for (int64_t which = 0; which < from.pruning; ++which) {
        layout.states.emplace_back(kPruningKinds.at(static_cast<size_t>(which)));
      }
      if (from.history > 0) {
        layout.states.emplace_back(io::kMaskHistoryKind);
      }
      for (int replica = 0; store_.options().feedback && replica < owners_.replicas; ++replica) {
        layout.states.push_back(fmt::format("feedback.{}", replica));
      }
      first_dataset_.push_back(save_.datasets_.size());
      std::ranges::move(save_.writer_->reserve(layout), std::back_inserter(save_.datasets_));
    }
    first_dataset_.push_back(save_.datasets_.size());
  }

  /// Rank 0 sends the name of the file and the places of the datasets.
  void distribute_places() {
    std::vector<uint64_t> places;
    for (const io::ReservedDataset& dataset : save_.datasets_) {
      places.push_back(dataset.offset);
    }
    places.insert(places.end(), first_dataset_.begin(), first_dataset_.end());
    const std::string_view packed(reinterpret_cast<const char*>(places.data()),
                                  places.size() * sizeof(uint64_t));
    const std::string all = broadcast_text(comm_, std::string(packed));
    const std::string file =
        broadcast_text(comm_, save_.first() ? save_.writer_->temporary().string() : "");
    std::vector<uint64_t>& offsets = save_.offsets_;
    offsets = from_bytes<uint64_t>(std::as_bytes(std::span(all)));
    first_dataset_.assign(offsets.end() - static_cast<std::ptrdiff_t>(network_.size() + 1),
                          offsets.end());
    offsets.resize(first_dataset_.back());
    try {
      const parallel::Busy busy(comm_);
      save_.part_.emplace(file);
    } catch (const Failure& failure) {
      if (save_.first()) {  // else a disk of rank 0 alone
        save_.failure_ = failure;
      }
    }
    const std::array<char, 2> mine{save_.part_ || save_.first() ? char{1} : char{0},
                                   copies_ ? char{1} : char{0}};
    std::vector<char> each(2 * static_cast<size_t>(comm_.size()));
    parallel::all_gather(comm_, std::as_bytes(std::span(mine)),
                         std::as_writable_bytes(std::span(each)));
    copies_ = std::ranges::find(each, char{0}) == each.end();
    for (size_t rank = 0; rank < each.size() / 2; ++rank) {
      sees_file_.push_back(each[2 * rank] != 0);
    }
  }

  template <class T>
  static Array owned(std::vector<T> values) {
    const auto owner = std::make_shared<const std::vector<T>>(std::move(values));
    return {.bytes = bytes_of(*owner), .owner = owner, .dtype = dtype_of<T>()};
  }
  /// The host's side of an array, copied unless the store stays as it is until the bytes are
  /// written.
  Array array_of(Stream& stream, const Tensor& tensor) const {
    const auto mirror = std::make_shared<const Mirror>(stream, tensor);
    const std::span<const std::byte> bytes = bytes_of(mirror->read().host());
    Array array{.bytes = bytes, .owner = mirror};
    if (copies_) {
      array = owned(from_bytes<std::byte>(bytes));
    }
    array.dtype = tensor.dtype;
    return array;
  }

  /// The arrays of a parameter in the order of its datasets, without error feedback; none on ranks
  /// that do not write it. Collective when the store is sharded.
  std::vector<Array> arrays_of(size_t p, const sparse::Parameter& parameter) {
    const auto named = [&parameter](Array array, std::string_view kind) {
      array.name = fmt::format("'{}' ({})", parameter.spec.name, kind);
      return array;
    };
    const Array master = named(owned(store_.master(parameter)), "master copy");
    std::vector<Array> states;
    for (int which = 0; which < store_.options().moments; ++which) {
      states.push_back(named(owned(store_.moment(parameter, which)),
                             kMomentKinds.at(static_cast<size_t>(which))));
    }
    for (int which = 0; which < store_.pruning_arrays(parameter); ++which) {
      states.push_back(named(owned(store_.pruning_array(parameter, which)),
                             kPruningKinds.at(static_cast<size_t>(which))));
    }
    if (!writes(p)) {
      return {};
    }
    // The values that kernels read: vectors are exact; of 16-bit matrices /optim has the exact
    // master copy.
    std::vector<Array> arrays{
        parameter.spec.shape.rank() == 1
            ? master
            : named(array_of(store_.stream(), store_.part(store_.value(), parameter)), "values")};
    if (indices_[p].encoding != sparse::Encoding::full) {
      arrays.push_back(owned(std::move(indices_[p].bytes)));
    }
    arrays.push_back(master);
    std::ranges::move(states, std::back_inserter(arrays));
    if (const size_t number = number_of(parameter); history_ != nullptr && history_->has(number)) {
      arrays.push_back(
          named(owned(history_->numbers(number, parameter.index.mask())), io::kMaskHistoryKind));
    }
    return arrays;
  }

  void take_parameter(size_t p) {
    const sparse::Parameter* parameter = own_parameter(store_, network_[p].name);
    std::vector<Array> arrays;
    if (parameter != nullptr && (writes(p) || store_.options().sharding)) {
      arrays = arrays_of(p, *parameter);
    }
    const size_t feedbacks = store_.options().feedback ? static_cast<size_t>(owners_.replicas) : 0;
    const size_t end = first_dataset_[p + 1] - feedbacks;
    take(writer_of(p), first_dataset_[p], end, arrays);
    for (size_t replica = 0; replica < feedbacks; ++replica) {
      const int holder = holder_of(p, static_cast<int>(replica));
      arrays.clear();
      if (comm_.rank() == holder) {
        arrays.push_back(array_of(store_.stream(), store_.part(store_.feedback(), *parameter)));
        arrays.back().name = fmt::format("'{}' (error feedback)", parameter->spec.name);
      }
      take(holder, end + replica, end + replica + 1, arrays);
    }
  }

  /// Writes the arrays of `writer` as datasets [begin, end), now or in a task.
  void take(int writer, size_t begin, size_t end, const std::vector<Array>& arrays) {
    const bool mine = comm_.rank() == writer;
    require(!mine || arrays.size() == end - begin, "an array for each dataset", arrays.size(),
            begin, end);
    for (size_t i = begin; i < end; ++i) {
      if (!sees_file_[static_cast<size_t>(writer)]) {
        if (mine) {
          attempt_now([&] { save_.add_checksum(i, arrays[i - begin]); });
          send_to_first(comm_, arrays[i - begin].bytes);
        } else if (save_.first()) {
          const std::vector<std::byte> bytes = receive_from(comm_, writer);
          attempt_now([&] { save_.part_->write(save_.offsets_[i], bytes); });
        }
      } else if (mine && copies_) {
        save_.background_.add([&save = save_, i, array = arrays[i - begin]] {
          save.attempt([&] { save.write(i, array); });
        });
      } else if (mine) {
        attempt_now([&] { save_.write(i, arrays[i - begin]); });
      }
    }
  }

  CheckpointSave& save_;
  sparse::Store& store_;
  parallel::Communicator& comm_;
  const Owners& owners_;
  const pruning::MaskHistory* history_;
  bool copies_;  ///< on all ranks
  std::vector<sparse::ParameterSpec> network_;
  std::vector<sparse::FileIndex> indices_;  ///< [network] of the parameters that this rank writes
  std::vector<uint64_t> first_dataset_;     ///< [network + 1]
  std::vector<bool> sees_file_;             ///< [ranks]
};

CheckpointSave::CheckpointSave(const std::filesystem::path& path, sparse::Store& store,
                               const RunProgress& progress, parallel::Communicator& comm,
                               const SaveOptions& options, Background& background)
    : comm_(comm),
      path_(path),
      step_(progress.step),
      before_commit_(options.before_commit),
      after_commit_(options.after_commit),
      tasks_{background},
      background_(background) {
  Preparation(*this, store, options).run(progress);
}

void CheckpointSave::add_checksum(size_t dataset, const Array& array) {
  bool finite = true;
  const uint64_t checksum = io::checkpoint_checksum(
      array.bytes, [&](auto piece) { finite = finite && all_finite(piece, array.dtype); });
  check(finite,
        "{} has a NaN or an infinity after step {}: training has diverged, so no checkpoint was "
        "written, and no earlier one was touched; lower optimizer.lr, set optimizer.clip, or check "
        "the data",
        array.name, step_);
  checksums_.push_back({.dataset = static_cast<int64_t>(dataset), .checksum = checksum});
}

void CheckpointSave::write(size_t dataset, const Array& array) {
  add_checksum(dataset, array);
  part_->write(offsets_[dataset], array.bytes);
}

void CheckpointSave::run_tasks() {
  const parallel::Busy busy(comm_);
  background_.finish();
}

bool CheckpointSave::advance(bool wait) {
  if (wait) {
    run_tasks();
  }
  const bool ended = background_.done();
  std::array<double, 2> ranks{ended ? 0.0 : 1.0, ended && failure_ ? 1.0 : 0.0};
  parallel::all_reduce_small(comm_, ranks, parallel::Combine::sum);
  const auto [working, failed] = ranks;
  if (failed > 0) {
    share_failure();
  }
  if (working > 0) {
    return false;
  }
  if (!std::exchange(committing_, true)) {
    begin_commit();
    return false;
  }
  writer_.reset();
  return true;
}

void CheckpointSave::finish() {
  while (!advance(true)) {
  }
}

/// All ranks have written. Rank 0 writes the checksums of all, and publishes the file.
void CheckpointSave::begin_commit() {
  auto checksums = parallel::gather(comm_, bytes_of(checksums_));
  if (!first()) {
    return;
  }
  const auto add = [this](std::function<void()> task) {
    background_.add([this, task = std::move(task)] { attempt(task); });
  };
  add([this, checksums = std::move(checksums)] {
    for (const auto& of_rank : checksums) {
      for (const Checksum& one : from_bytes<Checksum>(of_rank)) {
        writer_->set_checksum(datasets_[static_cast<size_t>(one.dataset)], one.checksum);
      }
    }
    writer_->complete();
  });
  add([this] {
    if (before_commit_) {
      before_commit_();
    }
    writer_->commit();
  });
  add([this] { io::verify_written_checkpoint(path_); });
  if (after_commit_) {
    add(after_commit_);
  }
}

/// Throws the failure of a rank on all ranks; nothing is published.
void CheckpointSave::share_failure() {
  {
    const parallel::Busy busy(comm_);
    background_.cancel();
    writer_.reset();  // HDF5 writes when it closes a file
  }
  agree_on_any(comm_, failure_);
}

void save(const std::filesystem::path& path, sparse::Store& store, const RunProgress& progress,
          parallel::Communicator& comm, const SaveOptions& options) {
  Background at_once(false);
  CheckpointSave(path, store, progress, comm, options, at_once).finish();
}

}  // namespace espalier::train
