//! Every kind of difference between a compiled source and the contract is found and located.

use std::fs;

use amdgpu_code_object::{KernelMetadata, kernels};
use hip_kernels_build::check::{Difference, Disagreement, disagreements};
use hip_kernels_build::contract::{Argument, Axis, Family, Pass, names};
use hip_kernels_build::pipeline::compile_one;
use hip_kernels_build::{BuildError, Target};

const SOURCE: &str = r#"
template <typename T>
__device__ void scale(const size_t numel, const CandleLayout info, const T factor, const T *inp, T *out) {
    for (size_t i = threadIdx.x; i < numel; i += blockDim.x) {
        out[i] = (T)((float)inp[i * info.v[0]] * (float)factor);
    }
}
#define SCALE(T, NAME)                                                                                     \
    extern "C" __global__ void scale_##NAME(const size_t numel, const CandleLayout info, const T factor,   \
                                            const T *inp, T *out) {                                        \
        scale(numel, info, factor, inp, out);                                                              \
    }
SCALE(float, f32)
SCALE(__nv_bfloat16, bf16)
"#;

fn target() -> Target {
    Target::parse("gfx90a").unwrap()
}

fn compiled(source: &str) -> Vec<KernelMetadata> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("scale.cu");
    fs::write(&path, source).unwrap();
    let object =
        compile_one("scale", &path, &target(), folder.path()).unwrap_or_else(|error| panic!("{error}"));
    kernels(&object).unwrap()
}

/// Returns the contract of [`SOURCE`].
fn family() -> Family {
    let argument = |name, pass| Argument { name, pass, meaning: "" };
    Family {
        name: "Scale",
        module: "scale",
        kernels: "scale_{dtype}",
        variants: vec![vec![Axis { is_dtype: true, ..names("dtype", &["f32", "bf16"]) }]],
        arguments: vec![
            argument("numel", Pass::Usize),
            argument("info", Pass::Layout),
            argument("factor", Pass::Element("dtype")),
            argument("inp", Pass::Pointer),
            argument("out", Pass::Pointer),
        ],
        block: 256,
        pack_bytes: 0,
        dynamic_lds: false,
        meaning: "",
    }
}

fn found(family: Family, compiled: &[KernelMetadata]) -> Vec<Disagreement> {
    disagreements(&[family], "scale", &target(), compiled)
}

/// Asserts that both kernels differ and the error contains `parts`.
fn assert_both(disagreements: Vec<Disagreement>, parts: &[&str]) {
    assert_eq!(disagreements.len(), 2, "{disagreements:?}");
    let text = BuildError::Contract(disagreements).to_string();
    let places = ["candle-kernels/scale.cu for gfx90a: kernel scale_f32", "kernel scale_bf16"];
    for part in places.iter().chain(parts) {
        assert!(text.contains(part), "{part:?} is missing in:\n{text}");
    }
}

#[test]
fn matching_kernels_have_no_differences() {
    assert_eq!(found(family(), &compiled(SOURCE)), []);
}

#[test]
fn differing_arguments_are_named() {
    let cases: [(&str, &str, &[&str]); 5] = [
        // Different order.
        (
            "const T *inp, T *out",
            "T *out, const T *inp",
            &[
                "argument 4: expected `inp` (8 bytes at 272, a pointer), found `out` (8 bytes at 272, a pointer)",
            ],
        ),
        // Different name.
        ("const T *inp, T *out", "const T *src, T *out", &["argument 4: expected `inp`", "found `src`"]),
        // Different size, which changes the following offsets.
        (
            "const size_t numel,",
            "const unsigned int numel,",
            &[
                "argument 1: expected `numel` (8 bytes at 0, by value), found `numel` (4 bytes at 0, by value)",
            ],
        ),
        // Different kind.
        (
            "const T factor,",
            "const T *factor,",
            &[
                "argument 3: expected `factor` (4 bytes at 264, by value), found `factor` (8 bytes at 264, a pointer)",
                "argument 3: expected `factor` (2 bytes at 264, by value)",
            ],
        ),
        // A word instead of the layout.
        (
            "const CandleLayout info,",
            "const size_t info,",
            &["argument 2: expected `info` (256 bytes at 8, by value)"],
        ),
    ];
    for (from, to, parts) in cases {
        // Replaces the kernels' parameters, but not the function's.
        let at = SOURCE.find("#define SCALE").unwrap();
        let (function, kernels) = SOURCE.split_at(at);
        let kernels = kernels.replacen(from, to, 1);
        let broken = function.to_owned() + &without_body(&kernels);
        let found = found(family(), &compiled(&broken));
        let first: Vec<Disagreement> = ["scale_f32", "scale_bf16"]
            .iter()
            .filter_map(|kernel| found.iter().find(|difference| difference.kernel == *kernel).cloned())
            .collect();
        assert_both(first, parts);
    }
}

/// Removes the call of the function, whose parameters are unchanged.
fn without_body(kernels: &str) -> String {
    kernels.replace("scale(numel, info, factor, inp, out);", ";")
}

#[test]
fn more_and_fewer_arguments_are_listed() {
    let more =
        SOURCE.replace("T *out) {                                        \\", "T *out, float more) { \\");
    let expected = "expected arguments (numel, info, factor, inp, out)";
    assert_both(found(family(), &compiled(&more)), &[expected, "more)"]);
    let mut fewer = family();
    fewer.arguments.pop();
    assert_both(found(fewer, &compiled(SOURCE)), &["expected arguments (numel, info, factor, inp), found ("]);
}

#[test]
fn missing_and_unused_kernels_are_named() {
    let one = SOURCE.replace("SCALE(__nv_bfloat16, bf16)", "SCALE(__half, f16)");
    let found = found(family(), &compiled(&one));
    let differences: Vec<_> =
        found.iter().map(|found| (found.kernel.as_str(), found.difference.clone())).collect();
    assert_eq!(differences, [("scale_bf16", Difference::Missing), ("scale_f16", Difference::Unused)]);
    let text = BuildError::Contract(found).to_string();
    assert!(
        text.contains("kernel scale_bf16 is in candle-kernels/contract, but not in the source"),
        "{text}"
    );
    assert!(text.contains("kernel scale_f16 is not in candle-kernels/contract"), "{text}");
}

#[test]
fn too_small_workgroups_are_named() {
    let bounded = SOURCE.replace("__global__ void scale_", "__global__ void __launch_bounds__(128) scale_");
    assert_both(
        found(family(), &compiled(&bounded)),
        &["expected workgroups of 256 threads, found at most 128"],
    );
}

#[test]
fn families_of_other_modules_are_ignored() {
    let other = Family { module: "other", ..family() };
    let unused = found(other, &compiled(SOURCE));
    assert!(unused.iter().all(|found| found.difference == Difference::Unused) && unused.len() == 2);
}
