// Storages that are chosen by timing: what a trial computes, and that ranks choose alike.
#include "src/train/memory/storage_choice.h"

#include <array>
#include <chrono>
#include <cmath>
#include <map>
#include <set>
#include <thread>

#include "src/model/layers/convolution.h"
#include "tests/support/failure.h"
#include "tests/support/settings.h"
#include "tests/support/support.h"

namespace espalier::storage_choice_test {
namespace {

/// Fails the allocation `left` of all.
class Exhausted : public MemorySource {
 public:
  void* allocate(size_t bytes) override {
    return --left == 0 ? nullptr : host_memory().allocate(bytes);
  }
  void free(void* data, size_t bytes) noexcept override { host_memory().free(data, bytes); }
  int left = 0;
};

/// All ranks choose from one list, though one of them has no memory for a storage.
TEST(StorageChoice, DropsWhatOneRankCannotHold) {
  io::Config config;
  testing::apply_settings(config, "pruning.method=block pruning.block=8 sparse.storage=auto");
  const auto choose = [&](Exhausted& memory, parallel::Communicator& comm) {
    Arena arena(memory);
    Stream stream(arena, 1);
    const kernels::Kernels& kernels = kernels::by_name("cpu");
    sparse::StoreOptions options;
    options.block = {.edge = 8};
    sparse::Store store(stream, kernels, {{.name = "w", .shape = {32, 32}, .prunable = true}},
                        options);
    const std::vector<bool> prunable{true};
    auto groups = train::time_storages(
        {.config = config, .store = store, .prunable = prunable, .density = 0.25, .rows = 8}, 1,
        kernels);
    memory.left = 0;
    train::keep_common_timings(groups, comm);
    std::string names;
    for (const train::StorageTiming& timing : groups.front().timings) {
      names += fmt::format("{} ", timing.storage.name);
    }
    return names;
  };
  std::set<std::string> lists;
  int refused = 0;
  for (int which = 1; which < 100; ++which) {
    std::array<std::string, 2> found;
    refused += failure_of([&] {
                 parallel::run_ranks(2, [&](parallel::Communicator& comm) {
                   Exhausted memory;
                   memory.left = comm.rank() == 1 ? which : 0;
                   found.at(static_cast<size_t>(comm.rank())) = choose(memory, comm);
                 });
               }).empty()
                   ? 0
                   : 1;
    EXPECT_EQ(found[0], found[1]) << which;
    lists.insert(found[0]);
  }
  EXPECT_GT(refused, 1) << "without memory for the trial itself there is no choice";
  EXPECT_TRUE(lists.contains("dense expanded sparse tiles block "));
  EXPECT_GT(lists.size(), 2U) << "some lists lack a storage";
}

/// The heap, with the bytes in use.
class Counted : public MemorySource {
 public:
  void* allocate(size_t bytes) override {
    now += bytes;
    most = std::max(most, now);
    return host_memory().allocate(bytes);
  }
  void free(void* data, size_t bytes) noexcept override {
    now -= bytes;
    host_memory().free(data, bytes);
  }
  size_t now = 0, most = 0;
};

/// The plan of the trials runs their code: it has the bytes that they allocate, and heap.
TEST(StorageChoice, TrialsArePlanned) {
  for (const char* const dtype : {"fp32", "bf16"}) {
    for (const bool images : {false, true}) {
      SCOPED_TRACE(fmt::format("{} {}", dtype, images ? "images" : "rows"));
      io::Config config;
      testing::apply_settings(config, "pruning.method=random sparse.storage=auto");
      const std::vector<sparse::ParameterSpec> specs =
          images ? model::Convolution("c", {.window = {.height = 16, .width = 16, .extent = 3},
                                            .in = 16,
                                            .out = 32,
                                            .linear = {.bias = false}})
                       .parameters()
                 : std::vector<sparse::ParameterSpec>{
                       {.name = "w", .shape = {192, 256}, .prunable = true}};
      const std::vector<bool> prunable(specs.size(), true);
      sparse::StoreOptions options;
      options.dtype = options.gradient = dtype_by_name(dtype);
      const auto input = [&](sparse::Store& store) {
        return train::StorageChoiceInput{.config = config,
                                         .store = store,
                                         .prunable = prunable,
                                         .density = 0.1,
                                         .samples = 8,
                                         .rows = 64};
      };
      Counted memory;
      Arena arena(memory);
      Stream stream(arena, 1);
      const kernels::Kernels& kernels = kernels::by_name("cpu");
      sparse::Store store(stream, kernels, specs, options);
      memory.most = memory.now;
      train::time_storages(input(store), 1, kernels);
      const size_t taken = memory.most - memory.now;

      Arena dry(true);
      Stream counts(dry, 1);
      options.planned = {};
      for (const sparse::ParameterSpec& spec : specs) {
        options.planned.push_back(spec.shape.count());
      }
      const kernels::Kernels& planning = *kernels::planning("cpu").kernels;
      sparse::Store planned(counts, planning, specs, options);
      const size_t plan = train::plan_timings(input(planned), 1, planning);
      EXPECT_GE(plan, taken);
      // A storage whose first run is slow is not run again, which can save memory.
      EXPECT_LE(plan, taken + taken / 5);
    }
  }
}

kernels::Kernels g_table;
double g_least = INFINITY;  // of the largest numbers of each factor of SDDMM

/// The trials of storages read each other's results. Processors may take a hundred times as long
/// for subnormal numbers, so none may come near.
TEST(StorageChoice, TimesNumbersOfNormalSize) {
  for (const double density : {0.01, 0.1, 0.5}) {
    io::Config config;
    testing::apply_settings(config, "pruning.method=random sparse.storage=auto");
    g_table = kernels::by_name("cpu");
    kernels::Kernels recording = g_table;
    recording.sddmm = [](Stream& stream, const kernels::SddmmArgs& args) {
      for (const Tensor& factor : {args.dy, args.x}) {
        double largest = 0;
        for (const float number : factor.span<float>()) {
          largest = std::max(largest, std::abs(static_cast<double>(number)));
        }
        g_least = std::min(g_least, largest);
      }
      g_table.sddmm(stream, args);
    };
    g_least = INFINITY;
    const std::vector<bool> prunable{true};
    Arena arena;
    Stream stream(arena, 1);
    sparse::Store store(stream, recording, {{.name = "w", .shape = {64, 256}, .prunable = true}},
                        {});
    train::time_storages(
        {.config = config, .store = store, .prunable = prunable, .density = density, .rows = 8}, 1,
        recording);
    EXPECT_GT(g_least, 1e-6) << density;
    EXPECT_LT(g_least, 1e6) << density;
  }
}

int g_gemms = 0;

/// Dense products take 90 ms here: no storage that uses them runs twice.
TEST(StorageChoice, RunsSlowStoragesOnce) {
  io::Config config;
  testing::apply_settings(config, "pruning.method=random sparse.storage=auto");
  g_table = kernels::by_name("cpu");
  kernels::Kernels recording = g_table;
  recording.gemm = [](Stream& stream, const kernels::GemmArgs& args) {
    ++g_gemms;
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    g_table.gemm(stream, args);
  };
  g_gemms = 0;
  const std::vector<bool> prunable{true};
  Arena arena;
  Stream stream(arena, 1);
  sparse::Store store(stream, recording, {{.name = "w", .shape = {64, 256}, .prunable = true}}, {});
  const auto groups = train::time_storages(
      {.config = config, .store = store, .prunable = prunable, .density = 0.1, .rows = 8}, 1,
      recording);
  EXPECT_EQ(g_gemms, 2 * 3) << "three products, of dense and expanded";
  ASSERT_EQ(groups.front().timings.size(), 4U);
  for (const train::StorageTiming& timing : groups.front().timings) {
    EXPECT_EQ(timing.seconds >= 0.09, timing.storage.dense_products) << timing.storage.name;
    EXPECT_EQ(timing.slowest_round == 0, timing.storage.dense_products) << timing.storage.name;
  }
}

std::map<std::string, std::set<int64_t>> g_rows;  // of the images of each operation

/// Storages of a convolution are timed by the convolution of a micro-batch: dense ones are computed
/// by other kernels than products of patches.
TEST(StorageChoice, TimesConvolutionsAsConvolutions) {
  io::Config config;
  testing::apply_settings(config, "pruning.method=random sparse.storage=auto");
  g_table = kernels::by_name("cpu");
  kernels::Kernels recording = g_table;
  recording.convolution = [](Stream& stream, const kernels::ConvolutionArgs& args) {
    g_rows["forward"].insert(args.x.rows());
    g_table.convolution(stream, args);
  };
  recording.convolution_input = [](Stream& stream, const kernels::ConvolutionInputArgs& args) {
    g_rows["input gradient"].insert(args.dx.rows());
    g_table.convolution_input(stream, args);
  };
  recording.convolution_weight = [](Stream& stream, const kernels::ConvolutionWeightArgs& args) {
    g_rows["weight gradient"].insert(args.x.rows());
    g_table.convolution_weight(stream, args);
  };
  const auto groups_of = [&](const std::vector<sparse::ParameterSpec>& specs) {
    g_rows.clear();
    Arena arena;
    Stream stream(arena, 1);
    sparse::Store store(stream, recording, specs, {});
    const std::vector<bool> prunable(specs.size(), true);
    return train::time_storages({.config = config,
                                 .store = store,
                                 .prunable = prunable,
                                 .density = 0.25,
                                 .samples = 5,
                                 .rows = 10},
                                1, recording);
  };
  const kernels::Window window{.height = 6, .width = 8, .extent = 3, .padding = 1};
  const auto convolution = [&](const std::string& name, int64_t groups, int64_t height) {
    model::Convolution::Options options{
        .window = window, .in = 4, .out = 8, .groups = groups, .linear = {.bias = false}};
    options.window.height = height;
    return model::Convolution(name, options).parameters();
  };
  const auto timed = groups_of(convolution("c", 1, 6));
  ASSERT_EQ(timed.size(), 1U);
  EXPECT_EQ(timed[0].rows, 5);
  EXPECT_EQ(timed[0].timings.size(), 4U) << "block holds no single elements";
  const std::set<int64_t> images{5 * 6 * 8};
  const std::map<std::string, std::set<int64_t>> all{
      {"forward", images}, {"input gradient", images}, {"weight gradient", images}};
  EXPECT_EQ(g_rows, all);

  // A group of a convolution is as large as a matrix of its shape, but has tiles of its own.
  const auto side_by_side = groups_of(convolution("g", 2, 6));
  ASSERT_EQ(side_by_side.size(), 1U);
  EXPECT_EQ(side_by_side[0].parameters.size(), 2U);
  EXPECT_EQ(side_by_side[0].groups, 2);
  const sparse::ParameterSpec product{.name = "w", .shape = {4, 18}, .prunable = true};
  const auto alone = groups_of({product});
  EXPECT_EQ(g_rows.size(), 0U) << "a product is no convolution";
  EXPECT_EQ(alone[0].rows, 10);
  for (size_t t = 0; t < alone[0].timings.size(); ++t) {
    EXPECT_TRUE(alone[0].timings[t].storage.keeps_forms ||
                alone[0].timings[t].bytes == side_by_side[0].timings[t].bytes)
        << t;
  }

  // Images of other sizes, and products with other rows, are timed by themselves.
  std::vector<sparse::ParameterSpec> several = convolution("a", 1, 6);
  for (const auto& more : {convolution("b", 1, 6), convolution("c", 1, 12)}) {
    several.insert(several.end(), more.begin(), more.end());
  }
  several.push_back({.name = "tokens", .shape = {8, 36}, .prunable = true, .rows = 7});
  several.push_back({.name = "rows", .shape = {8, 36}, .prunable = true});
  const auto groups = groups_of(several);
  std::multiset<std::string> found;
  for (const train::StorageGroup& group : groups) {
    found.insert(fmt::format("{} rows {} height {} x{}", group.shape.text(), group.rows,
                             group.window ? group.window->height : 0, group.parameters.size()));
  }
  const std::multiset<std::string> want{"[8, 36] rows 5 height 6 x2", "[8, 36] rows 5 height 12 x1",
                                        "[8, 36] rows 35 height 0 x1",
                                        "[8, 36] rows 10 height 0 x1"};
  EXPECT_EQ(found, want);
}

}  // namespace
}  // namespace espalier::storage_choice_test
