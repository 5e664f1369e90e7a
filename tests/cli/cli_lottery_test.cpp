// Lottery tickets with rewinding, by the real program.
#include <cmath>

#include "io/checkpoint/plain_hdf5.h"
#include "tests/support/program.h"

namespace espalier::cli_lottery_test {
namespace {

namespace fs = std::filesystem;

const std::string kLottery =
    "lottery c.toml --rounds 2 --rewind 5 --set pruning.at_step=-1 --set run.trace=false ";

std::string checkpoint(const std::string& run, int step) {
  return fmt::format("tickets/{}/checkpoints/step-{:06}.h5", run, step);
}

TEST(CliLottery, RoundsRewindAndPrune) {
  const Workplace here;
  const Ran ran = here.run(kLottery + "--out tickets");
  expect_code(ran, 0);
  EXPECT_NE(ran.err.find("round 2 of 2: rewound to step 5, sparsity 0.8000"), std::string::npos)
      << ran.err;
  EXPECT_EQ(ran.err.find("are lost"), std::string::npos) << ran.err;  // no metrics were
  // Round 0 is the unpruned run.
  expect_code(here.run("train c.toml --set pruning.method=none --out dense"), 0);
  const std::vector<double> dense = here.curve("dense", "loss");
  const std::vector<double> round0 = here.curve("tickets/round-0", "loss");
  EXPECT_EQ(round0, std::vector<double>(dense.begin() + 5, dense.end()));
  for (int round = 1; round <= 2; ++round) {
    const std::string run = fmt::format("round-{}", round);
    EXPECT_NEAR(here.summary("tickets/" + run)["sparsity"].get<double>(),
                1 - std::pow(0.2, round / 2.0), 1e-4);
    EXPECT_EQ(here.curve("tickets/" + run, "loss").size(), 15U) << "steps 6 to 20";
    // The start of a round: values of step 5 where the end of the round before is largest.
    const auto plain = [&](const std::string& file, const std::string& out) {
      expect_code(here.run("export " + file + " -o " + out), 0);
    };
    plain(checkpoint(run, 5), "start.h5");
    plain(checkpoint("rewind", 5), "rewind.h5");
    plain(checkpoint(fmt::format("round-{}", round - 1), 20), "end.h5");
    plain(checkpoint(run, 20), "last.h5");
    const io::PlainReader start(here / "start.h5");
    const io::PlainReader rewind(here / "rewind.h5");
    const io::PlainReader end(here / "end.h5");
    const io::PlainReader last(here / "last.h5");
    float smallest_kept = HUGE_VALF;
    float largest_gone = 0;
    for (const std::string& name : start.names()) {
      const auto is = start.read(name);
      const auto was = rewind.read(name);
      const auto trained = end.read(name);
      const auto later = last.read(name);
      const bool pruned = name.starts_with("blocks.") && start.shape(name).rank() == 2;
      for (size_t i = 0; i < is.size(); ++i) {
        if (!pruned || is[i] != 0) {
          EXPECT_EQ(is[i], was[i]) << name;
        }
        if (pruned) {
          float& limit = is[i] != 0 ? smallest_kept : largest_gone;
          const float size = std::abs(trained[i]);
          limit = is[i] != 0 ? std::min(limit, size) : std::max(limit, size);
          EXPECT_TRUE(is[i] != 0 || later[i] == 0) << name;
        }
      }
    }
    EXPECT_GE(smallest_kept, largest_gone);
  }
}

TEST(CliLottery, AnInterruptedLotteryContinues) {
  const Workplace here;
  const Ran whole = here.run(kLottery + "--out tickets");
  expect_code(whole, 0);
  const std::vector<double> losses = here.curve("tickets/round-2", "loss");
  const auto last = here.read(checkpoint("round-2", 20));
  // Round 1 ended after step 10, in the middle of the file system's state of a crash.
  fs::remove_all(here / "tickets/round-2");
  fs::remove(here / "tickets/round-1/summary.json");
  fs::remove(here / checkpoint("round-1", 15));
  fs::remove(here / checkpoint("round-1", 20));
  const Ran again = here.run(kLottery + "--out tickets");
  expect_code(again, 0);
  EXPECT_EQ(again.out, whole.out);
  EXPECT_EQ(here.curve("tickets/round-2", "loss"), losses);
  // Nothing is left to do.
  const Ran third = here.run(kLottery + "--out tickets");
  expect_code(third, 0);
  EXPECT_EQ(third.out, whole.out);
  EXPECT_EQ(third.err.find("round"), std::string::npos) << third.err;
}

TEST(CliLottery, DoesNotGoOnWithOtherData) {
  const Workplace here;
  expect_code(here.run(kLottery + "--out tickets"), 0);
  fs::remove_all(here / "tickets/round-2");
  here.shell("cp text.txt text; printf x >>text.txt");
  const Ran other = here.run(kLottery + "--out tickets");
  expect_error(other, 1, "tickets/rewind is of a run with other data: data.train had 12");
  EXPECT_NE(other.err.find("--out"), std::string::npos) << other.err;
  EXPECT_FALSE(fs::exists(here / "tickets/round-2"));
  // Each run is compared: the first may be of a version of the program without manifests.
  fs::remove(here / "tickets/rewind/manifest.json");
  expect_error(here.run(kLottery + "--out tickets"), 1, "tickets/round-0 is of a run with other");
  here.shell("mv text text.txt");
  expect_code(here.run(kLottery + "--out tickets"), 0);
}

TEST(CliLottery, ADamagedSummaryIsNotFinished) {
  const Workplace here;
  const Ran whole = here.run(kLottery + "--out tickets");
  expect_code(whole, 0);
  for (const std::string damaged : {R"({"finished":"yes"})", "{"}) {
    SCOPED_TRACE(damaged);
    here.write("tickets/round-1/summary.json", damaged);
    here.write("tickets/rewind/summary.json", R"({"steps":"5"})");
    const Ran again = here.run(kLottery + "--out tickets");
    expect_code(again, 0);
    EXPECT_EQ(again.out, whole.out);
  }
}

TEST(CliLottery, RanksMakeTheSameTickets) {
  const Workplace here;
  expect_code(here.run(kLottery + "--out one"), 0);
  const Ran two = here.shell(fmt::format("timeout 120 '{}/scripts/mpirun.sh' 2 {} {} --out two",
                                         ESPALIER_SOURCE_DIR, ESPALIER_PROGRAM, kLottery));
  expect_code(two, 0);
  const std::vector<double> one = here.curve("one/round-2", "loss");
  const std::vector<double> both = here.curve("two/round-2", "loss");
  ASSERT_EQ(one.size(), both.size());
  for (size_t i = 0; i < one.size(); ++i) {
    EXPECT_NEAR(one[i], both[i], 1e-3 * one[i]) << i;
  }
  EXPECT_EQ(here.summary("one/round-2")["sparsity"], here.summary("two/round-2")["sparsity"]);
}

TEST(CliLottery, WrongSettingsAreNamed) {
  const Workplace here;
  const std::string start = "lottery c.toml --out tickets --rounds 2 ";
  expect_error(here.run(start + "--rewind 5"), 1, "pruning.at_step");  // c.toml has at_step = 8
  const std::string fitting = start + "--set pruning.at_step=-1 ";
  expect_error(here.run(fitting + "--rewind 20"), 1, "not before the end of training");
  expect_error(here.run(fitting + "--rewind 0"), 2, "--rewind");
  expect_error(here.run(fitting + "--rewind 5 --set pruning.method=snip"), 1, "magnitude");
  expect_error(here.run(fitting + "--rewind 5 --set train.checkpoint_every=-1"), 1,
               "train.checkpoint_every");
  EXPECT_FALSE(fs::exists(here / "tickets"));
  expect_code(here.run(fitting + "--rewind 5 --set train.steps=6"), 0);
  expect_error(here.run(fitting + "--rewind 4 --set train.steps=6"), 1, "another config");
}

}  // namespace
}  // namespace espalier::cli_lottery_test
