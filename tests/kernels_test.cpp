// Every case of the table against every backend: values, thread counts, NaN, memory bounds, dry runs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <limits>

#include "tests/all_kernel_cases.h"

namespace espalier::kernels {
namespace {

const Cases& cases() {
  static const Cases all = all_cases();
  return all;
}

std::vector<const Kernels*> computing_tables() {
  std::vector<const Kernels*> tables = available();
  std::erase_if(tables, [](const Kernels* table) { return table->name == "dry"; });
  return tables;
}

/// Memory that ends at a page that may not be touched: an element too far is a crash, also for reads.
class Guarded {
 public:
  explicit Guarded(size_t bytes) : page_(static_cast<size_t>(sysconf(_SC_PAGESIZE))) {
    size_ = (bytes + page_ - 1) / page_ * page_ + page_;
    base_ = static_cast<std::byte*>(
        mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    check(base_ != MAP_FAILED, "no memory for {} bytes", size_);
    check(mprotect(base_ + size_ - page_, page_, PROT_NONE) == 0, "no guard page");
    data_ = base_ + size_ - page_ - bytes;
  }
  Guarded(Guarded&& other) noexcept
      : page_(other.page_), size_(other.size_), base_(other.base_), data_(other.data_) {
    other.base_ = nullptr;
  }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;
  Guarded& operator=(Guarded&&) = delete;
  ~Guarded() {
    if (base_ != nullptr) {
      munmap(base_, size_);
    }
  }
  std::byte* data() const { return data_; }

 private:
  size_t page_, size_ = 0;
  std::byte* base_ = nullptr;
  std::byte* data_ = nullptr;
};

/// The operands of a case in memory.
class Memories {
 public:
  explicit Memories(const Case& of) {
    for (const Operand& operand : of.operands) {
      const auto bytes = static_cast<size_t>(operand.shape.count()) * size_of(operand.dtype);
      memory_.emplace_back(bytes);
      tensors_.emplace_back(memory_.back().data(), operand.dtype, operand.shape);
      write_all(operand, tensors_.back());
    }
  }
  const Tensors& tensors() const { return tensors_; }
  /// All bytes of all operands.
  std::string bytes() const {
    std::string all;
    for (const Tensor& t : tensors_) {
      all.append(static_cast<const char*>(t.data), t.bytes());
    }
    return all;
  }

 private:
  std::vector<Guarded> memory_;
  Tensors tensors_;
};

void run(const Case& one, const Kernels& kernels, int threads, const Memories& memories) {
  Arena arena;
  Stream stream(arena, threads);
  one.run(kernels, stream, memories.tensors());
}

TEST(Kernels, every_table_agrees_with_the_reference) {
  for (const Case& one : cases()) {
    std::vector<Values> want;
    for (const Operand& operand : one.operands) {
      want.push_back(operand.values);
    }
    one.reference(want);
    for (const Kernels* table : computing_tables()) {
      const Memories memories(one);
      run(one, *table, 2, memories);
      for (size_t i = 0; i < want.size(); ++i) {
        // Inputs are compared too, exactly: they must not have changed.
        EXPECT_EQ(mismatch(one.operands[i], memories.tensors()[i], want[i]), "")
            << table->name << " " << one.name << " operand " << i;
      }
    }
  }
}

TEST(Kernels, results_do_not_depend_on_the_number_of_threads) {
  for (const Case& one : cases()) {
    if (!one.any_thread_count) {
      continue;
    }
    for (const Kernels* table : computing_tables()) {
      const Memories serial(one);
      run(one, *table, 1, serial);
      for (const int threads : {2, 3}) {
        const Memories parallel(one);
        run(one, *table, threads, parallel);
        EXPECT_TRUE(serial.bytes() == parallel.bytes()) << table->name << " " << one.name;
      }
    }
  }
}

bool any_nan(const Case& one, const Tensors& tensors) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    for (int64_t j = 0; one.operands[i].output && j < tensors[i].count(); ++j) {
      if (std::isnan(read(tensors[i], j))) {
        return true;
      }
    }
  }
  return false;
}

TEST(Kernels, nan_in_an_input_reaches_an_output) {
  for (const Case& one : cases()) {
    for (size_t i = 0; i < one.operands.size() && one.passes_nan; ++i) {
      const Operand& operand = one.operands[i];
      const bool number = operand.dtype == DType::fp32 || operand.dtype == DType::bf16;
      if (!operand.input || !number) {
        continue;
      }
      for (const Kernels* table : computing_tables()) {
        const Memories memories(one);
        write(memories.tensors()[i], operand.nan_at, std::numeric_limits<double>::quiet_NaN());
        run(one, *table, 1, memories);
        EXPECT_TRUE(any_nan(one, memories.tensors()))
            << table->name << " " << one.name << " operand " << i;
      }
    }
  }
}

TEST(Kernels, dry_counts_and_touches_nothing) {
  const Kernels& dry = by_name("dry");
  for (const Case& one : cases()) {
    const Memories memories(one);
    const bool result_is_a_number = one.operands.back().dtype == DType::uint64;
    const std::string before = memories.bytes();
    dry_count() = {};
    run(one, dry, 2, memories);
    EXPECT_TRUE(result_is_a_number || memories.bytes() == before) << one.name;
    const bool has_work = one.operands.front().shape.count() > 0;
    EXPECT_TRUE(dry_count().bytes > 0 || !has_work) << one.name;
    EXPECT_GE(dry_count().flops, 0) << one.name;
  }
}

/// d sum(weights * f(x)) / dx by central differences; f maps inputs to outputs in double.
Values numeric_gradient(Values x, const Values& weights,
                        const std::function<Values(const Values&)>& f) {
  const double step = 1e-5;
  const auto loss = [&](const Values& at) {
    double sum = 0;
    const Values y = f(at);
    for (size_t i = 0; i < y.size(); ++i) {
      sum += weights[i] * y[i];
    }
    return sum;
  };
  Values gradient(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const double centre = x[i];
    x[i] = centre + step;
    const double above = loss(x);
    x[i] = centre - step;
    gradient[i] = (above - loss(x)) / (2 * step);
    x[i] = centre;
  }
  return gradient;
}

Values values_of(const Tensor& t) {
  Values all;
  for (int64_t i = 0; i < t.count(); ++i) {
    all.push_back(read(t, i));
  }
  return all;
}

/// fp32 kernels against differences of the forward reference: rounding of sums of about 100 terms.
void expect_close(const Values& got, const Values& want, const std::string& what) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_NEAR(got[i], want[i], 2e-5 + 2e-5 * std::fabs(want[i])) << what << " " << i;
  }
}

