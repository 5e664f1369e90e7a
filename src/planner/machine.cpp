#include "src/planner/machine.h"

#include <toml++/toml.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "io/files/raw_file.h"
#include "src/core/error.h"

namespace espalier::planner {

using kernels::OperationRow;

double Machine::peak_of(DType dtype) const {
  const auto found = peak.find(std::string(name_of(dtype)));
  check(found != peak.end(), "machine \"{}\" has no peak for {}: add device.peak.{}", name,
        name_of(dtype), name_of(dtype));
  return found->second;
}

size_t Machine::level_between(int64_t a, int64_t b) const {
  size_t level = 0;
  while (level + 1 < levels.size() && a / levels[level].ranks != b / levels[level].ranks) {
    ++level;
  }
  return level;
}

namespace {

constexpr size_t kFeatures = 6;
using Features = std::array<double, kFeatures>;

/// Logarithms, base 2, of extents, flops and bytes; 0 where there is none.
Features features_of(const OperationRow& row) {
  Features features{};
  for (size_t i = 0; i < row.extents.size(); ++i) {
    features[i] = row.extents[i] > 0 ? std::log2(static_cast<double>(row.extents[i])) : 0;
  }
  features[4] = std::log2(row.cost.flops + 1);
  features[5] = std::log2(row.cost.bytes + 1);
  return features;
}

double distance(const Features& a, const Features& b) {
  double sum = 0;
  for (size_t i = 0; i < kFeatures; ++i) {
    sum += (a[i] - b[i]) * (a[i] - b[i]);
  }
  return sum;
}

struct Point {
  Features features;
  double value = 0;
};

/// Solves the symmetric, positive definite system a x = b by elimination; returns x[0].
template <size_t kSize>
double first_of_solution(std::array<std::array<double, kSize>, kSize> a,
                         std::array<double, kSize> b) {
  for (size_t i = kSize; i-- > 0;) {
    for (size_t j = 0; j < i; ++j) {
      const double factor = a[j][i] / a[i][i];
      for (size_t k = 0; k <= i; ++k) {
        a[j][k] -= factor * a[i][k];
      }
      b[j] -= factor * b[i];
    }
  }
  return b[0] / a[0][0];
}

/// The value at `at`: of a plane through the nearest points, by least squares with weights
/// 1 / distance²; slopes are held small (ridge), for points that lie in few directions. Within the
/// range of these points.
double interpolated(std::vector<Point> points, const Features& at) {
  constexpr size_t kNearest = 12;
  constexpr double kSame = 1e-6;
  constexpr double kRidge = 0.05;
  constexpr size_t kSize = kFeatures + 1;
  const size_t count = std::min(kNearest, points.size());
  const auto far = [&](const Point& point) { return distance(point.features, at); };
  std::ranges::partial_sort(points, points.begin() + static_cast<std::ptrdiff_t>(count), {}, far);
  std::array<std::array<double, kSize>, kSize> products{};
  std::array<double, kSize> sums{};
  double least = points.front().value;
  double most = least;
  double weights = 0;
  for (const Point& point : std::span(points).first(count)) {
    const double weight = 1 / (far(point) + kSame);
    weights += weight;
    std::array<double, kSize> row{1};
    for (size_t i = 0; i < kFeatures; ++i) {
      row[i + 1] = point.features[i] - at[i];
    }
    for (size_t i = 0; i < kSize; ++i) {
      for (size_t j = 0; j < kSize; ++j) {
        products[i][j] += weight * row[i] * row[j];
      }
      sums[i] += weight * row[i] * point.value;
    }
    least = std::min(least, point.value);
    most = std::max(most, point.value);
  }
  for (size_t i = 1; i < kSize; ++i) {
    products[i][i] += kRidge * std::min(weights, 10.0);
  }
  return std::clamp(first_of_solution(products, sums), least, most);
}

/// Seconds at the machine's peaks, which only scales measurements.
double ideal(const Machine& machine, const OperationRow& row, DType dtype) {
  return row.cost.flops / machine.peak_of(dtype) + row.cost.bytes / machine.bandwidth;
}

bool is_product(const OperationRow& row) {
  return row.extents[0] > 0 && row.cost.flops > 0 && !row.name.starts_with("attention");
}

/// Bytes that a call of attention, whose extents are sequences, tokens and heads, reads and writes
/// of its scores.
double score_bytes(const Machine& machine, const OperationRow& row, DType dtype) {
  const double passes = machine.score_passes * (row.name == "attention_backward" ? 1.5 : 1);
  const auto tokens = static_cast<double>(row.extents[1]);
  return passes * static_cast<double>(size_of(dtype)) * tokens * tokens *
         static_cast<double>(row.extents[0] * row.extents[2]);
}

double unmeasured(const Machine& machine, const OperationRow& row, DType dtype) {
  const bool attention = row.name.starts_with("attention");
  const bool sparse = row.name.starts_with("spmm") || row.name.starts_with("sddmm") ||
                      row.name.starts_with("sparse_convolution");
  const double share = attention ? machine.attention_share
                       : sparse  ? machine.sparse_share
                                 : machine.product_share;
  const double products =
      attention || is_product(row) ? row.cost.flops / (machine.peak_of(dtype) * share) : 0;
  const double bandwidth = machine.bandwidth * machine.memory_share;
  return machine.overhead_s + std::max(products, row.cost.bytes / bandwidth) +
         (attention ? score_bytes(machine, row, dtype) / bandwidth : 0);
}

}  // namespace

std::string measured_key(DType dtype, const std::string& operation) {
  return fmt::format("{} {}", name_of(dtype), operation);
}

double seconds_of(const Machine& machine, const OperationRow& operation, DType dtype) {
  const auto found = machine.measured.find(measured_key(dtype, operation.name));
  if (found == machine.measured.end() || found->second.empty()) {
    return unmeasured(machine, operation, dtype);
  }
  if (ideal(machine, operation, dtype) == 0) {
    return 0;  // of no element
  }
  const Features at = features_of(operation);
  std::vector<Point> points;
  for (const OperationRow& row : found->second) {
    if (const double least = ideal(machine, row, dtype); least > 0) {
      points.push_back({.features = features_of(row), .value = std::log(least / row.seconds)});
    }
  }
  if (points.empty()) {
    return unmeasured(machine, operation, dtype);
  }
  return ideal(machine, operation, dtype) / std::exp(interpolated(std::move(points), at));
}

namespace {

// Beyond these bounds predictions would not be finite.
constexpr double kMostAmount = 1e24;
constexpr double kMostSeconds = 1e6;
constexpr double kLeastShare = 1e-6;

/// Reads the values of a table; every key must be taken.
class Reader {
 public:
  Reader(const toml::table& table, std::string where) : table_(table), where_(std::move(where)) {}

