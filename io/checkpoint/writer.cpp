#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <array>

#include "io/checkpoint/checkpoint.h"
#include "io/checkpoint/format.h"
#include "io/files/raw_file.h"
#include "src/core/error.h"

namespace espalier::io {

std::string checksum_of(std::span<const std::byte> bytes) {
  return fmt::format("{:016x}", XXH64(bytes.data(), bytes.size(), 0));
}

bool is_reserved(std::string_view attribute) {
  constexpr std::array<std::string_view, 6> kReserved{"format",      "version", "step",
                                                      "data_cursor", "rng",     "config"};
  return std::ranges::find(kReserved, attribute) != kReserved.end();
}

hdf5::Type index_type(std::string_view encoding) {
  return encoding == "int32" ? hdf5::Type::int32 : hdf5::Type::uint8;
}

hdf5::Type stored_type(DType dtype) {
  require(is_number(dtype), "checkpoints hold fp32, bf16 and fp16", name_of(dtype));
  return dtype == DType::fp32   ? hdf5::Type::fp32
         : dtype == DType::bf16 ? hdf5::Type::bf16
                                : hdf5::Type::fp16;
}

struct CheckpointWriter::State {
  std::filesystem::path path;
  std::filesystem::path temporary;
  std::unique_ptr<hdf5::File> file;

  /// Runs one step of the writing; what fails also says what is not lost.
  template <class Step>
  void guarded(Step step) {
    require(file != nullptr, "a committed checkpoint takes no more", path.string());
    try {
      step();
    } catch (const Failure& failure) {
      fail("{}; no earlier checkpoint was touched: free space or fix the cause, then --resume auto",
           failure.what());
    }
  }

  void dataset(const std::string& at, hdf5::Type type, std::span<const int64_t> extents,
               std::span<const std::byte> bytes) {
    file->write(at, type, extents, bytes.data());
    file->set_text(at, "checksum", checksum_of(bytes));
  }
};

CheckpointWriter::CheckpointWriter(std::filesystem::path path) : state_(std::make_unique<State>()) {
  make_folder_of(path);
  state_->path = std::move(path);
  state_->temporary = temporary_name(state_->path);
  ::unlink(state_->temporary.c_str());  // of an earlier process that had our PID
  state_->file = std::make_unique<hdf5::File>(hdf5::File::create(
      state_->temporary, fmt::format("checkpoint {} cannot be written", state_->path.string())));
  state_->guarded([&] {
    for (const char* group : {"/meta", "/params", "/optim"}) {
      state_->file->make_group(group);
    }
  });
}

CheckpointWriter::CheckpointWriter(CheckpointWriter&&) noexcept = default;

CheckpointWriter::~CheckpointWriter() {
  if (state_ != nullptr && state_->file != nullptr) {
    state_->file.reset();
    ::unlink(state_->temporary.c_str());
  }
}

void CheckpointWriter::meta(const CheckpointMeta& meta) {
  state_->guarded([&] {
    hdf5::File& file = *state_->file;
    const auto number = [&](const std::string& name, int64_t value) {
      file.set_integers("/meta", name, std::span(&value, 1));
    };
    file.set_text("/meta", "format", std::string(kCheckpointFormat));
    number("version", kCheckpointVersion);
    number("step", meta.step);
    number("data_cursor", meta.data_cursor);
    number("rng", meta.rng);
    file.set_text("/meta", "config", meta.config);
    for (const auto& [name, text] : meta.extra) {
      require(!is_reserved(name), "an extra attribute needs a name of its own", name);
      file.set_text("/meta", name, text);
    }
  });
}

void CheckpointWriter::parameter(const ParameterRecord& record) {
  const bool full = record.encoding == "full";
  require(!record.name.empty() && record.name.find('/') == std::string::npos && record.name != ".",
          "a parameter name has no '/'", record.name);
  require(record.values.contiguous() && record.values.count() == record.nnz,
          "values hold one element for each kept one", record.name, record.values.count(),
          record.nnz);
  require(full ? record.nnz == record.shape.count() && record.index.empty()
               : record.nnz <= record.shape.count(),
          "nnz and index must fit the encoding", record.name, record.encoding, record.nnz,
          record.index.size());
  state_->guarded([&] {
    hdf5::File& file = *state_->file;
    const std::string group = parameter_path(record.name);
    file.make_group(group);
    file.set_integers(group, "shape", record.shape.extents());
    file.set_text(group, "encoding", record.encoding);
    file.set_integers(group, "nnz", std::span(&record.nnz, 1));
    file.set_text(group, "dtype", std::string(name_of(record.values.dtype)));
    state_->dataset(group + "/values", stored_type(record.values.dtype),
                    full ? record.shape.extents() : std::span(&record.nnz, 1),
                    {static_cast<const std::byte*>(record.values.data), record.values.bytes()});
    if (!full) {
      const hdf5::Type type = index_type(record.encoding);
      const auto count = static_cast<int64_t>(record.index.size() / hdf5::size_of(type));
      state_->dataset(group + "/index", type, std::span(&count, 1), std::as_bytes(record.index));
    }
  });
}

void CheckpointWriter::optimizer(const std::string& name, const std::string& kind,
                                 const Tensor& tensor) {
  require(is_optimizer_kind(kind), "kind of optimizer state", kind);
  require(tensor.contiguous(), "optimizer state is contiguous", name, kind);
  state_->guarded([&] {
    const std::string group = optimizer_path(name);
    if (!state_->file->exists(group)) {
      state_->file->make_group(group);
    }
    const int64_t count = tensor.count();
    state_->dataset(group + "/" + kind, stored_type(tensor.dtype),
                    kind == kLowRankKind ? tensor.shape.extents() : std::span(&count, 1),
                    {static_cast<const std::byte*>(tensor.data), tensor.bytes()});
  });
}

void CheckpointWriter::commit() {
  state_->guarded([&] {
    state_->file->finish();
    publish(state_->temporary, state_->path);
    state_->file.reset();
  });
}

}  // namespace espalier::io
