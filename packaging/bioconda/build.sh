#!/bin/bash
# conda-build runs it in the unpacked source.
set -euo pipefail

export LIBCLANG_PATH="$BUILD_PREFIX/lib"
# The same bytes in every build (scripts/reproducible).
export CONST_RANDOM_SEED=sidecore
export RUSTFLAGS="${RUSTFLAGS:-} --remap-path-prefix=$SRC_DIR=/sidecore"

cargo-bundle-licenses --format yaml --output THIRDPARTY.yml
cargo install --no-track --locked --no-default-features --root "$PREFIX" --path cli
