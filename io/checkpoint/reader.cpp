#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "io/checkpoint/checkpoint.h"
#include "io/checkpoint/format.h"
#include "src/core/error.h"

namespace espalier::io {
namespace {

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

}  // namespace

std::string hdf5_library() { return hdf5::library(); }

bool is_checkpoint(const std::filesystem::path& path) {
  const hdf5::File file = hdf5::File::open(path);
  return file.exists("/meta") && file.exists("/params");
}

struct CheckpointReader::State {
  std::filesystem::path path;
  hdf5::File file;
  std::vector<std::string> names;

  explicit State(std::filesystem::path at) : path(std::move(at)), file(hdf5::File::open(path)) {}

  /// Says that the file is damaged unless `ok`; `what` is the part that does not fit.
  void expect(bool ok, std::string_view what) const {
    check(ok, "{}: {}: the file is damaged, use another checkpoint", path.string(), what);
  }
  void expect_attribute(const std::string& group, const std::string& name) const {
    const auto found = file.attributes(group);
    expect(std::ranges::find(found, name) != found.end(),
           fmt::format("attribute {} of {} is missing", name, group));
  }
  int64_t number(const std::string& group, const std::string& name) const {
    expect_attribute(group, name);
    const auto values = file.integers(group, name);
    expect(values.size() == 1, fmt::format("attribute {} of {} is not one number", name, group));
    return values[0];
  }
  std::string text(const std::string& group, const std::string& name) const {
    expect_attribute(group, name);
    return file.text(group, name);
  }

