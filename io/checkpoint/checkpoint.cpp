#define XXH_STATIC_LINKING_ONLY  // the size of a state
#include "io/checkpoint/checkpoint.h"

#include <fmt/ranges.h>
#include <xxhash.h>

#include <algorithm>
#include <array>

#include "io/files/file_system.h"
#include "src/core/error.h"
#include "src/core/finite.h"

namespace espalier::io {
namespace {

constexpr std::string_view kFormat = "espalier-checkpoint";
/// The attributes of /meta that are not free.
constexpr std::array<std::string_view, 7> kReserved{"format",   "version",     "step", "config",
                                                    "checksum", "data_cursor", "rng"};

/// Elements of a parameter, kept or not, for each byte of the file, at most: a mask takes a bit an
/// element in memory, and next to nothing in the file where few elements are kept.
constexpr double kMaxElementsPerByte = 65536;

bool is_reserved(std::string_view attribute) {
  return std::ranges::find(kReserved, attribute) != kReserved.end();
}

std::string parameter_path(const std::string& name) { return "/params/" + name; }
std::string optimizer_path(const std::string& name) { return "/optim/" + name; }

/// State of the optimizer, of pruning methods, and of error feedback.
bool is_optimizer_kind(std::string_view kind) {
  return kind == "master" || kind == "moment1" || kind == "moment2" || kind == "pruning1" ||
         kind == "pruning2" || kind.starts_with("feedback.") || kind == kMaskHistoryKind;
}

std::string hex_of(uint64_t checksum) { return fmt::format("{:016x}", checksum); }
std::string checksum_of(std::span<const std::byte> bytes) {
  return hex_of(checkpoint_checksum(bytes));
}

/// The text attributes of a group, by name.
using Texts = std::map<std::string, std::string>;

/// Of "NAME=TEXT\n" for each, in the order of names.
std::string checksum_of(const Texts& texts) {
  std::string all;
  for (const auto& [name, text] : texts) {
    all += name + "=" + text + "\n";
  }
  return checksum_of(std::as_bytes(std::span(all)));
}

/// Elements of /params/NAME/index for this encoding: int32 positions for "int32", else bytes.
hdf5::Type index_type(std::string_view encoding) {
  return encoding == "int32" ? hdf5::Type::int32 : hdf5::Type::uint8;
}

/// Throws Bug for element types that checkpoints do not hold.
hdf5::Type stored_type(DType dtype) {
  require(is_number(dtype), "checkpoints hold fp32, bf16 and fp16", name_of(dtype));
  return dtype == DType::fp32   ? hdf5::Type::fp32
         : dtype == DType::bf16 ? hdf5::Type::bf16
                                : hdf5::Type::fp16;
}

/// Converts element by element between types of values.
void convert(const Tensor& from, const Tensor& to) {
  with_number(from.dtype, [&]<class From>(From) {
    with_number(to.dtype, [&]<class To>(To) {
      std::ranges::transform(from.span<From>(), to.get<To>(),
                             [](From x) { return from_float<To>(to_float(x)); });
    });
  });
}

bool is_value(hdf5::Type type) {
  return type == hdf5::Type::fp32 || type == hdf5::Type::bf16 || type == hdf5::Type::fp16;
}

DType dtype_in_memory(hdf5::Type type) {
  return type == hdf5::Type::bf16   ? DType::bf16
         : type == hdf5::Type::fp16 ? DType::fp16
                                    : DType::fp32;
}

/// Runs one step of writing; its Failure also says that earlier checkpoints are intact.
template <class Step>
void guarded(Step step) {
  try {
    step();
  } catch (const Failure& failure) {
    throw Failure(fmt::format("{}; no earlier checkpoint was touched", failure.what()),
                  failure.retryable());
  }
}

void write_texts(hdf5::File& file, const std::string& group, const Texts& texts) {
  for (const auto& [name, text] : texts) {
    file.set_text(group, name, text);
  }
  file.set_text(group, "checksum", checksum_of(texts));
}

void write_dataset(hdf5::File& file, const std::string& at, hdf5::Type type,
                   std::span<const int64_t> extents, std::span<const std::byte> bytes) {
  file.write(at, type, extents, bytes.data());
  file.set_text(at, "checksum", checksum_of(bytes));
}

/// The group of a parameter with its attributes.
void describe_parameter(hdf5::File& file, const ReservedParameter& layout) {
  const std::string group = parameter_path(layout.name);
  file.make_group(group);
  file.set_integers(group, "shape", layout.shape.extents());
  file.set_integer(group, "nnz", layout.nnz);
  write_texts(file, group,
              {{"encoding", layout.encoding}, {"dtype", std::string(name_of(layout.dtype))}});
}

std::span<const std::byte> bytes_of(const Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.data), tensor.bytes()};
}

}  // namespace

