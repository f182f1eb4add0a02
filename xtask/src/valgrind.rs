//! `cargo xtask valgrind`: runs the unit tests of code that handles raw memory under valgrind.
use anyhow::Result;

use crate::process::{self, cargo, command};
use crate::setup;

struct Program {
    package: &'static str,
    features: &'static [&'static str],
    /// Name prefixes of the tests to run; all tests if empty.
    tests: &'static [&'static str],
    /// Tests that valgrind does not support.
    skipped: &'static [&'static str],
}

/// The loader, the allocator, and the code that prepares launches.
const PROGRAMS: &[Program] = &[
    Program { package: "rocm-loader", features: &["--features", "emulator"], tests: &[], skipped: &[] },
    Program { package: "nvidia-driver", features: &[], tests: &[], skipped: &[] },
    Program {
        package: "candle-core",
        features: &["--features", "rocm-emulator"],
        tests: &["rocm_backend::stream", "rocm_backend::device::launch", "rocm_backend::layout"],
        // loom switches stacks, which valgrind misinterprets.
        skipped: &["shared::tests"],
    },
];

/// Runs all programs under valgrind.
///
/// # Errors
/// If valgrind reports an error or a leak, or a test fails.
pub fn run() -> Result<()> {
    setup::ensure(setup::VALGRIND)?;
    for tested in PROGRAMS {
        let mut build = cargo(&["test", "--quiet", "--no-run", "--lib", "--package", tested.package]);
        let program = process::test_program(build.args(tested.features), tested.package)?;
        let mut valgrind = command("valgrind", &["--quiet", "--error-exitcode=9", "--leak-check=full"]);
        valgrind.arg("--errors-for-leak-kinds=definite").arg(program).args(tested.tests);
        for name in tested.skipped {
            valgrind.args(["--skip", name]);
        }
        process::run(valgrind.arg("--test-threads=1"))?;
    }
    println!("valgrind: ok");
    Ok(())
}
