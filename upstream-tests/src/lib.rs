//! Upstream's own tests on the ROCm device. Nothing of them lies here: `cargo xtask upstream-tests` finds
//! them beside upstream's sources, rewrites them below `target/` and builds them as this package's tests.