  void check_format() const;
  hdf5::Dataset dataset(const std::string& at) const;
  Shape shape(const std::string& group) const;
  ParameterInfo info(const std::string& name) const;
  void verified_read(const std::string& at, hdf5::Type type, std::span<std::byte> out) const;
  void read_tensor(const std::string& at, const Tensor& out) const;
};

void CheckpointReader::State::check_format() const {
  const auto no_checkpoint = [&](bool ok, std::string_view why) {
    check(ok,
          "{} is HDF5 but not an Espalier checkpoint ({}); plain arrays come in with `espalier "
          "import`",
          path.string(), why);
  };
  no_checkpoint(file.exists("/meta") && file.exists("/params"), "no /meta and /params");
  const auto attributes = file.attributes("/meta");
  no_checkpoint(std::ranges::find(attributes, "format") != attributes.end() &&
                    file.text("/meta", "format") == kCheckpointFormat,
                "its /meta names no such format");
  const int64_t version = number("/meta", "version");
  check(
      version == kCheckpointVersion,
      "{} has checkpoint version {}, this program reads version {}; use the program that wrote it",
      path.string(), version, kCheckpointVersion);
}

hdf5::Dataset CheckpointReader::State::dataset(const std::string& at) const {
  expect(file.exists(at), fmt::format("dataset {} is missing", at));
  const hdf5::Dataset found = file.describe(at);
  expect(found.stored_bytes <= file.size(),
         fmt::format("dataset {} claims more bytes than the file has", at));
  return found;
}

Shape CheckpointReader::State::shape(const std::string& group) const {
  expect_attribute(group, "shape");
  const auto extents = file.integers(group, "shape");
  bool sane = extents.size() <= Shape::kMaxRank;
  double count = 1;
  for (const int64_t extent : extents) {
    sane = sane && extent >= 0;
    count *= static_cast<double>(extent);
  }
  expect(sane && count < 0x1p60,
         fmt::format("shape [{}] of {} is impossible", fmt::join(extents, ", "), group));
  return Shape(extents);
}

ParameterInfo CheckpointReader::State::info(const std::string& name) const {
  const std::string group = parameter_path(name);
  check(std::ranges::find(names, name) != names.end(), "{} has no parameter {}", path.string(),
        name);
  ParameterInfo out{.name = name,
                    .shape = shape(group),
                    .encoding = text(group, "encoding"),
                    .nnz = number(group, "nnz"),
                    .optimizer = {}};
  check(std::ranges::find(kIndexEncodings, out.encoding) != kIndexEncodings.end(),
        "{}: {} is encoded as \"{}\", which this version does not know; known: {}", path.string(),
        group, out.encoding, fmt::join(kIndexEncodings, ", "));
  const bool full = out.encoding == "full";
  expect(out.nnz >= 0 && (full ? out.nnz == out.shape.count() : out.nnz <= out.shape.count()),
         fmt::format("nnz = {} does not fit shape {} of {}", out.nnz, out.shape.text(), group));

  const hdf5::Dataset values = dataset(group + "/values");
  const std::string dtype = text(group, "dtype");
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
  if (file.exists(optimizer_path(name))) {
    out.optimizer = file.children(optimizer_path(name));
  }
  return out;
}

void CheckpointReader::State::verified_read(const std::string& at, hdf5::Type type,
                                            std::span<std::byte> out) const {
  const std::string stated = text(at, "checksum");
  file.read(at, type, out);
  const std::string found = checksum_of(out);
  check(stated == found,
        "{}: dataset {} is damaged (checksum {}, should be {}): use another checkpoint",
        path.string(), at, found, stated);
}

void CheckpointReader::State::read_tensor(const std::string& at, const Tensor& out) const {
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
    : state_(std::make_unique<State>(std::move(path))) {
  state_->check_format();
  state_->names = state_->file.children("/params");
}

CheckpointReader::CheckpointReader(CheckpointReader&&) noexcept = default;
CheckpointReader::~CheckpointReader() = default;

const std::filesystem::path& CheckpointReader::path() const { return state_->path; }

CheckpointMeta CheckpointReader::meta() const {
  CheckpointMeta out{.step = state_->number("/meta", "step"),
                     .data_cursor = state_->number("/meta", "data_cursor"),
                     .rng = state_->number("/meta", "rng"),
                     .config = state_->text("/meta", "config"),
                     .extra = {}};
  for (const std::string& name : state_->file.attributes("/meta")) {
    if (!is_reserved(name)) {
      out.extra[name] = state_->file.text("/meta", name);
    }
  }
  return out;
}

std::vector<std::string> CheckpointReader::names() const { return state_->names; }

bool CheckpointReader::has(const std::string& name) const {
  return std::ranges::find(state_->names, name) != state_->names.end();
}

ParameterInfo CheckpointReader::info(const std::string& name) const { return state_->info(name); }

void CheckpointReader::values(const std::string& name, const Tensor& out) const {
  state_->info(name);
  state_->read_tensor(parameter_path(name) + "/values", out);
}

std::vector<uint8_t> CheckpointReader::index(const std::string& name) const {
  const ParameterInfo info = state_->info(name);
  std::vector<uint8_t> out(info.index_bytes);
  if (info.encoding != "full") {
    state_->verified_read(parameter_path(name) + "/index", index_type(info.encoding),
                          std::as_writable_bytes(std::span(out)));
  }
  return out;
}

bool CheckpointReader::has_optimizer(const std::string& name, const std::string& kind) const {
  return state_->file.exists(optimizer_path(name) + "/" + kind);
}

void CheckpointReader::optimizer(const std::string& name, const std::string& kind,
                                 const Tensor& out) const {
  require(is_optimizer_kind(kind), "kind of optimizer state", kind);
  const int64_t nnz = state_->info(name).nnz;
  require(kind == kLowRankKind || out.count() == nnz,
          "optimizer state has one element for each kept one", name, kind, out.count(), nnz);
  state_->read_tensor(optimizer_path(name) + "/" + kind, out);
}

Shape CheckpointReader::optimizer_shape(const std::string& name, const std::string& kind) const {
  const std::string at = optimizer_path(name) + "/" + kind;
  const hdf5::Dataset found = state_->dataset(at);
  state_->expect(found.extents.size() <= Shape::kMaxRank,
                 fmt::format("dataset {} has impossible extents", at));
  return Shape(found.extents);
}

std::vector<CheckpointReader::Verified> CheckpointReader::verify_all() const {
  std::vector<Verified> out;
  for (const std::string& at : state_->file.datasets()) {
    Verified row;
    row.dataset = at;
    try {
      const hdf5::Dataset found = state_->dataset(at);
      row.bytes = static_cast<size_t>(found.count) * hdf5::size_of(found.type);
      std::vector<std::byte> bytes(row.bytes);
      state_->verified_read(at, found.type, bytes);
      row.ok = true;
    } catch (const Failure& failure) {
      row.error = failure.what();
    }
    out.push_back(std::move(row));
  }
  return out;
}

}  // namespace espalier::io
