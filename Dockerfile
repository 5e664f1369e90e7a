# Images of Espalier on Debian 12.
#
#   docker build -t espalier .                    the program, installed from its Debian package
#   docker build -t espalier-try --target try .   the README's two commands; keeps build and runs
#
# A config in the current folder, on two ranks:
#   docker run --rm -v "$PWD:/data" espalier mpirun -n 2 espalier train CONFIG.toml
FROM debian:12 AS checkout
COPY . /espalier
WORKDIR /espalier

FROM checkout AS try
RUN ./quickstart.sh && ./test.sh

FROM checkout AS package
RUN scripts/install-packages.sh --package \
    && cmake --preset release -DESPALIER_TESTS=OFF -DESPALIER_BENCHMARKS=OFF -DESPALIER_CPU_TABLES=all \
    && cmake --build build \
    && cpack --config build/CPackConfig.cmake -B build

FROM debian:12
COPY --from=package /espalier/build/espalier_*.deb /opt/
RUN apt-get update \
    && apt-get install -y --no-install-recommends /opt/espalier_*.deb \
    && rm -rf /opt/espalier_*.deb /var/lib/apt/lists/*
# mpirun as root, and without reading the memory of other processes, which containers forbid.
ENV OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_btl_vader_single_copy_mechanism=none
WORKDIR /data
CMD ["espalier", "--help"]