CheckpointWriter::CheckpointWriter(const std::filesystem::path& path)
    : file_(
          hdf5::File::create(path, fmt::format("checkpoint {} cannot be written", path.string()))) {
  guarded([&] {
    for (const char* group : {"/meta", "/params", "/optim"}) {
      file_.make_group(group);
    }
  });
}

void CheckpointWriter::write_meta(const CheckpointMeta& meta) {
  guarded([&] {
    file_.set_integer("/meta", "version", kCheckpointVersion);
    file_.set_integer("/meta", "step", meta.step);
    Texts texts{{"format", std::string(kFormat)}, {"config", meta.config}};
    for (const auto& [name, text] : meta.extra) {
      require(!is_reserved(name), "an extra attribute needs a name of its own", name);
      texts[name] = text;
    }
    write_texts(file_, "/meta", texts);
  });
}

void CheckpointWriter::write_parameter(const ParameterRecord& record) {
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
  guarded([&] {
    const std::string group = parameter_path(record.name);
    describe_parameter(file_, {.name = record.name,
                               .shape = record.shape,
                               .encoding = record.encoding,
                               .nnz = record.nnz,
                               .dtype = record.values.dtype});
    write_dataset(file_, group + "/values", stored_type(record.values.dtype),
                  full ? record.shape.extents() : std::span(&record.nnz, 1),
                  bytes_of(record.values));
    if (!full) {
      const hdf5::Type type = index_type(record.encoding);
      const auto count = static_cast<int64_t>(record.index.size() / hdf5::size_of(type));
      write_dataset(file_, group + "/index", type, std::span(&count, 1),
                    std::as_bytes(record.index));
    }
  });
}

void CheckpointWriter::write_optimizer(const std::string& name, const std::string& kind,
                                       const Tensor& tensor) {
  require(is_optimizer_kind(kind), "kind of optimizer state", kind);
  require(tensor.contiguous(), "optimizer state is contiguous", name, kind);
  guarded([&] {
    const std::string group = optimizer_path(name);
    if (!file_.exists(group)) {
      file_.make_group(group);
    }
    const int64_t count = tensor.count();
    write_dataset(file_, group + "/" + kind, stored_type(tensor.dtype), std::span(&count, 1),
                  bytes_of(tensor));
  });
}

std::vector<ReservedDataset> CheckpointWriter::reserve(const ReservedParameter& layout) {
  std::vector<ReservedDataset> out;
  const auto add = [&](const std::string& path, hdf5::Type type, std::span<const int64_t> extents) {
    out.push_back({.path = path, .offset = file_.reserve(path, type, extents)});
  };
  guarded([&] {
    const bool full = layout.encoding == "full";
    const std::string group = parameter_path(layout.name);
    describe_parameter(file_, layout);
    add(group + "/values", stored_type(layout.dtype),
        full ? layout.shape.extents() : std::span(&layout.nnz, 1));
    if (!full) {
      const hdf5::Type type = index_type(layout.encoding);
      const int64_t count = layout.index_bytes / static_cast<int64_t>(hdf5::size_of(type));
      add(group + "/index", type, std::span(&count, 1));
    }
    if (!layout.states.empty()) {
      file_.make_group(optimizer_path(layout.name));
    }
    for (const std::string& kind : layout.states) {
      require(is_optimizer_kind(kind), "kind of optimizer state", kind);
      add(optimizer_path(layout.name) + "/" + kind, hdf5::Type::fp32, std::span(&layout.nnz, 1));
    }
  });
  return out;
}

void CheckpointWriter::set_checksum(const ReservedDataset& dataset, uint64_t checksum) {
  guarded([&] { file_.set_text(dataset.path, "checksum", hex_of(checksum)); });
}

