#pragma once
// Properties that each kernel case has on each table under test.
#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "src/kernels/backend.h"
#include "tests/kernels/kernel_memory.h"
#include "tests/kernels/tested_tables.h"

namespace espalier::kernels {

/// True if no operand has more elements.
inline bool up_to(const Case& one, int64_t elements) {
  return std::ranges::all_of(
      one.operands, [=](const Operand& operand) { return operand.shape.count() <= elements; });
}

/// Drops the cases whose rows are null in a table under test.
inline void drop_unsupported(std::vector<Case>& cases) {
  std::erase_if(cases, [](const Case& one) {
    return std::ranges::any_of(tested_tables(), [&](const TestedTable& table) {
      return one.has_rows && !one.has_rows(*table.kernels);
    });
  });
}

/// Runs a case on operands in host memory, which a device copies. Returns the bytes of workspace
/// if the table plans them. The first `spoiled` bytes of workspace are NaN before the call.
inline size_t run(const Case& one, const TestedTable& table, const Memories& memories,
                  int variation = 0, size_t spoiled = 0) {
  size_t workspace = 0;
  table.with_stream(variation, [&](Stream& stream) {
    if (spoiled > 0) {
      std::memset(stream.workspace(spoiled), 0xff, spoiled);
    }
    std::vector<Mirror> mirrors;
    Tensors tensors;
    for (const Tensor& host : memories.tensors()) {
      mirrors.push_back(Mirror::of_host(stream, host));
      mirrors.back().write();
      tensors.push_back(mirrors.back().device());
    }
    const std::string before = table.delays ? memories.bytes() : "";
    one.run(*table.kernels, stream, tensors);
    EXPECT_TRUE(!table.delays || memories.bytes() == before) << one.name << " did not wait";
    for (const Mirror& mirror : mirrors) {
      mirror.read();
    }
    workspace = table.plans ? stream.arena().use(Memory::scratch).peak : 0;
  });
  return workspace;
}

/// Plans and dry runs count the call, change nothing, and have its workspace.
inline void expect_planned(const Case& one, const TestedTable& table, size_t workspace) {
  const Memories memories(one);
  const std::string before = memories.bytes();
  const bool has_work = one.operands.front().shape.count() > 0;
  const Kernels& plan = *planning(*table.kernels).kernels;
  for (const Kernels* dry : {&plan, &by_name("dry")}) {
    Arena arena(true);
    Stream stream(arena, 2);
    dry_count() = {};
    one.run(*dry, stream, memories.tensors());
    EXPECT_TRUE(memories.bytes() == before) << dry->name << " " << one.name;
    EXPECT_TRUE(dry_count().bytes > 0 || !has_work) << dry->name << " " << one.name;
    EXPECT_GE(dry_count().flops, 0) << dry->name << " " << one.name;
    if (dry == &plan) {
      const size_t planned = arena.use(Memory::scratch).peak;
      EXPECT_LE(workspace, planned) << plan.name << " " << one.name;
      // A byte at most is planned for a call that needs none.
      EXPECT_TRUE(!table.plans_exactly || planned <= std::max<size_t>(workspace, 1))
          << plan.name << " " << one.name;
    }
  }
}

/// The reference's values, inputs unchanged, the same bits in all variations and for any contents
/// of the workspace, and the workspace of plans. Operands with more than `most_elements` are only
/// compared with the reference.
inline void expect_reference(const Case& one, const TestedTable& table,
                             const std::vector<Values>& want, int64_t most_elements) {
  const Memories memories(one);
  const size_t workspace = run(one, table, memories);
  EXPECT_EQ(mismatch(one, memories.tensors(), want), "") << table.kernels->name << " " << one.name;
  if (!up_to(one, most_elements)) {
    return;
  }
  if (table.plans) {
    expect_planned(one, table, workspace);
  }
  const bool varies = one.any_thread_count || !table.varies_threads;
  for (int variation = 1; varies && variation < table.variations; ++variation) {
    const Memories other(one);
    run(one, table, other, variation, workspace);
    EXPECT_TRUE(other.bytes() == memories.bytes())
        << table.kernels->name << " " << one.name << " variation " << variation;
  }
}

}  // namespace espalier::kernels