TEST(Gradients, layernorm) {
  const int64_t rows = 3;
  const int64_t cols = 21;
  Case one = layernorm_backward_case(rows, cols, kFp32, false);
  const Values& dy = one.operands[0].values;
  const Values& x = one.operands[1].values;
  const Values& weight = one.operands[2].values;
  const Values bias(cols, 0.5);
  const auto forward = [&](const Values& at, const Values& w, const Values& b) {
    Values y(x.size()), mean(rows), rstd(rows);
    reference::layernorm(at, w, b, y, mean, rstd);
    return y;
  };
  Values y(x.size()), mean(rows), rstd(rows);
  reference::layernorm(x, weight, bias, y, mean, rstd);
  one.operands[3].values = mean;
  one.operands[4].values = rstd;
  one.operands[5].values.assign(x.size(), 0);
  for (const Kernels* table : computing_tables()) {
    const Memories memories(one);
    run(one, *table, 2, memories);
    const Tensors& t = memories.tensors();
    const auto by = [&](const Values& at, auto f) { return numeric_gradient(at, dy, f); };
    expect_close(values_of(t[5]), by(x, [&](const Values& v) { return forward(v, weight, bias); }),
                 "dx");
    expect_close(values_of(t[6]), by(weight, [&](const Values& v) { return forward(x, v, bias); }),
                 "dweight");
    expect_close(values_of(t[7]), by(bias, [&](const Values& v) { return forward(x, weight, v); }),
                 "dbias");
  }
}

TEST(Gradients, activation) {
  for (const Activation kind : {Activation::none, Activation::gelu, Activation::relu}) {
    const Case one = activation_backward_case(kind, 101, kFp32, true);
    const auto forward = [&](const Values& x) {
      Values y;
      for (const double value : x) {
        y.push_back(reference::activation(kind, value));
      }
      return y;
    };
    const Values want = numeric_gradient(one.operands[0].values, one.operands[1].values, forward);
    for (const Kernels* table : computing_tables()) {
      const Memories memories(one);
      run(one, *table, 2, memories);
      expect_close(values_of(memories.tensors()[1]), want, name_of(kind));
    }
  }
}

TEST(Gradients, attention) {
  const reference::Attention shape{2, 37, 2, 6};
  const Case one = attention_backward_case(shape, kFp32);
  const auto forward = [&](const Values& qkv) {
    Values out(qkv.size() / 3), lse(qkv.size());
    reference::attention(shape, qkv, out, lse);
    return out;
  };
  const Values want = numeric_gradient(one.operands[0].values, one.operands[3].values, forward);
  for (const Kernels* table : computing_tables()) {
    const Memories memories(one);
    run(one, *table, 2, memories);
    expect_close(values_of(memories.tensors()[4]), want, "dqkv");
  }
}

TEST(Gradients, cross_entropy) {
  const Case one = cross_entropy_case(7, 33, kFp32, Gradient::in_place);
  const auto forward = [&](const Values& logits) {
    Values losses(7);
    reference::cross_entropy(logits, one.operands[1].values, 1, losses, nullptr);
    return losses;
  };
  const Values want = numeric_gradient(one.operands[0].values, Values(7, 0.25), forward);
  for (const Kernels* table : computing_tables()) {
    const Memories memories(one);
    run(one, *table, 2, memories);
    expect_close(values_of(memories.tensors()[0]), want, "dlogits");
  }
}

TEST(Gradients, embedding) {
  Case one = embedding_backward_case({2, 3, 5}, 4);
  one.operands[2].values.assign(one.operands[2].values.size(), 0);
  one.operands[3].values.assign(one.operands[3].values.size(), 0);
  const Case forward_case = embedding_case({2, 3, 5}, 4, kFp32);
  const auto forward = [&](const Values& token) {
    std::vector<Values> v{one.operands[0].values, token, Values(25), Values(30)};
    forward_case.reference(v);
    return v[3];
  };
  const Values want = numeric_gradient(Values(20), one.operands[1].values, forward);
  for (const Kernels* table : computing_tables()) {
    const Memories memories(one);
    run(one, *table, 2, memories);
    expect_close(values_of(memories.tensors()[2]), want, "dtoken");
  }
}

}  // namespace
}  // namespace espalier::kernels
