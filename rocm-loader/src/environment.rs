//! Variables of the environment that change what ROCm or CUDA does.

/// A variable that is set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Variable {
    /// Its name.
    pub name: &'static str,
    /// Its value.
    pub value: String,
    /// The harm that it does; `None` if it does none.
    pub harm: Option<&'static str>,
}

/// The values of a variable that do harm.
enum Harm {
    No,
    Any(&'static str),
    /// Unless it is empty or 0.
    NotZero(&'static str),
    Zero(&'static str),
    /// The harm if it is empty, and if not.
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

const HIDES: &str = "GPUs that it leaves out are not there, and the others are numbered anew";
const SERIAL: &str = "every launch waits for its kernel: slow";

/// The variables that are looked for, in the order of reports.
const KNOWN: &[(&str, Harm)] = &[
    (
        "HSA_OVERRIDE_GFX_VERSION",
        EmptyOrNot(
            "empty, it makes ROCm see no GPU: unset it",
            "kernels of another GPU are run, which may compute wrong results or hang: unset it, kernels for this GPU \
             are in the binary or can be built",
        ),
    ),
    ("HIP_VISIBLE_DEVICES", Any(HIDES)),
    ("ROCR_VISIBLE_DEVICES", Any(HIDES)),
    ("CUDA_VISIBLE_DEVICES", Any("HIP obeys it too: GPUs that it leaves out are not there")),
    ("GPU_DEVICE_ORDINAL", Any(HIDES)),
    ("HSA_XNACK", NotZero("code objects for xnack- GPUs do not load while page faults are retried")),
    ("HIP_LAUNCH_BLOCKING", NotZero(SERIAL)),
    ("AMD_SERIALIZE_KERNEL", NotZero(SERIAL)),
    ("AMD_SERIALIZE_COPY", NotZero("every copy is waited for: slow")),
    ("HSA_ENABLE_SDMA", Zero("copies take compute units instead of copy engines: slow")),
    ("CUDA_LAUNCH_BLOCKING", NotZero("with CUDA every launch waits for its kernel: slow")),
    ("AMD_LOG_LEVEL", NotZero("every call is logged: slow")),
    ("ROCBLAS_LAYER", NotZero("every rocBLAS call is logged: slow")),
    (
        "ROCBLAS_TENSILE_LIBPATH",
        Any("rocBLAS takes its kernels from there, which must be those of its own version"),
    ),
    ("HSA_TOOLS_LIB", Any("a profiler is loaded into the process: slow")),
    ("MIOPEN_FIND_ENFORCE", NotZero("the first convolution of each shape searches, for minutes")),
    ("MIOPEN_FIND_MODE", No),
    ("GPU_MAX_HW_QUEUES", No),
    ("ROCM_PATH", No),
    ("CUDA_HOME", No),
    ("CUDA_PATH", No),
    ("LD_LIBRARY_PATH", No),
    ("CANDLE_ROCM_DRIVER", No),
    ("CANDLE_ROCM_DEADLINE", No),
    ("CANDLE_ROCM_DETERMINISTIC", No),
    ("CANDLE_ROCM_MIOPEN", No),
    ("CANDLE_ROCM_HIPBLASLT", No),
    ("CANDLE_ROCM_FUSION", Zero("no launches are merged: decoding with quantized weights is slower")),
    ("CANDLE_ROCM_CONV_WORKSPACE", No),
    ("CANDLE_ROCM_CONV_TUNE", NotZero("the first convolution of each shape is measured: slow at first")),
    ("CANDLE_ROCM_CONV_CACHE", No),
    ("CANDLE_ROCM_MEMORY_SHARE", No),
    ("CANDLE_ROCM_MEMORY_PARKED", No),
    ("CANDLE_ROCM_MEMORY_RESERVE", No),
    ("CANDLE_ROCM_MEMORY_IDLE", No),
    ("CANDLE_ROCM_EMULATOR", No),
];

/// Lists the variables that are set and change what ROCm, CUDA or the software GPU does, with the harm that each does.
pub fn environment() -> Vec<Variable> {
    found(|name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned()))
}

fn found(lookup: impl Fn(&str) -> Option<String>) -> Vec<Variable> {
    let variable = |(name, harm): &(&'static str, Harm)| {
        let value = lookup(name)?;
        Some(Variable { name, harm: harm.of(&value), value })
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
        let harm = |name, value| one(name, value)[0].harm;
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
