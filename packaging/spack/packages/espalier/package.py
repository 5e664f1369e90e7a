# Recipe for Spack 1.0 and later (0.23 has no package tomlplusplus). In the root of a checkout:
#
#   spack repo add packaging/spack
#   spack dev-build espalier@main                        builds the checkout as it is
#   spack dev-build espalier@main +cuda cuda_arch=90
#   spack install --test=root espalier@main              builds branch main; runs the fast tests
import pathlib

from spack.package import *

try:  # Spack 1.0 moved them
    from spack_repo.builtin.build_systems.cmake import CMakePackage, generator
    from spack_repo.builtin.build_systems.cuda import CudaPackage
except ImportError:
    pass


class Espalier(CMakePackage, CudaPackage):
    """Trains pruned neural networks in parallel over MPI. After pruning, weights, gradients,
    optimizer state and messages hold only kept elements."""

    # The repository of this recipe. A copy in another repository needs the address here.
    git = "file://" + str(pathlib.Path(__file__).resolve().parents[4])

    license("Apache-2.0")

    version("main", branch="main")

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("cmake@3.25:", type="build")
    depends_on("pkgconfig", type="build")
    generator("ninja")

    depends_on("mpi")
    depends_on("hdf5@1.10: +mpi")
    depends_on("onednn@2.6: cpu_runtime=omp")
    depends_on("fmt@9:")
    depends_on("nlohmann-json@3.11:")
    depends_on("cli11@2.1:")
    depends_on("tomlplusplus@3.3:")
    depends_on("xxhash@0.8:")
    depends_on("pcre2@10.40: +jit")
    depends_on("utf8proc@2.6:")
    depends_on("sentencepiece@0.1.97:")
    depends_on("zlib-api")
    depends_on("cuda@12.3:", when="+cuda")
    depends_on("googletest@1.12: +gmock", type="test")
    depends_on("python", type="test")
    depends_on("py-h5py", type="test")

    conflicts("%gcc@:11", msg="GCC 12 is the oldest that compiles Espalier in tests")

    def cmake_args(self):
        args = [
            self.define("ESPALIER_TESTS", self.run_tests),
            self.define("ESPALIER_BENCHMARKS", False),
            self.define("ESPALIER_UNITY", True),
            self.define("ESPALIER_CPU_TABLES", "all"),
            self.define_from_variant("ESPALIER_CUDA", "cuda"),
        ]
        if "+cuda" in self.spec and "none" not in self.spec.variants["cuda_arch"].value:
            architectures = self.spec.variants["cuda_arch"].value
            args.append(self.define("CMAKE_CUDA_ARCHITECTURES", architectures))
        return args

    def check(self):
        with working_dir(self.build_directory):
            which("ctest")("-LE", "slow", "--output-on-failure", "-j", str(make_jobs))
