// The race detector finds planted mistakes: errors in small schedules, each beside the correct
// schedule, and each wait between queues that is removed from a training step.
#include "src/kernels/backend.h"
#include "tests/device/late_runs.h"

namespace espalier::races_test {
namespace {

/// A device with two queues and some arrays.
class Races : public ::testing::Test {
 protected:
  Races() { device_.collect_races(); }
  Tensor make(Arena& arena, int64_t rows, int64_t cols) {
    buffers_.push_back(arena.allocate(Memory::scratch, "array", DType::fp32, Shape{rows, cols}));
    return buffers_.back().tensor();
  }
  Tensor numbers(int64_t rows = 4, int64_t cols = 4) {
    const Tensor made = make(arena_, rows, cols);
    first_.synchronize();  // its zeros
    return made;
  }
  static void fill(Stream& stream, const Tensor& x) {
    testing::late_table().fill(stream, {.x = x, .value = 1});
  }
  static void cast(Stream& stream, const Tensor& from, const Tensor& to) {
    testing::late_table().cast(stream, {.x = from, .y = to});
  }
  static std::vector<std::string> none() { return {}; }
  std::vector<std::string> found() { return device_.detector().take_reports(); }

  simt::SimulatedDevice device_;
  Arena pinned_{device_.pinned()};
  Arena arena_{pinned_, &device_.memory()};
  std::unique_ptr<Queue> side_ = device_.queue().make_queue();
  Stream first_{arena_, 1, &device_.queue(), side_.get()};
  Stream& second_ = *first_.side();
  std::vector<Buffer> buffers_;
};

TEST_F(Races, OfAForgottenWaitNameBothSides) {
  const Tensor x = numbers();
  const Tensor y = numbers();
  fill(first_, x);
  cast(second_, x, y);
  EXPECT_THAT(found(), ElementsAre(AllOf(HasSubstr("cast on queue 2, which reads x"),
                                         HasSubstr("not ordered after fill on the first queue, "
                                                   "which writes x"))));
  second_.synchronize();
  fill(first_, x);
  second_.follow(first_, first_.mark());
  cast(second_, x, y);
  first_.follow(second_, second_.mark());
  cast(first_, y, x);
  EXPECT_EQ(found(), none());
}

TEST_F(Races, OfAWaitForTheWrongMark) {
  const Tensor x = numbers();
  const Tensor y = numbers();
  const Mark early = first_.mark();
  fill(first_, x);
  second_.follow(first_, early);
  cast(second_, x, y);
  EXPECT_EQ(found().size(), 1U);
}

TEST_F(Races, OfABufferThatIsUsedAgainTooEarly) {
  const Tensor scratch = numbers();
  const Tensor x = numbers();
  const Tensor y = numbers();
  fill(second_, scratch);
  first_.follow(second_, second_.mark());
  cast(first_, scratch, y);
  fill(second_, scratch);  // the cast may still be reading it
  EXPECT_THAT(found(), ElementsAre(AllOf(HasSubstr("fill on queue 2, which writes x"),
                                         HasSubstr("cast on the first queue, which reads x"))));
  first_.follow(second_, second_.mark());
  cast(first_, x, scratch);
  second_.follow(first_, first_.mark());
  fill(second_, scratch);
  EXPECT_EQ(found(), none());
}

TEST_F(Races, OfAHostThatReadsTooEarly) {
  const Tensor x = numbers();
  const Tensor host = make(pinned_, 4, 4);
  fill(first_, x);
  first_.copy(x, host);
  const volatile float* seen = host.get<float>();
  static_cast<void>(seen[3]);
  EXPECT_THAT(found(), ElementsAre(AllOf(HasSubstr("a read on the host"),
                                         HasSubstr("a copy on the first queue, which "
                                                   "writes its target"))));
  first_.copy(x, host);
  first_.wait(first_.mark());
  EXPECT_EQ(seen[3], 1);
  EXPECT_EQ(found(), none());
}

TEST_F(Races, OfAHostThatWritesWhatIsStillToBeCopied) {
  const Tensor x = numbers();
  const Tensor host = make(pinned_, 4, 4);
  host.get<float>()[0] = 1;
  first_.copy(host, x);
  const Mark copied = first_.mark();
  EXPECT_EQ(host.get<float>()[1], 0) << "reading is fine";
  EXPECT_EQ(found(), none());
  host.get<float>()[2] = 5;
  EXPECT_THAT(found(), ElementsAre(HasSubstr("a write on the host")));
  first_.copy(host, x);
  const Mark again = first_.mark();
  EXPECT_GE(again, copied);
  first_.wait(again);
  host.get<float>()[2] = 6;
  EXPECT_EQ(found(), none());
}

TEST_F(Races, AreNotWithTheZerosOfNewMemory) {
  const Tensor x = make(arena_, 4, 4);
  fill(second_, x);
  EXPECT_EQ(found(), none());
  fill(first_, x);
  EXPECT_EQ(found().size(), 1U);
}

TEST_F(Races, AreNotWhatOtherQueuesOrder) {
  const std::unique_ptr<Queue> queue = device_.queue().make_queue();
  Stream third(arena_, 1, queue.get());
  const Tensor x = numbers();
  const Tensor y = numbers();
  fill(first_, x);
  third.follow(first_, first_.mark());
  second_.follow(third, third.mark());
  cast(second_, x, y);
  EXPECT_EQ(found(), none());
  second_.synchronize();  // the host knows that this queue's work is done, and enqueues after it
  fill(first_, x.row_range(0, 1));
  fill(first_, y);
  first_.synchronize();
  cast(second_, y, x);
  EXPECT_EQ(found(), none());
}

TEST_F(Races, AreNotReadsNorOtherElements) {
  const Tensor x = numbers(6, 8);
  const Tensor y = numbers();
  const Tensor z = numbers();
  cast(first_, x.row_range(0, 2), y);
  cast(second_, x.row_range(0, 2), z);
  const Tensor below = x.row_range(2, 4);
  fill(first_, below.column_range(0, 3));
  second_.follow(first_, first_.mark());
  fill(first_, below.column_range(3, 2));
  fill(second_, below.column_range(5, 3));
  EXPECT_EQ(found(), none());
  fill(second_, below.column_range(4, 1));
  EXPECT_EQ(found().size(), 1U);
}

TEST_F(Races, EndWithTheMemory) {
  Buffer x = arena_.allocate(Memory::scratch, "array", DType::fp32, Shape{1000});
  fill(first_, x.tensor());
  x.release();
  Buffer y = arena_.allocate(Memory::scratch, "array", DType::fp32, Shape{1000});
  first_.synchronize();
  fill(second_, y.tensor());
  EXPECT_EQ(found(), none());
}

TEST(RacesThrow, FromTheCallThatMakesThem) {
  kernels::Backend backend(testing::late_table(), 1);
  Stream& first = backend.stream();
  const Buffer x = backend.arena().allocate(Memory::scratch, "array", DType::fp32, Shape{8});
  testing::late_table().fill(first, {.x = x.tensor(), .value = 1});
  EXPECT_THROW(testing::late_table().fill(*first.side(), {.x = x.tensor(), .value = 1}), Bug);
  first.synchronize();
  testing::late_table().fill(*first.side(), {.x = x.tensor(), .value = 1});
}

/// Settings of a run that gathers gradients on the second queue; storage `expanded` also rebuilds
/// weights there. A wait may then coincide with another one of the same queue, which suffices.
struct Pruned {
  testing::TempDir dir;
  io::Config config = testing::tiny_config(dir);
  Pruned(const std::string& storage, const std::string& recompute, int64_t steps = 3) {
    testing::prune_expanded(config);
    config.sparse.storage.fallback = storage;
    config.pruning.at_step = 0;
    config.train.recompute = recompute;
    config.train.steps = steps;
    config.train.eval_every = 0;
  }
  testing::Outcome run() const { return testing::run_late(config); }
};

/// Minimum number of waits, of `waits` removed one by one, whose removal must be found.
int64_t least_races(const std::string& storage, int64_t waits) {
  return storage == "expanded" ? waits * 4 / 5 : waits - 3;
}

/// A run without one of its waits has a race, or the same bits where the host waits as well.
TEST(ForgottenWaits, AreFoundInTraining) {
  for (const auto& [storage, recompute] :
       {std::pair("dense", "none"), std::pair("expanded", "none"), std::pair("expanded", "full")}) {
    const Pruned pruned(storage, recompute);
    simt::forget_follow(-1);
    const testing::Outcome whole = pruned.run();
    const int64_t waits = simt::follows();
    EXPECT_GT(waits, 20);
    int64_t tried = 0;
    int64_t races = 0;
    for (int64_t number = 0; number < waits; number += 1 + number / 8) {
      simt::forget_follow(number);
      ++tried;
      try {
        EXPECT_EQ(pruned.run(), whole) << "without wait " << number;
      } catch (const Bug& bug) {
        EXPECT_THAT(bug.what(), AllOf(HasSubstr("race: "), HasSubstr("queue 2")));
        ++races;
      }
    }
    simt::forget_follow(-1);
    EXPECT_GE(races, least_races(storage, tried)) << storage << ", recompute " << recompute;
  }
}

/// The same for replays, whose waits follow those of the steps before.
TEST(ForgottenWaits, AreFoundInReplays) {
  for (const std::string storage : {"dense", "expanded"}) {
    const auto waits_of = [&](int64_t steps) {
      simt::forget_follow(-1);
      const testing::Outcome whole = Pruned(storage, "none", steps).run();
      return std::pair(simt::follows(), whole);
    };
    constexpr int64_t kSteps = 6;
    const int64_t before = waits_of(kSteps - 1).first;
    const auto [waits, whole] = waits_of(kSteps);
    EXPECT_GT(waits, before + 6);
    int64_t races = 0;
    for (int64_t number = before; number < waits; ++number) {
      simt::forget_follow(number);
      try {
        EXPECT_EQ(Pruned(storage, "none", kSteps).run(), whole) << "without wait " << number;
      } catch (const Bug& bug) {
        EXPECT_THAT(bug.what(), AllOf(HasSubstr("race: "), HasSubstr("queue 2")));
        ++races;
      }
    }
    simt::forget_follow(-1);
    EXPECT_GE(races, least_races(storage, waits - before)) << storage;
  }
}

}  // namespace
}  // namespace espalier::races_test