void CheckpointWriter::complete() {
  guarded([&] { file_.complete(); });
}

void CheckpointWriter::commit() {
  guarded([&] { file_.finish(); });
}

uint64_t checkpoint_checksum(std::span<const std::byte> bytes) {
  return XXH64(bytes.data(), bytes.size(), 0);
}

uint64_t checkpoint_checksum(std::span<const std::byte> bytes,
                             const std::function<void(std::span<const std::byte>)>& look) {
  constexpr size_t kPiece = size_t{64} << 10U;
  XXH64_state_t state;
  XXH64_reset(&state, 0);
  while (!bytes.empty()) {
    const auto piece = bytes.first(std::min(kPiece, bytes.size()));
    XXH64_update(&state, piece.data(), piece.size());
    look(piece);
    bytes = bytes.subspan(piece.size());
  }
  return XXH64_digest(&state);
}

struct CheckpointChecksum::State {
  XXH64_state_t hash;
};

CheckpointChecksum::CheckpointChecksum() : state_(std::make_unique<State>()) {
  XXH64_reset(&state_->hash, 0);
}
CheckpointChecksum::~CheckpointChecksum() = default;

void CheckpointChecksum::add(std::span<const std::byte> bytes) {
  XXH64_update(&state_->hash, bytes.data(), bytes.size());
}

uint64_t CheckpointChecksum::value() const { return XXH64_digest(&state_->hash); }

std::map<std::string, std::string> texts_of_model(const CheckpointMeta& meta) {
  std::map<std::string, std::string> texts;
  for (const auto& [name, text] : meta.extra) {
    if (name == kTokenizerText || name.starts_with(kHubTexts)) {
      texts[name] = text;
    }
  }
  return texts;
}

void ReservedDatasetWriter::finish() {
  guarded([&] {
    file_.finish();
    check_system(file_.error() == 0, file_.error(), "{} cannot be written: {}; {}", path_.string(),
                 cause_of(file_.error()), kWriteAdvice);
  });
}

std::string hdf5_library() { return hdf5::library(); }

bool is_checkpoint(const std::filesystem::path& path) {
  const hdf5::Reader file(path);
  return file.exists("/meta") && file.exists("/params");
}

void CheckpointReader::expect(bool ok, std::string_view what) const {
  check(ok, "{}: {}: the file is damaged, use another checkpoint", path_.string(), what);
}

void CheckpointReader::expect_attribute(const std::string& group, const std::string& name) const {
  const auto found = file_.attributes(group);
  expect(std::ranges::find(found, name) != found.end(),
         fmt::format("attribute {} of {} is missing", name, group));
}

int64_t CheckpointReader::number(const std::string& group, const std::string& name) const {
  expect_attribute(group, name);
  const auto values = file_.integers(group, name);
  expect(values.size() == 1, fmt::format("attribute {} of {} is not one number", name, group));
  return values[0];
}

std::string CheckpointReader::text(const std::string& at, const std::string& name) const {
  expect_attribute(at, name);
  return file_.text(at, name);
}

/// Verified by their checksum, which version 1 does not have: HDF5 checksums texts of fixed length.
std::map<std::string, std::string> CheckpointReader::texts(
    const std::string& group, std::span<const std::string> names) const {
  Texts out;
  for (const std::string& name : names) {
    out[name] = text(group, name);
  }
  expect(version_ < 2 || text(group, "checksum") == checksum_of(out),
         fmt::format("the text attributes of {} do not match their checksum", group));
  return out;
}

void CheckpointReader::check_format() {
  const auto no_checkpoint = [&](bool ok, std::string_view why) {
    check(ok,
          "{} is HDF5 but not an Espalier checkpoint ({}): use `espalier import` for plain arrays",
          path_.string(), why);
  };
  no_checkpoint(file_.exists("/meta") && file_.exists("/params"), "no /meta and /params");
  const auto attributes = file_.attributes("/meta");
  no_checkpoint(std::ranges::find(attributes, "format") != attributes.end() &&
                    file_.text("/meta", "format") == kFormat,
                "its /meta names no such format");
  version_ = number("/meta", "version");
  check(version_ >= 1 && version_ <= kCheckpointVersion,
        "{} has checkpoint version {}, this program reads versions 1 to {}: use a newer program",
        path_.string(), version_, kCheckpointVersion);
}

