//! Tests of `miopen=`, and of `check=init` for convolutions.
use crate::{gpu::*, result};
use rocm_emulator::{api::*, miopen::*};
use std::ffi::CStr;
use std::ptr::null_mut;

/// Convolves an image with one weight. Returns each call's status, the number of solutions, and the results for a written
/// and an unwritten image.
pub fn program() -> String {
    let (image, weight, output) = (Buffer::of(&[3f32]), Buffer::of(&[4f32]), Buffer::of(&[0f32]));
    let fresh = Buffer::new(4);
    let (mut handle, mut tensor, mut convolution, mut count) = (null_mut(), null_mut(), null_mut(), 9);
    // SAFETY: results go to live variables; handles, descriptors and addresses may have any value.
    unsafe {
        let [mut major, mut minor, mut patch] = [0; 3];
        let statuses = [
            miopenGetVersion(&mut major, &mut minor, &mut patch),
            miopenCreate(&mut handle),
            miopenCreateTensorDescriptor(&mut tensor),
            miopenSet4dTensorDescriptor(tensor, 1, 1, 1, 1, 1),
            miopenCreateConvolutionDescriptor(&mut convolution),
            miopenInitConvolutionDescriptor(convolution, 0, 0, 0, 1, 1, 1, 1),
            miopenConvolutionForwardGetSolutionCount(handle, tensor, tensor, convolution, tensor, &mut count),
        ];
        let said = rocm_emulator::last_error().unwrap_or_default();
        let text = CStr::from_ptr(miopenGetErrorString(1)).to_string_lossy();
        let run = |image: &Buffer| {
            let [x, w, y] = [image, &weight, &output].map(|buffer| buffer.0);
            let (t, c) = (tensor, convolution);
            let status = miopenConvolutionForwardImmediate(handle, t, w, t, x, c, t, y, null_mut(), 0, 85);
            let waited = hipDeviceSynchronize();
            let said = rocm_emulator::last_error().unwrap_or_default();
            format!("{status} {waited} {:?} {}", output.read::<f32>(1), if waited == 0 { "" } else { &said })
        };
        format!("{statuses:?} // {count} // {text} // {said} // {} // {}", run(&image), run(&fresh))
    }
}

#[track_caller]
fn under(settings: &str) -> Vec<String> {
    let found = result("convolution", &[("CANDLE_ROCM_EMULATOR", settings)]);
    found.split(" // ").map(str::to_owned).collect()
}

#[test]
fn an_absent_library_only_returns_error_names() {
    let found = under("miopen=absent");
    assert_eq!(found[0], format!("{:?}", [1; 7]));
    assert_eq!((found[1].as_str(), found[2].as_str()), ("9", "miopenStatusNotInitialized"));
    assert!(found[3].contains("GetSolutionCount: MIOpen is absent"), "{found:?}");
    assert!(found[4].starts_with("1 0 [0.0]"), "{found:?}");
}

#[test]
fn a_library_without_solutions_supports_everything_except_convolutions() {
    let found = under("miopen=none");
    assert_eq!((&*found[0], &*found[1]), (&*format!("{:?}", [0; 7]), "0"));
    assert!(found[4].starts_with("3 0 [0.0]"), "{found:?}");
}

#[test]
fn a_broken_compiler_fails_for_every_solution() {
    let found = under("miopen=broken");
    assert_eq!((&*found[0], &*found[1]), (&*format!("{:?}", [0; 7]), "2"));
    assert!(found[4].starts_with("7 0 [0.0]"), "{found:?}");
}

#[test]
fn reads_and_writes_of_convolutions_are_recorded() {
    let found = under("check=init");
    assert_eq!((&*found[0], &*found[1]), (&*format!("{:?}", [0; 7]), "2"));
    assert!(found[4].starts_with("0 0 [12.0]"), "{found:?}");
    let expected = "uninitialised memory: miopenConvolutionForwardImmediate reads tensor x; nothing has written element 0";
    assert!(found[5].starts_with("0 719 [12.0]") && found[5].contains(expected), "{found:?}");
    assert!(under("threads=2")[5].starts_with("0 0 [0.0]"), "fresh memory is zero without the check");
}
