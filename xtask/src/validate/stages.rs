//! Table of the stages.
use clap::builder::PossibleValuesParser;

/// Programs that a stage runs.
pub enum Kind {
    /// The example `doctor`.
    Doctor,
    /// Upstream's own test files.
    Upstream,
    /// Test program with Rust's test harness.
    Tests(Needs),
    /// The example `stress`.
    Stress,
    /// Random cases in several processes of the test `differential`.
    Fuzz,
    /// The program `sentence_embeddings`, compared with the CPU device.
    Demo,
    /// The benchmark `operations`.
    Benches,
    /// The example `hardware_questions`.
    Questions,
}

/// Requirements of a test program besides a GPU.
#[derive(Clone, Copy, PartialEq)]
pub enum Needs {
    Nothing,
    /// `rustc` and the sources.
    Sources,
    /// `llvm-objdump`.
    Objdump,
}

pub struct Stage {
    pub name: &'static str,
    pub kind: Kind,
    /// Description in the report.
    pub description: &'static str,
    /// Time limit in seconds; exceeding it is a failure.
    pub limit: u64,
    /// Approximate duration on a GPU in seconds.
    expected: u64,
}

const fn stage(name: &'static str, kind: Kind, text: &'static str, limit: u64, expected: u64) -> Stage {
    Stage { name, kind, description: text, limit, expected }
}

const fn tests(name: &'static str, description: &'static str, expected: u64) -> Stage {
    stage(name, Kind::Tests(Needs::Nothing), description, 900, expected)
}

pub const STAGES: &[Stage] = &[
    stage("doctor", Kind::Doctor, "driver, GPUs, libraries, variables", 120, 5),
    stage("questions", Kind::Questions, "behaviour that only hardware determines", 600, 60),
    stage("upstream", Kind::Upstream, "Candle's own tests", 900, 60),
    tests("rocm_backend", "every operation, dtype and view", 60),
    tests("cut_launches", "tensors cut into several launches", 60),
    tests("host_allocations", "nothing is allocated on the host", 10),
    tests("several_streams", "several streams and GPUs", 30),
    stage("peer_access", Kind::Tests(Needs::Sources), "GPUs without peer access", 600, 20),
    tests("attention", "sdpa", 30),
    tests("flash_attention", "flash attention", 30),
    tests("fused", "softmax, norms, rope", 30),
    tests("layers", "the layers of candle-nn", 30),
    tests("group_norm", "group norm", 10),
    tests("experts", "mixture of experts", 10),
    tests("launched_kernels", "every kernel that ships", 60),
    tests("memory", "reuse, limits, the reserve", 30),
    tests("training", "200 steps reach the CPU's loss", 60),
    tests("faults", "bad input", 20),
    tests("driver_faults", "driver calls that fail", 120),
    tests("custom_kernel", "custom kernels", 10),
    tests("bert", "a small BERT", 20),
    tests("stable_diffusion", "a small UNet and decoder, and the decoder's memory", 60),
    tests("parity", "tiny models of candle-transformers", 90),
    tests("tiny_llama", "a small language model", 60),
    stage("decoding", Kind::Tests(Needs::Objdump), "instructions decoded like LLVM", 900, 60),
    tests("differential", "all operations against the CPU device", 120),
    stage("stress", Kind::Stress, "many threads, shapes, devices", 900, 200),
    stage("fuzz", Kind::Fuzz, "random cases against the CPU device", 1800, 60),
    stage("demo", Kind::Demo, "sentence embeddings of a real model", 600, 30),
    stage("benches", Kind::Benches, "times of operations", 1500, 600),
];

/// Returns the names of the test programs in the table.
pub fn programs() -> impl Iterator<Item = &'static str> {
    STAGES.iter().filter(|stage| matches!(stage.kind, Kind::Tests(_))).map(|stage| stage.name)
}

/// Returns the values that `--only` accepts.
pub fn names() -> PossibleValuesParser {
    STAGES.iter().map(|stage| stage.name).into()
}

impl Stage {
    pub fn is_selected(&self, only: &[String]) -> bool {
        only.is_empty() || only.iter().any(|name| name == self.name)
    }

    pub fn is_doctor(&self) -> bool {
        matches!(self.kind, Kind::Doctor)
    }

    /// Returns the approximate duration in seconds.
    pub fn expected(&self, quick: bool) -> u64 {
        match self.kind {
            Kind::Stress | Kind::Fuzz | Kind::Benches if quick => 20,
            _ => self.expected,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::STAGES;

    #[test]
    fn all_stages_take_less_than_an_hour() {
        let expected: u64 = STAGES.iter().map(|stage| stage.expected(false)).sum();
        assert!(expected < 3600, "{expected} s");
        assert!(STAGES.iter().all(|stage| stage.limit > stage.expected));
    }
}
