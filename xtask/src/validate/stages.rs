//! The table of stages.
use clap::builder::PossibleValuesParser;

/// Programs that a stage runs.
pub enum Work {
    /// The example `doctor`.
    Doctor,
    /// Upstream's own test files.
    Upstream,
    /// A program of Rust's test harness.
    Tests(Needs),
    /// The example `stress`.
    Stress,
    /// Random cases, by several processes.
    Fuzz,
    /// The example `sentence_embeddings`, compared with the CPU device.
    Demo,
    /// The bench `operations`.
    Benches,
    /// The example `hardware_questions`.
    Questions,
}

/// Needs of a test program beside a GPU.
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
    pub work: Work,
    /// Description in the report.
    pub what: &'static str,
    /// Longer than this is a finding, in seconds.
    pub limit: u64,
    /// About how long it takes on a GPU, in seconds.
    expect: u64,
}

const fn stage(name: &'static str, work: Work, what: &'static str, limit: u64, expect: u64) -> Stage {
    Stage { name, work, what, limit, expect }
}

const fn tests(name: &'static str, what: &'static str, expect: u64) -> Stage {
    stage(name, Work::Tests(Needs::Nothing), what, 900, expect)
}

pub const STAGES: &[Stage] = &[
    stage("doctor", Work::Doctor, "driver, GPUs, libraries, variables", 120, 5),
    stage("questions", Work::Questions, "what only hardware decides", 600, 60),
    stage("upstream", Work::Upstream, "Candle's own tests", 900, 60),
    tests("rocm_backend", "every operation, dtype and view", 60),
    tests("cut_launches", "tensors cut into several launches", 60),
    tests("host_allocations", "nothing is allocated on the host", 10),
    tests("several_streams", "several streams and GPUs", 30),
    stage("peer_access", Work::Tests(Needs::Sources), "GPUs that do not reach each other", 600, 20),
    tests("attention", "sdpa", 30),
    tests("flash_attention", "flash attention", 30),
    tests("fused", "softmax, norms, rope", 30),
    tests("layers", "the layers of candle-nn", 30),
    tests("group_norm", "norms of groups", 10),
    tests("experts", "mixtures of experts", 10),
    tests("launched_kernels", "every kernel that ships", 60),
    tests("memory", "reuse, limits, the reserve", 30),
    tests("training", "200 steps end at the CPU's loss", 60),
    tests("faults", "bad input", 20),
    tests("driver_faults", "a driver that fails", 120),
    tests("custom_kernel", "kernels of the user's own", 10),
    tests("model", "a small BERT", 20),
    tests("stable_diffusion", "a small UNet and decoder, and the decoder's memory", 60),
    tests("parity", "tiny models of candle-transformers", 90),
    tests("tiny_llama", "a small language model", 60),
    stage("decoding", Work::Tests(Needs::Objdump), "shipped instructions as LLVM decodes them", 900, 60),
    tests("differential", "all operations against the CPU device", 120),
    stage("stress", Work::Stress, "many threads, shapes, devices", 900, 200),
    stage("fuzz", Work::Fuzz, "random cases against the CPU device", 1800, 60),
    stage("demo", Work::Demo, "sentence embeddings of a real model", 600, 30),
    stage("benches", Work::Benches, "what operations take", 1500, 600),
];

/// The test programs, of which the table has a row each.
pub fn programs() -> impl Iterator<Item = &'static str> {
    STAGES.iter().filter(|stage| matches!(stage.work, Work::Tests(_))).map(|stage| stage.name)
}

/// Returns the values that `--only` takes.
pub fn names() -> PossibleValuesParser {
    STAGES.iter().map(|stage| stage.name).into()
}

impl Stage {
    pub fn is_chosen(&self, only: &[String]) -> bool {
        only.is_empty() || only.iter().any(|name| name == self.name)
    }

    pub fn is_doctor(&self) -> bool {
        matches!(self.work, Work::Doctor)
    }

    /// About how long it takes, in seconds.
    pub fn expected(&self, quick: bool) -> u64 {
        match self.work {
            Work::Stress | Work::Fuzz | Work::Benches if quick => 20,
            _ => self.expect,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::STAGES;

    #[test]
    fn an_hour_is_enough() {
        let expected: u64 = STAGES.iter().map(|stage| stage.expected(false)).sum();
        assert!(expected < 3600, "{expected} s");
        assert!(STAGES.iter().all(|stage| stage.limit > stage.expect));
    }
}