  std::string key(std::string_view name) const {
    return where_.empty() ? std::string(name) : fmt::format("{}.{}", where_, name);
  }
  std::string text(std::string_view name) {
    return value<std::string>(name, "a text in quotes").value_or("");
  }
  /// Above 0, or at least 0 if that is the fallback. `fallback` < 0: it must be there.
  double positive(std::string_view name, double fallback = -1) {
    const std::optional<double> found = value<double>(name, "a number");
    check(found || fallback >= 0, "{} is missing", key(name));
    const double number = found.value_or(fallback);
    check(std::isfinite(number) && (number > 0 || (number == 0 && fallback == 0)),
          "{} = {}: it must be {} 0", key(name), number, fallback == 0 ? "at least" : "above");
    return number;
  }
  /// Bytes, or flops or bytes per second.
  double amount(std::string_view name, double fallback = -1) {
    const double number = positive(name, fallback);
    check((number >= 1 || !table_.contains(name)) && number <= kMostAmount,
          "{} = {}: it must be from 1 to {:g} (bytes, or flops or bytes per second)", key(name),
          number, kMostAmount);
    return number;
  }
  double microseconds(std::string_view name) {
    const double number = positive(name, 0);
    check(number <= kMostSeconds * 1e6, "{} = {}: it must be at most {:g} microseconds", key(name),
          number, kMostSeconds * 1e6);
    return number;
  }
  double share(std::string_view name, double fallback) {
    const double number = positive(name, fallback);
    check(number >= kLeastShare && number <= 1, "{} = {}: a share is from {:g} to 1", key(name),
          number, kLeastShare);
    return number;
  }
  bool flag(std::string_view name, bool fallback) {
    take(name);
    const toml::node* node = table_.get(name);
    check(node == nullptr || node->is_boolean(), "{} must be true or false", key(name));
    return node == nullptr ? fallback : node->as_boolean()->get();
  }
  int64_t count(std::string_view name, int64_t fallback) {
    const double number = positive(name, static_cast<double>(fallback));
    check(number == std::floor(number) && number < 1e9,
          "{} = {}: it must be a whole number below 1e9", key(name), number);
    return static_cast<int64_t>(number);
  }
  const toml::table* table(std::string_view name) {
    take(name);
    const toml::node* node = table_.get(name);
    check(node == nullptr || node->is_table(), "{} must be a table", key(name));
    return node == nullptr ? nullptr : node->as_table();
  }
  const toml::array* array(std::string_view name) {
    take(name);
    const toml::node* node = table_.get(name);
    return node == nullptr ? nullptr : node->as_array();
  }
  /// An array of tables; empty: none.
  std::vector<const toml::table*> tables(std::string_view name) {
    take(name);
    std::vector<const toml::table*> all;
    if (const toml::node* node = table_.get(name)) {
      const toml::array* array = node->as_array();
      check(array != nullptr, "{} must be tables: [[{}]]", key(name), key(name));
      for (const toml::node& one : *array) {
        check(one.is_table(), "{} must be tables: [[{}]]", key(name), key(name));
        all.push_back(one.as_table());
      }
    }
    return all;
  }
  /// Throws Failure for a key that no call has read.
  void finish() const {
    for (const auto& [name, node] : table_) {
      check(std::ranges::find(taken_, name.str()) != taken_.end(),
            "{} is no key of a machine file (docs/planner.md lists them)", key(name.str()));
    }
  }

