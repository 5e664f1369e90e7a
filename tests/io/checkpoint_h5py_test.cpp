// Runs the Python lines of docs/formats.md unchanged.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>

#include "tests/io/checkpoint_example.h"

namespace espalier::io::checkpoint_h5py_test {
namespace {

namespace fs = std::filesystem;

/// The Python code blocks of a document.
std::vector<std::string> python_blocks(const fs::path& document) {
  std::ifstream file(document);
  std::vector<std::string> out;
  bool inside = false;
  for (std::string line; std::getline(file, line);) {
    if (line == "```python") {
      out.emplace_back();
      inside = true;
    } else if (line == "```") {
      inside = false;
    } else if (inside) {
      out.back() += line + "\n";
    }
  }
  return out;
}

/// A Python with h5py; empty if there is none.
std::string python() {
  const char* chosen = std::getenv("ESPALIER_PYTHON");
  for (const std::string& program :
       {std::string(chosen != nullptr ? chosen : "python3"), std::string("/usr/bin/python3")}) {
    if (std::system((program + " -c 'import h5py, numpy' >/dev/null 2>&1").c_str()) == 0) {
      return program;
    }
  }
  return "";
}

class CheckpointH5py : public CheckpointTest {};

TEST_F(CheckpointH5py, TheDocumentedTwoLinesOfH5pyGiveTheDenseArray) {
  std::vector<std::string> blocks =
      python_blocks(fs::path(ESPALIER_SOURCE_DIR) / "docs/formats.md");
  // tests/scripts/masks_in_hdf5.py runs these functions.
  std::erase_if(blocks, [](const std::string& block) { return block.starts_with("# read_masks"); });
  ASSERT_EQ(blocks.size(), 3U);  // the last one: of safetensors with kept values
  for (const std::string& block : blocks) {
    EXPECT_EQ(std::ranges::count(block, '\n'), 2) << block;
  }
  const std::string interpreter = python();
  if (interpreter.empty()) {
    GTEST_SKIP()
        << "no Python with h5py here: apt-get install python3-h5py, or set ESPALIER_PYTHON";
  }
  write(path_);
  const auto execute = [&](const std::string& code) {
    const fs::path script = folder_ / "snippet.py";
    std::ofstream(script) << code;
    EXPECT_EQ(std::system((interpreter + " " + script.string()).c_str()), 0) << code;
  };
  execute(
      "import numpy\nwant = numpy.array([[0, 1.5, 0], [-2, 0, 0], [0, 0, 4]], 'f4')\n"
      "shape, kept = numpy.array(want.shape), want.reshape(-1) != 0\n"
      "values, index = want[want != 0], numpy.packbits(kept, bitorder='little')\n" +
      blocks[2] + "assert (dense == want).all() and dense.shape == want.shape, dense\n");
  const auto run = [&](std::string code, const std::string& name, const std::string& expected) {
    const auto replace = [&](const std::string& what, const std::string& by) {
      const size_t at = code.find(what);
      ASSERT_NE(at, std::string::npos) << what;
      code.replace(at, what.size(), by);
    };
    replace("step-000100.h5", path_.string());
    replace("NAME", name);
    execute("import h5py, numpy as np\n" + code + expected);
  };
  run(blocks[0], "bits",
      "want = np.zeros((3, 5), 'f4')\n"
      "want.flat[[0, 4, 8, 14]] = np.array([0x3fc00000, 0xc0000000, 0x714a0000, 0x0da20000],\n"
      "                                    'u4').view('f4')\n"
      "assert p['values'].dtype == np.float32\n"
      "assert dense.dtype == np.float32 and (dense == want).all(), (dense, want)\n");
  run(blocks[1], "list",
      "assert dense.tolist() == [0, 0.25, -0.5, 0, 0, 0, 0, 0, 0, 3], dense\n"
      "m = h5py.File(p.file.filename)['meta'].attrs\n"
      "assert m['step'] == 7 and np.ndim(m['step']) == 0, dict(m)\n"
      "assert isinstance(m['step'], np.integer), dict(m)\n"
      "assert m['config'] == '[train]\\nsteps = 9\\n' and m['empty'] == '', dict(m)\n"
      "assert sorted(m) == ['checksum', 'config', 'empty', 'format', 'step', 'version',\n"
      "                     'vocabulary'], sorted(m)\n"
      "assert p.attrs['nnz'] == 3 and np.ndim(p.attrs['nnz']) == 0, dict(p.attrs)\n"
      "assert list(p.attrs['shape']) == [10], dict(p.attrs)\n"
      "texts = [p.attrs['dtype'], p.attrs['encoding'], p['values'].attrs['checksum']]\n"
      "assert texts[:2] == ['fp32', 'int32'] and all(type(t) is str for t in texts), texts\n"
      "assert list(p.file['params']) == ['bits', 'list', 'norm.weight']\n");
}

}  // namespace
}  // namespace espalier::io::checkpoint_h5py_test
