//! Environment variables that change the behavior of ROCm, CUDA or the software GPU.

/// A variable that is set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Variable {
    /// The variable's name.
    pub name: &'static str,
    /// The variable's value.
    pub value: String,
    /// The harmful effect of this value; `None` if there is none.
    pub warning: Option<&'static str>,
}

/// The harmful values of a variable, with the effect.
enum Harm {
    No,
    Any(&'static str),
    /// Every value except 0 and the empty one is harmful.
    NotZero(&'static str),
    Zero(&'static str),
    /// The effect of an empty value, and that of any other.
    EmptyOrNot(&'static str, &'static str),
}
use Harm::*;

impl Harm {
    fn of(&self, value: &str) -> Option<&'static str> {
        match *self {
            No => None,
            Any(harm) => Some(harm),
            NotZero(harm) => (!matches!(value.trim(), "" | "0")).then_some(harm),
            Zero(harm) => (value.trim() == "0").then_some(harm),
            EmptyOrNot(empty, otherwise) => Some(if value.is_empty() { empty } else { otherwise }),
        }
    }
}

const HIDES: &str = "GPUs that it does not list are hidden, and the others are renumbered";
const SERIAL: &str = "every launch blocks until its kernel ends: slow";

/// The known variables, in the order of reports.
const KNOWN: &[(&str, Harm)] = &[
    (
        "HSA_OVERRIDE_GFX_VERSION",
        EmptyOrNot(
            "an empty value makes ROCm see no GPU: unset it",
            "kernels for another GPU are run, which may compute wrong results or hang: unset it; kernels for this GPU \
             are in the binary or can be built",
        ),
    ),
    ("HIP_VISIBLE_DEVICES", Any(HIDES)),
    ("ROCR_VISIBLE_DEVICES", Any(HIDES)),
    ("CUDA_VISIBLE_DEVICES", Any("HIP honors it too: GPUs that it does not list are hidden")),
    ("GPU_DEVICE_ORDINAL", Any(HIDES)),
    ("HSA_XNACK", NotZero("code objects for xnack- GPUs do not load while page faults are retried")),
    ("HIP_LAUNCH_BLOCKING", NotZero(SERIAL)),
    ("AMD_SERIALIZE_KERNEL", NotZero(SERIAL)),
    ("AMD_SERIALIZE_COPY", NotZero("every copy blocks until it ends: slow")),
    ("HSA_ENABLE_SDMA", Zero("copies use compute units instead of copy engines: slow")),
    ("CUDA_LAUNCH_BLOCKING", NotZero("with CUDA every launch blocks until its kernel ends: slow")),
    ("AMD_LOG_LEVEL", NotZero("every call is logged: slow")),
    ("ROCBLAS_LAYER", NotZero("every rocBLAS call is logged: slow")),
    (
        "ROCBLAS_TENSILE_LIBPATH",
        Any("rocBLAS loads its kernels from this folder; they must be of rocBLAS' own version"),
    ),
    ("HSA_NO_SCRATCH_RECLAIM", No),
    ("HSA_TOOLS_LIB", Any("a profiler is loaded into the process: slow")),
    ("MIOPEN_FIND_ENFORCE", NotZero("the first convolution of each shape is tuned for minutes")),
    ("MIOPEN_FIND_MODE", No),
    ("GPU_MAX_HW_QUEUES", No),
    ("ROCM_PATH", No),
    ("CUDA_HOME", No),
    ("CUDA_PATH", No),
    ("LD_LIBRARY_PATH", No),
    ("CANDLE_ROCM_DRIVER", No),
    ("CANDLE_ROCM_DEADLINE", No),
    ("CANDLE_ROCM_COLLECTIVE_DEADLINE", No),
    ("CANDLE_ROCM_DETERMINISTIC", No),
    ("CANDLE_ROCM_MIOPEN", No),
    ("CANDLE_ROCM_HIPBLASLT", No),
    ("CANDLE_ROCM_FUSION", Zero("kernels are not fused: decoding with quantized weights is slower")),
    ("CANDLE_ROCM_GRAPHS", Zero("steps of models are launched kernel by kernel: generation is slower")),
    ("CANDLE_ROCM_CONV_WORKSPACE", No),
    ("CANDLE_ROCM_CONV_TUNE", NotZero("the first convolution of each shape is timed: slow at first")),
    ("CANDLE_ROCM_CONV_CACHE", No),
    ("CANDLE_ROCM_MEMORY_SHARE", No),
    ("CANDLE_ROCM_MEMORY_CACHE", No),
    ("CANDLE_ROCM_MEMORY_RESERVE", No),
    ("CANDLE_ROCM_MEMORY_IDLE", No),
    ("CANDLE_ROCM_EMULATOR", No),
];

/// Lists the variables that are set and change the behavior of ROCm, CUDA or the software GPU, with the effect if harmful.
pub fn environment() -> Vec<Variable> {
    found(|name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned()))
}

fn found(lookup: impl Fn(&str) -> Option<String>) -> Vec<Variable> {
    let variable = |(name, harm): &(&'static str, Harm)| {
        let value = lookup(name)?;
        Some(Variable { name, warning: harm.of(&value), value })
    };
    KNOWN.iter().filter_map(variable).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(name: &str, value: &str) -> Vec<Variable> {
        found(|asked| (asked == name).then(|| value.to_owned()))
    }

    #[test]
    fn harm_depends_on_the_value() {
        let harm = |name, value| one(name, value)[0].warning;
        assert!(harm("HSA_OVERRIDE_GFX_VERSION", "").is_some_and(|text| text.contains("no GPU")));
        assert!(
            harm("HSA_OVERRIDE_GFX_VERSION", "11.0.0").is_some_and(|text| text.contains("wrong results"))
        );
        assert!(harm("HIP_LAUNCH_BLOCKING", "1").is_some() && harm("HIP_LAUNCH_BLOCKING", "0").is_none());
        assert!(harm("HSA_ENABLE_SDMA", "0").is_some() && harm("HSA_ENABLE_SDMA", "1").is_none());
        assert!(harm("ROCM_PATH", "/x").is_none());
    }

    #[test]
    fn only_known_variables_are_listed() {
        assert_eq!(one("HOME", "/root"), []);
        let set = one("ROCM_PATH", "/x");
        assert_eq!((set.len(), set[0].name, set[0].value.as_str()), (1, "ROCM_PATH", "/x"));
    }
}