 private:
  void take(std::string_view name) { taken_.emplace_back(name); }
  template <class T>
  std::optional<T> value(std::string_view name, std::string_view expected) {
    take(name);
    const toml::node* node = table_.get(name);
    if (node == nullptr) {
      return {};
    }
    const std::optional<T> found = node->value<T>();
    check(found.has_value(), "{} must be {}", key(name), expected);
    return found;
  }

  const toml::table& table_;
  std::string where_;
  std::vector<std::string> taken_;
};

Machine machine_of(const toml::table& file) {
  Reader top(file, "");
  Machine machine{.name = top.text("name"), .source = top.text("source")};
  const toml::table* device_table = top.table("device");
  check(device_table != nullptr, "[device] is missing");
  Reader device(*device_table, "device");
  machine.bandwidth = device.amount("bandwidth");
  machine.memory = device.amount("memory");
  machine.threads = device.count("threads", 1);
  machine.product_share = device.share("product_share", machine.product_share);
  machine.attention_share = device.share("attention_share", machine.attention_share);
  machine.sparse_share = device.share("sparse_share", machine.sparse_share);
  machine.memory_share = device.share("memory_share", machine.memory_share);
  machine.score_passes = device.positive("score_passes", 0);
  check(machine.score_passes <= 1e6, "device.score_passes = {}: it must be at most 1e6",
        machine.score_passes);
  machine.overhead_s = device.microseconds("overhead_us") * 1e-6;
  machine.overlaps = device.flag("overlaps", true);
  const toml::table* peak_table = device.table("peak");
  check(peak_table != nullptr, "[device.peak] is missing");
  Reader peak(*peak_table, "device.peak");
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    const std::string name(name_of(dtype));
    if (peak_table->contains(name)) {
      machine.peak[name] = peak.amount(name);
    }
  }
  check(!machine.peak.empty(), "[device.peak] has no rate: add fp32, bf16 or fp16");
  peak.finish();
  device.finish();
  for (const toml::table* one : top.tables("level")) {
    Reader level(*one, fmt::format("level {}", machine.levels.size() + 1));
    machine.levels.push_back({.name = level.text("name"),
                              .ranks = level.count("ranks", -1),
                              .link = {.latency_s = level.microseconds("latency_us") * 1e-6,
                                       .bytes_per_s = level.amount("bandwidth")},
                              .shared = level.flag("shared", false)});
    const Level& made = machine.levels.back();
    if (machine.levels.size() > 1) {
      const Level& inner = machine.levels[machine.levels.size() - 2];
      check(made.ranks > inner.ranks && made.ranks % inner.ranks == 0,
            "level \"{}\" has {} ranks, and \"{}\" within it {}: levels nest, so the first must be "
            "a multiple of the second",
            made.name, made.ranks, inner.name, inner.ranks);
    }
    level.finish();
  }
  if (const toml::table* host_table = top.table("host")) {
    Reader host(*host_table, "host");
    machine.host_memory = host.amount("memory", 0);
    host.finish();
  }
  if (const toml::table* disk_table = top.table("disk")) {
    Reader disk(*disk_table, "disk");
    machine.disk_write = disk.amount("write", 0);
    machine.disk_read = disk.amount("read", 0);
    disk.finish();
  }
  check(!machine.levels.empty(), "[[level]] is missing: at least one kind of link");
  for (const toml::table* one : top.tables("operation")) {
    Reader operation(*one, "operation");
    const std::string name = operation.text("name");
    check(!name.empty(), "an [[operation]] has no name");
    check(
        std::ranges::any_of(std::array{DType::fp32, DType::bf16, DType::fp16},
                            [&](DType dtype) { return name.starts_with(measured_key(dtype, "")); }),
        "operation \"{}\": a name begins with its type: \"bf16 gemm\"", name);
    const toml::array* points = operation.array("points");
    check(points != nullptr, "operation \"{}\" has no points", name);
    for (const toml::node& node : *points) {
      constexpr size_t kNumbers = 7;
      const toml::array* numbers = node.as_array();
      check(numbers != nullptr && numbers->size() == kNumbers,
            "a point of operation \"{}\" must be [e1, e2, e3, e4, flops, bytes, seconds]", name);
      std::array<double, kNumbers> value{};
      for (size_t i = 0; i < kNumbers; ++i) {
        value[i] = (*numbers)[i].value<double>().value_or(-1);
        const bool last = i + 1 == kNumbers;  // seconds
        const bool possible =
            last    ? value[i] > 0 && value[i] <= kMostSeconds
            : i < 4 ? value[i] >= 0 && value[i] <= 1e15 && value[i] == std::floor(value[i])
                    : value[i] >= 0 && value[i] <= kMostAmount;
        check(possible, "operation \"{}\": {} is impossible as number {} of a point", name,
              value[i], i + 1);
      }
      OperationRow row{.name = name, .calls = 1, .seconds = value[6], .cost = {value[4], value[5]}};
      for (size_t i = 0; i < row.extents.size(); ++i) {
        row.extents[i] = static_cast<int64_t>(value[i]);
      }
      machine.measured[name].push_back(row);
    }
    operation.finish();
  }
  top.finish();
  return machine;
}

}  // namespace

