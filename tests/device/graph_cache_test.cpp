// Recording and replay of work (stage/graph_cache.h) on a simulated device, and the device's errors
// for invalid recordings.
#include "src/train/stage/graph_cache.h"

#include "src/core/mirror.h"
#include "src/kernels/backend.h"
#include "tests/device/late_table.h"
#include "tests/simt/device.h"
#include "tests/support/matchers.h"

namespace espalier::graph_cache_test {
namespace {

using ::testing::Each;
using ::testing::ThrowsMessage;

class Recorded : public ::testing::Test {
 protected:
  Recorded() { cache_.enable(true); }
  Buffer numbers(float value) {
    Buffer made = arena().allocate(Memory::scratch, "numbers", DType::fp32, Shape{8});
    fill(stream(), made.tensor(), value);
    return made;
  }
  static void fill(Stream& stream, const Tensor& x, float value) {
    testing::late_table().fill(stream, {.x = x, .value = value});
  }
  static void add(Stream& stream, const Tensor& from, const Tensor& to) {
    testing::late_table().cast(stream, {.x = from, .y = to, .accumulate = true});
  }
  std::vector<float> read(const Tensor& x) {
    const Mirror mirror(stream(), x);
    const auto values = mirror.read().host().span<float>();
    return {values.begin(), values.end()};
  }
  Arena& arena() { return backend_.arena(); }
  Stream& stream() { return backend_.stream(); }
  Stream& side() { return *stream().side(); }
  simt::GuardedQueue& queue() { return dynamic_cast<simt::GuardedQueue&>(*stream().queue()); }