hdf5::Dataset CheckpointReader::dataset(const std::string& at) const {
  expect(file_.exists(at), fmt::format("dataset {} is missing", at));
  return file_.describe(at);
}

Shape CheckpointReader::shape(const std::string& group) const {
  expect_attribute(group, "shape");
  const auto extents = file_.integers(group, "shape");
  bool sane = extents.size() <= Shape::kMaxRank;
  double count = 1;
  for (const int64_t extent : extents) {
    sane = sane && extent >= 0;
    count *= static_cast<double>(extent);
  }
  const double most = std::min(0x1p60, kMaxElementsPerByte * static_cast<double>(file_.size()));
  expect(sane && count <= most, fmt::format("shape [{}] of {} is impossible in a file of {} bytes",
                                            fmt::join(extents, ", "), group, file_.size()));
  return Shape(extents);
}

StoredParameter CheckpointReader::info(const std::string& name) const {
  auto found = infos_.find(name);
  if (found == infos_.end()) {
    found = infos_.emplace(name, read_info(name)).first;
  }
  return found->second;
}

StoredParameter CheckpointReader::read_info(const std::string& name) const {
  const std::string group = parameter_path(name);
  check(has(name), "{} has no parameter {}", path_.string(), name);
  static const std::array<std::string, 2> kTexts{"encoding", "dtype"};
  const Texts about = texts(group, kTexts);
  StoredParameter out{.name = name,
                      .shape = shape(group),
                      .encoding = about.at("encoding"),
                      .nnz = number(group, "nnz"),
                      .optimizer = {}};
  const bool full = out.encoding == "full";
  expect(out.nnz >= 0 && (full ? out.nnz == out.shape.count() : out.nnz <= out.shape.count()),
         fmt::format("nnz = {} does not fit shape {} of {}", out.nnz, out.shape.text(), group));

  const hdf5::Dataset values = dataset(group + "/values");
  const std::string& dtype = about.at("dtype");
  expect(values.count == out.nnz,
         fmt::format("{}/values has {} elements but nnz = {}", group, values.count, out.nnz));
  expect(dtype == "fp32" || dtype == "bf16" || dtype == "fp16",
         fmt::format("dtype \"{}\" of {} is none of fp32, bf16 and fp16", dtype, group));
  out.dtype = dtype_by_name(dtype);
  expect(values.type == stored_type(out.dtype),
         fmt::format("{}/values is not stored as its dtype {}", group, dtype));
  out.value_bytes = static_cast<size_t>(values.count) * size_of(out.dtype);
  if (!full) {
    const hdf5::Dataset index = dataset(group + "/index");
    expect(index.type == index_type(out.encoding),
           fmt::format("{}/index has the wrong element type", group));
    expect(out.encoding != "int32" || index.count == out.nnz,
           fmt::format("{}/index has {} positions but nnz = {}", group, index.count, out.nnz));
    out.index_bytes = static_cast<size_t>(index.count) * hdf5::size_of(index.type);
  }
  if (file_.exists(optimizer_path(name))) {
    out.optimizer = file_.children(optimizer_path(name));
  }
  return out;
}

void CheckpointReader::verified_read(const std::string& at, hdf5::Type type,
                                     std::span<std::byte> out) const {
  file_.read(at, type, out);
  expect_checksum(at, checkpoint_checksum(out));
}

void CheckpointReader::expect_checksum(const std::string& at, uint64_t checksum) const {
  const std::string stated = text(at, "checksum");
  const std::string found = hex_of(checksum);
  check(stated == found,
        "{}: dataset {} is damaged (checksum {}, should be {}): use another checkpoint",
        path_.string(), at, found, stated);
}

