//! Upstream's own tests on the ROCm device. This package contains none of them: `cargo xtask upstream-tests`
//! locates them in upstream's sources, rewrites them below `target/` and builds them as this package's tests.