Machine read_machine(const std::filesystem::path& path) {
  const std::string text = io::read_text(path, "machine file");
  try {
    return machine_of(toml::parse(text, path.string()));
  } catch (const toml::parse_error& error) {
    fail("machine file {}, line {}: {}", path.string(), error.source().begin.line,
         error.description());
  } catch (const Failure& failure) {
    fail("machine file {}: {}", path.string(), failure.what());
  }
}

std::string text_of(const Machine& machine) {
  std::string text = fmt::format(
      "name = \"{}\"\nsource = \"{}\"\n\n[device]\nbandwidth = {:.4g}\nmemory = {:.6g}\n"
      "threads = {}\nproduct_share = {:.3g}\nattention_share = {:.3g}\nsparse_share = {:.3g}\n"
      "memory_share = {:.3g}\n",
      machine.name, machine.source, machine.bandwidth, machine.memory, machine.threads,
      machine.product_share, machine.attention_share, machine.sparse_share, machine.memory_share);
  if (machine.overhead_s > 0) {
    text += fmt::format("overhead_us = {:.4g}\n", machine.overhead_s * 1e6);
  }
  if (machine.score_passes > 0) {
    text += fmt::format("score_passes = {:.4g}\n", machine.score_passes);
  }
  if (!machine.overlaps) {
    text += "overlaps = false\n";
  }
  text += "\n[device.peak]\n";
  for (const auto& [type, rate] : machine.peak) {
    text += fmt::format("{} = {:.4g}\n", type, rate);
  }
  for (const Level& level : machine.levels) {
    text += fmt::format("\n[[level]]\nname = \"{}\"\nranks = {}\nbandwidth = {:.4g}\n", level.name,
                        level.ranks, level.link.bytes_per_s);
    if (level.link.latency_s > 0) {
      text += fmt::format("latency_us = {:.4g}\n", level.link.latency_s * 1e6);
    }
    if (level.shared) {
      text += "shared = true\n";
    }
  }
  if (machine.host_memory > 0) {
    text += fmt::format("\n[host]\nmemory = {:.6g}\n", machine.host_memory);
  }
  if (machine.disk_write > 0 || machine.disk_read > 0) {
    text += "\n[disk]\n";
    for (const auto& [key, rate] :
         {std::pair{"write", machine.disk_write}, {"read", machine.disk_read}}) {
      text += rate > 0 ? fmt::format("{} = {:.4g}\n", key, rate) : "";
    }
  }
  for (const auto& [name, rows] : machine.measured) {
    text += fmt::format("\n[[operation]]\nname = \"{}\"\npoints = [\n", name);
    for (const OperationRow& row : rows) {
      text += fmt::format("  [{}, {}, {}, {}, {:.6g}, {:.6g}, {:.4g}],\n", row.extents[0],
                          row.extents[1], row.extents[2], row.extents[3], row.cost.flops,
                          row.cost.bytes, row.seconds);
    }
    text += "]\n";
  }
  return text;
}

}  // namespace espalier::planner
