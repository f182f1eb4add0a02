//! `cargo xtask demo`: compares sentence embeddings of the software GPU with those of the CPU device.
use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::process::{self, root};
use crate::software_gpu::{self, SoftwareGpu};
use crate::{example, setup, weights};

/// Exclusive upper limit of the difference between the two devices' embeddings.
const TOLERANCE: f64 = 1e-4;

#[derive(clap::Args)]
pub struct Args {
    /// Architecture of the software GPU.
    #[arg(long, default_value = software_gpu::DEFAULT)]
    arch: String,
}

/// Runs the demo on a software GPU of `arch`; the program contains the code objects of `archs` (comma-separated).
/// `features` is as for [`example::command`].
pub fn run_demo(arch: &str, archs: &str, features: Option<&[&str]>) -> Result<()> {
    software_gpu::check_arch(arch)?;
    setup::ensure(setup::DEMO)?;
    let model = weights::MINILM.ensure()?;
    let report = process::cache_file("demo.json")?;
    let mut command = example::command(example::EMBEDDINGS, archs, features)?;
    command.args(["--device", "rocm:0", "--compare", "cpu", "--model"]).arg(&model);
    command.arg("--file").arg(root().join("examples/data/sentences.txt")).arg("--report").arg(&report);
    SoftwareGpu::new(arch).apply_to(&mut command);
    process::run(&mut command)?;
    println!("{}", summary(&process::read_json(&report)?)?);
    Ok(())
}

pub fn run(args: &Args) -> Result<()> {
    run_demo(&args.arch, &args.arch, None)
}

/// Returns the summary line, or an error if the two devices' results differ.
pub fn summary(report: &Value) -> Result<String> {
    let text = |key: &str| report[key].as_str().with_context(|| format!("the report has no field '{key}'"));
    let number = |key: &str| report[key].as_f64().with_context(|| format!("the report has no field '{key}'"));
    let difference = number("max_abs_diff")?;
    let launched = number("kernels_launched")?;
    if launched == 0.0 {
        bail!("no kernel was launched: the example did not run on the device");
    }
    if difference.is_nan() || difference >= TOLERANCE {
        bail!("the devices disagree: max_abs_diff={difference:.2e}, must be below {TOLERANCE:.0e}");
    }
    Ok(format!(
        "demo: ok arch={} driver={} sentences={} max_abs_diff={difference:.2e} kernels_launched={launched}",
        text("arch")?,
        text("driver")?,
        number("sentences")?,
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::summary;

    fn report(difference: f64, launched: u64) -> serde_json::Value {
        json!({"arch": "gfx1100", "driver": "emulator", "sentences": 16,
               "max_abs_diff": difference, "kernels_launched": launched})
    }

    #[test]
    fn equal_results_give_a_summary_line() {
        let line = summary(&report(2.5e-7, 420)).unwrap();
        let expected =
            "demo: ok arch=gfx1100 driver=emulator sentences=16 max_abs_diff=2.50e-7 kernels_launched=420";
        assert_eq!(line, expected);
    }

    #[test]
    fn different_results_no_launches_and_missing_fields_fail() {
        assert!(summary(&report(1e-3, 420)).unwrap_err().to_string().contains("disagree"));
        assert!(summary(&report(0.0, 0)).unwrap_err().to_string().contains("no kernel"));
        // JSON has no NaN; serde_json writes null for it.
        assert!(summary(&report(f64::NAN, 420)).unwrap_err().to_string().contains("max_abs_diff"));
        assert!(summary(&json!({})).is_err());
    }
}