void CheckpointReader::read_tensor(const std::string& at, const Tensor& out) const {
  const hdf5::Dataset found = dataset(at);
  expect(is_value(found.type), fmt::format("dataset {} is none of fp32, bf16 and fp16", at));
  expect(found.count == out.count(),
         fmt::format("dataset {} has {} elements, expected {}", at, found.count, out.count()));
  require(out.contiguous(), "values are read into contiguous memory", at);
  if (stored_type(out.dtype) == found.type) {
    verified_read(at, found.type, {static_cast<std::byte*>(out.data), out.bytes()});
    return;
  }
  const DType dtype = dtype_in_memory(found.type);
  std::vector<std::byte> raw(static_cast<size_t>(found.count) * size_of(dtype));
  verified_read(at, found.type, raw);
  convert(Tensor(raw.data(), dtype, Shape{found.count}), out.reshaped(Shape{found.count}));
}

CheckpointReader::CheckpointReader(std::filesystem::path path)
    : path_(std::move(path)), file_(path_) {
  check_format();
  names_ = file_.children("/params");
  known_.insert(names_.begin(), names_.end());
}

CheckpointMeta CheckpointReader::meta() const {
  std::vector<std::string> names{"format", "config"};
  for (const std::string& name : file_.attributes("/meta")) {
    if (!is_reserved(name)) {
      names.push_back(name);
    }
  }
  CheckpointMeta out{.step = number("/meta", "step"), .config = {}, .extra = texts("/meta", names)};
  out.extra.erase("format");
  out.config = out.extra.extract("config").mapped();
  return out;
}

bool CheckpointReader::has(const std::string& name) const { return known_.contains(name); }

void CheckpointReader::values(const std::string& name, const Tensor& out) const {
  info(name);
  read_tensor(parameter_path(name) + "/values", out);
}

void CheckpointReader::value_bytes(const std::string& name, uint64_t first,
                                   std::span<std::byte> out) const {
  info(name);
  file_.read_part(parameter_path(name) + "/values", first, out);
}

void CheckpointReader::verify_values(const std::string& name, uint64_t checksum) const {
  expect_checksum(parameter_path(name) + "/values", checksum);
}

std::vector<uint8_t> CheckpointReader::index(const std::string& name) const {
  const StoredParameter about = info(name);
  std::vector<uint8_t> out(about.index_bytes);
  if (about.encoding != "full") {
    verified_read(parameter_path(name) + "/index", index_type(about.encoding),
                  std::as_writable_bytes(std::span(out)));
  }
  return out;
}

bool CheckpointReader::has_optimizer(const std::string& name, const std::string& kind) const {
  return file_.exists(optimizer_path(name) + "/" + kind);
}

void CheckpointReader::optimizer(const std::string& name, const std::string& kind,
                                 const Tensor& out) const {
  require(is_optimizer_kind(kind), "kind of optimizer state", kind);
  const int64_t nnz = info(name).nnz;
  require(out.count() == nnz, "optimizer state has one element for each kept one", name, kind,
          out.count(), nnz);
  read_tensor(optimizer_path(name) + "/" + kind, out);
}

std::vector<CheckpointReader::Verified> CheckpointReader::verify_all(FilePart part) const {
  std::vector<Verified> out;
  std::vector<std::byte> buffer;  // of the largest dataset so far
  uint64_t before = 0;            // bytes of the datasets before this one
  for (const std::string& at : file_.datasets()) {
    Verified row;
    row.dataset = at;
    try {
      const hdf5::Dataset found = dataset(at);
      row.bytes = static_cast<size_t>(found.count) * hdf5::size_of(found.type);
      const bool mine = part_at(before, part.count) == part.index;
      before += row.bytes;
      if (!mine) {
        continue;
      }
      buffer.resize(std::max(buffer.size(), row.bytes));
      verified_read(at, found.type, std::span(buffer).first(row.bytes));
      row.ok = true;
      row.finite = !is_value(found.type) ||
                   all_finite(std::span(buffer).first(row.bytes), dtype_in_memory(found.type));
    } catch (const Failure& failure) {
      if (failure.retryable() && !is_unreadable(failure)) {
        throw;  // not the file's fault
      }
      row.error = failure.what();
      row.unreadable = is_unreadable(failure);
    }
    out.push_back(std::move(row));
  }
  return out;
}

/// Of `count` parts of the file, the one that a dataset belongs to. `before`: bytes of the datasets
/// before it.
int CheckpointReader::part_at(uint64_t before, int count) const {
  const double share = static_cast<double>(before) / static_cast<double>(file_.size());
  return std::min(static_cast<int>(share * count), count - 1);
}

}  // namespace espalier::io