  kernels::Backend backend_{testing::late_table(), 1};
  train::GraphCache<int, int> cache_{stream()};
};

TEST_F(Recorded, WorkIsEnqueuedThenReplayed) {
  const Buffer one = numbers(1);
  const Buffer sum = numbers(0);
  cache_.invalidate_if(0);
  int calls = 0;
  std::vector<bool> recorded;
  const auto work = [&](bool records) {
    recorded.push_back(records);
    add(stream(), one.tensor(), sum.tensor());
    add(stream(), one.tensor(), sum.tensor());
    return ++calls;
  };
  std::vector<int> results;
  for (int i = 0; i < 6; ++i) {
    const int64_t before = queue().calls();
    results.push_back(cache_.run(7, work));
    EXPECT_EQ(queue().calls() - before, i < 2 ? 2 : 1);
  }
  EXPECT_EQ(recorded, (std::vector<bool>{false, false, true}));
  EXPECT_EQ(results, (std::vector<int>{1, 2, 3, 3, 3, 3})) << "that of the recording";
  EXPECT_EQ(cache_.replayed(), 4);
  EXPECT_THAT(read(sum.tensor()), Each(12.0F));
}

TEST_F(Recorded, KeysAndChangesHaveRecordingsOfTheirOwn) {
  const Buffer one = numbers(1);
  const Buffer ten = numbers(10);
  const Buffer sum = numbers(0);
  const auto run = [&](int key) {
    return cache_.run(key, [&](bool) {
      add(stream(), key == 1 ? one.tensor() : ten.tensor(), sum.tensor());
      return key;
    });
  };
  for (int i = 0; i < 4; ++i) {
    cache_.invalidate_if(0);
    EXPECT_EQ(run(1), 1);
    EXPECT_EQ(run(2), 2);
  }
  EXPECT_THAT(read(sum.tensor()), Each(44.0F));
  EXPECT_EQ(cache_.replayed(), 4);
  cache_.invalidate_if(1);
  run(1);
  run(1);
  EXPECT_EQ(cache_.replayed(), 4) << "run directly, as at first";
  run(1);
  EXPECT_EQ(cache_.replayed(), 5);
  stream().workspace(1000);  // the workspace moves
  cache_.invalidate_if(1);
  run(1);
  EXPECT_EQ(cache_.replayed(), 5);
  EXPECT_THAT(read(sum.tensor()), Each(48.0F));
}

TEST_F(Recorded, OtherQueuesAreInIt) {
  const Buffer one = numbers(1);
  const Buffer left = numbers(0);
  const Buffer right = numbers(0);
  cache_.invalidate_if(0);
  for (int i = 0; i < 5; ++i) {
    cache_.run(1, [&](bool) {
      side().follow(stream(), stream().mark());
      add(side(), one.tensor(), left.tensor());
      add(stream(), one.tensor(), right.tensor());
      stream().follow(side(), side().mark());
      add(stream(), left.tensor(), right.tensor());
      return 0;
    });
  }
  EXPECT_EQ(cache_.replayed(), 3);
  EXPECT_THAT(read(left.tensor()), Each(5.0F));
  EXPECT_THAT(read(right.tensor()), Each(5.0F + 1 + 2 + 3 + 4 + 5));
}

TEST_F(Recorded, RefusedWorkIsEnqueuedDirectly) {
  const Buffer one = numbers(1);
  const Buffer sum = numbers(0);
  cache_.invalidate_if(0);
  for (const int64_t call : {0, 2, 5, 1000}) {
    simt::refuse_recordings(call);
    for (int i = 0; i < 5; ++i) {
      cache_.run(static_cast<int>(call), [&](bool) {
        add(stream(), one.tensor(), sum.tensor());
        add(stream(), one.tensor(), sum.tensor());
        return 0;
      });
    }
  }
  simt::refuse_recordings(-1);
  EXPECT_EQ(cache_.replayed(), 0);
  EXPECT_THAT(cache_.take_failure(), HasSubstr("planted"));
  EXPECT_EQ(cache_.take_failure(), "");
  EXPECT_THAT(read(sum.tensor()), Each(4.0F * 5 * 2));
}

TEST_F(Recorded, OffOrWithoutADeviceNothingIs) {
  Arena host;
  Stream cpu(host, 1);
  train::GraphCache<int, int> elsewhere(cpu);
  elsewhere.enable(true);
  EXPECT_FALSE(elsewhere.on());
  cache_.enable(false);
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(elsewhere.run(1, [&](bool recorded) { return recorded ? -1 : i; }), i);
    EXPECT_EQ(cache_.run(1, [&](bool recorded) { return recorded ? -1 : i; }), i);
  }
}

/// A forbidden action during a recording is a bug, at once or at the end.
TEST_F(Recorded, NothingElseHappens) {
  const Buffer x = numbers(1);
  Buffer given = numbers(1);
  const Buffer host = arena().host().allocate(Memory::scratch, "host", DType::fp32, Shape{8});
  const Mark early = stream().mark();
  const std::vector<std::pair<const char*, std::function<void()>>> mistakes{
      {"cannot be waited for", [&] { stream().synchronize(); }},
      {"cannot be queried", [&] { stream().passed(early); }},
      {"cannot be waited for", [&] { stream().wait(early); }},
      {"cannot be waited for", [&] { side().synchronize(); }},
      {"no memory is taken", [&] { numbers(2); }},
      {"pinned memory", [&] { host.tensor().get<float>()[0] = 1; }},
      {"given back", [&] { given.release(); }},
      {"follows none outside", [&] { stream().follow(side(), side().mark()); }},
      {"followed again",
       [&] {
         side().follow(stream(), stream().mark());
         fill(side(), host.tensor(), 1);
       }},
  };
  for (const auto& [what, mistake] : mistakes) {
    const auto record = [&] {
      queue().begin_recording();
      try {
        mistake();
      } catch (const Error&) {
        try {
          queue().end_recording();
        } catch (const Error&) {  // the first error counts
        }
        throw;
      }
      queue().end_recording();
    };
    EXPECT_THAT(record, ThrowsMessage<Bug>(HasSubstr(what)));
  }
}

TEST_F(Recorded, MarksEndWithIt) {
  const Buffer x = numbers(1);
  queue().begin_recording();
  const Mark mark = stream().mark();
  fill(stream(), x.tensor(), 2);
  const std::unique_ptr<Recording> made = queue().end_recording();
  EXPECT_THROW(stream().wait(mark), Bug);
  EXPECT_THROW(stream().passed(mark), Bug);
  EXPECT_THROW(side().follow(stream(), mark), Bug);
  EXPECT_THAT(read(x.tensor()), Each(1.0F)) << "nothing was done";
  queue().replay(*made);
  EXPECT_THAT(read(x.tensor()), Each(2.0F));
}

TEST_F(Recorded, AReplayAfterItsMemoryIsABug) {
  const Buffer one = numbers(1);
  Buffer x = numbers(1);
  queue().begin_recording();
  add(stream(), one.tensor(), x.tensor());
  const std::unique_ptr<Recording> made = queue().end_recording();
  queue().replay(*made);
  EXPECT_THAT(read(x.tensor()), Each(2.0F));
  x = numbers(1);  // possibly at the same address
  EXPECT_THAT([&] { queue().replay(*made); }, ThrowsMessage<Bug>(HasSubstr("given back")));
}

/// A race between a replay and work on another queue that does not wait for it.
TEST_F(Recorded, AReplayCanRaceToo) {
  const Buffer one = numbers(1);
  const Buffer x = numbers(1);
  queue().begin_recording();
  add(stream(), one.tensor(), x.tensor());
  const std::unique_ptr<Recording> made = queue().end_recording();
  stream().synchronize();
  fill(side(), x.tensor(), 3);
  stream().follow(side(), side().mark());
  queue().replay(*made);
  side().follow(stream(), stream().mark());
  fill(side(), x.tensor(), 4);
  EXPECT_THAT([&] { queue().replay(*made); }, ThrowsMessage<Bug>(HasSubstr("race: ")));
}

}  // namespace
}  // namespace espalier::graph_cache_test
