//! Convolutions with MIOpen's functions: the NVIDIA driver with a fake libcudnn, and the software GPU.
mod child;
mod dnn;
#[path = "../../rocm-loader/tests/fake/mod.rs"]
mod fake;

use std::ffi::{CStr, c_int};
use std::ptr::null_mut;

use child::{CUBLAS, CUDA, CUDNN, Outcome, assert_contains, in_child, libraries, log};
use dnn::{
    Case, DIRECTIONS, Data, FORWARD, GROUPS, Tensor, W, X, Y, compute, full_case, handle, set, tensor,
};
use rocm_loader::{last_error, miopen, rocblas};
use rocm_rs::hip::bindings::hipStream_t;

const BAD: u32 = 3;
const UNSUPPORTED: u32 = 8;
const F32: u32 = 1;
const F64: u32 = 6;

#[test]
fn convolutions_in_all_directions_match_the_definition() -> Outcome {
    if in_child(
        "convolutions_in_all_directions_match_the_definition",
        Some(&libraries(&[CUDA, CUDNN])?),
        &[],
    )? {
        compute(F32, |number| number as f32, f64::from);
        compute(F64, |number| number, |number| number);
    }
    Ok(())
}

#[test]
fn the_software_gpu_matches_the_definition() -> Outcome {
    if in_child(
        "the_software_gpu_matches_the_definition",
        None,
        &[("CANDLE_ROCM_DRIVER", "emulator:gfx1100")],
    )? {
        compute(F32, |number| number as f32, f64::from);
    }
    Ok(())
}

#[test]
fn missing_cudnn_is_reported() -> Outcome {
    if !in_child("missing_cudnn_is_reported", Some(&libraries(&[CUDA, CUBLAS])?), &[])? {
        return Ok(());
    }
    let driver = rocm_loader::driver()?;
    let cudnn = driver.libraries()[2].clone();
    if cudnn.file.is_some() {
        return Ok(()); // cuDNN is installed on this system
    }
    let mut handle = null_mut();
    // SAFETY: the handle is written to a live variable.
    assert_eq!(unsafe { miopen::miopenCreate(&mut handle) }, 1);
    assert_contains(
        last_error(),
        &["libcudnn.so of CUDA", "libcudnn.so.9 or libcudnn.so.8", "nvidia-cudnn-cu13"],
    );
    // SAFETY: the results are written to live variables.
    unsafe {
        assert_eq!(miopen::miopenGetVersion(&mut 0, &mut 0, &mut 0), 1);
        assert_contains(last_error(), &["LD_LIBRARY_PATH"]);
        assert_eq!(CStr::from_ptr(miopen::miopenGetErrorString(1)), c"miopenStatusNotInitialized");
        // Other libraries still work.
        let mut handle = null_mut();
        assert_eq!(rocblas::rocblas_create_handle(&mut handle), 0);
        assert_eq!(rocblas::rocblas_destroy_handle(handle), 0);
    }
    assert_eq!((driver.versions().miopen, cudnn.name), (None, "libcudnn.so"));
    Ok(())
}

#[test]
fn cudnn_without_functions_is_reported() -> Outcome {
    let folder = tempfile::tempdir()?;
    if !child::is_child() {
        std::fs::copy(libraries(&[CUDA])?.join(CUDA), folder.path().join(CUDA))?;
        std::fs::copy(libraries(&[CUBLAS])?.join(CUBLAS), folder.path().join(CUDNN))?;
    }
    if in_child("cudnn_without_functions_is_reported", Some(folder.path()), &[])? {
        // SAFETY: the handle is written to a live variable.
        assert_eq!(unsafe { miopen::miopenCreate(&mut null_mut()) }, 1);
        assert_contains(last_error(), &["libcudnn.so.9 has no function cudnnCreate", "Install cuDNN"]);
    }
    Ok(())
}

#[test]
fn a_handle_keeps_its_stream() -> Outcome {
    if !in_child("a_handle_keeps_its_stream", Some(&libraries(&[CUDA, CUDNN])?), &[])? {
        return Ok(());
    }
    let (mut handle, mut found, mut version) = (null_mut(), null_mut(), [0; 3]);
    let stream = |address| std::ptr::without_provenance_mut(address) as hipStream_t;
    // SAFETY: the results are written to live variables; the fake library uses no stream.
    unsafe {
        assert_eq!(miopen::miopenCreateWithStream(&mut handle, stream(16)), 0);
        assert_eq!((miopen::miopenGetStream(handle, &mut found), found), (0, stream(16)));
        assert_eq!(miopen::miopenSetStream(handle, stream(32)), 0);
        assert_eq!((miopen::miopenGetStream(handle, &mut found), found), (0, stream(32)));
        let [major, minor, patch] = &mut version;
        assert_eq!(miopen::miopenGetVersion(major, minor, patch), 0);
        assert_eq!((version, rocm_loader::driver()?.versions().miopen), ([9, 12, 3], Some([9, 12, 3])));
        assert_eq!(miopen::miopenDestroy(handle), 0);
        for (status, text) in [
            (miopen::miopenDestroy(null_mut()), last_error()),
            (miopen::miopenSetStream(null_mut(), stream(16)), last_error()),
            (miopen::miopenCreate(null_mut()), last_error()),
        ] {
            assert_eq!(status, BAD);
            assert_contains(text, &["null"]);
        }
    }
    Ok(())
}

#[test]
fn descriptors_are_created_once() -> Outcome {
    if !in_child("descriptors_are_created_once", Some(&libraries(&[CUDA, CUDNN])?), &[])? {
        return Ok(());
    }
    let case = full_case(F32);
    let data = [X, W, Y].map(|sizes| Data::of(&vec![0f32; sizes.iter().product::<c_int>() as usize]).address);
    let names = ["Forward", "Data", "Weights"];
    let made = [
        "tensor 0 [2, 4, 7, 6] by [168, 42, 6, 1]",
        "filter 0 format 0 [6, 2, 3, 2]",
        "tensor 0 [2, 6, 5, 6] by [180, 30, 6, 1]",
    ];
    let mut made = made.map(str::to_owned).to_vec();
    made.push("convolution [2, 1] [2, 1] [1, 2] mode 1 in 0".to_owned());
    made.push("suggest Forward math 3 groups 2".to_owned());
    let mut solution = case.solutions(FORWARD, 1)[0];
    let mut found = log(CUDNN)?;
    // The order of the tensors does not matter.
    found[..3].sort_unstable();
    made[..3].sort_unstable();
    assert_eq!(found, made);
    for (direction, name) in DIRECTIONS.iter().zip(names) {
        solution = case.solutions(direction, 1)[0];
        log(CUDNN)?;
        for _ in 0..3 {
            assert_eq!(case.run(direction, data, &solution, 600), 0);
            let line = log(CUDNN)?;
            assert!(line[0].starts_with(&format!("{name} by 1 math 3 groups 2 in ")), "{line:?}");
            assert!(line.len() == 1 && line[0].ends_with("+600 on 0"), "{line:?}");
        }
    }
    // Only descriptors that are set again are created again.
    // SAFETY: the descriptors are not used elsewhere.
    unsafe {
        assert_eq!(miopen::miopenSetConvolutionGroupCount(case.convolution, GROUPS), 0);
        assert_eq!(miopen::miopenSet4dTensorDescriptor(case.tensors[0], F32, 2, 4, 7, 6), 0);
    }
    assert_eq!(log(CUDNN)?, ["destroyed convolution", "destroyed tensor"]);
    assert_eq!(case.compile(&DIRECTIONS[2], solution.solution_id), 0);
    assert_eq!(
        log(CUDNN)?,
        ["tensor 0 [2, 4, 7, 6] by [168, 42, 6, 1]", "convolution [2, 1] [2, 1] [1, 2] mode 1 in 0"]
    );
    // SAFETY: the descriptors are not used any more.
    unsafe {
        for tensor in case.tensors {
            assert_eq!(miopen::miopenDestroyTensorDescriptor(tensor), 0);
        }
        assert_eq!(miopen::miopenDestroyConvolutionDescriptor(case.convolution), 0);
        assert_eq!(miopen::miopenDestroyTensorDescriptor(null_mut()), 0);
    }
    assert_eq!(
        log(CUDNN)?,
        ["destroyed tensor", "destroyed filter", "destroyed tensor", "destroyed convolution"]
    );
    Ok(())
}

#[test]
fn every_type_uses_a_precise_math_type() -> Outcome {
    if !in_child("every_type_uses_a_precise_math_type", Some(&libraries(&[CUDA, CUDNN])?), &[])? {
        return Ok(());
    }
    // Data type in MIOpen and in cuDNN, cuDNN's compute type and math type, and each solution's math type and workspace.
    // f32 has no solution that needs tensor cores.
    type Expected<'a> = (u32, u32, u32, u32, &'a [(u32, usize)]);
    let cases: [Expected; 4] = [
        (F32, 0, 0, 3, &[(3, 512), (3, 128)]),
        (F64, 1, 1, 0, &[(0, 512), (0, 64), (0, 128)]),
        (0, 2, 0, 1, &[(1, 512), (1, 64), (0, 128)]),
        (5, 9, 0, 1, &[(1, 512), (1, 64), (0, 128)]),
    ];
    for (data_type, number, compute, math, expected) in cases {
        let case = Case::of(data_type, [&[1, 2, 3, 3], &[2, 2, 1, 1], &[1, 2, 3, 3]]);
        for (direction, name) in DIRECTIONS.iter().zip(["Forward", "Data", "Weights"]) {
            let solutions = case.solutions(direction, 9);
            let lines = log(CUDNN)?;
            assert_eq!(lines.last(), Some(&format!("suggest {name} math {math} groups 1")));
            if name == "Forward" {
                assert!(lines.contains(&format!("filter {number} format 0 [2, 2, 1, 1]")), "{lines:?}");
                assert!(
                    lines.iter().any(|line| line.ends_with(&format!("mode 1 in {compute}"))),
                    "{lines:?}"
                );
            }
            let sizes: Vec<usize> = solutions.iter().map(|solution| solution.workspace_size).collect();
            assert_eq!(sizes, expected.iter().map(|(_, size)| *size).collect::<Vec<_>>());
            assert!(solutions.windows(2).all(|pair| pair[0].time < pair[1].time && pair[0].time > 0.0));
            assert!(case.solutions(direction, 1).len() == 1);
            for (solution, (math, size)) in solutions.iter().zip(expected) {
                let ([a, b, c], mut needed) = (Case::in_order(direction, case.tensors), 0);
                let (conv, id) = (case.convolution, solution.solution_id);
                // SAFETY: descriptors; the number is written to a live variable.
                let status = unsafe { (direction.workspace)(case.handle, a, b, conv, c, id, &mut needed) };
                assert_eq!((status, needed), (0, *size));
                let data = [18, 4, 18].map(|len| Data::of(&vec![0f64; len]).address);
                log(CUDNN)?;
                assert_eq!(case.run(direction, data, solution, 512), 0, "{:?}", last_error());
                assert_contains(log(CUDNN)?.pop(), &[name, &format!(" math {math} ")]);
            }
        }
    }
    let (tensor, mut seen) = (tensor(), Vec::new());
    for data_type in [2, 3, 7, 8, 9] {
        seen.push(set(tensor, data_type, &[1, 1, 1, 1]));
        assert_contains(last_error(), &[&format!("MIOpen's type {data_type}")]);
    }
    assert_eq!(seen, [UNSUPPORTED; 5]);
    Ok(())
}

#[test]
fn three_dimensions_and_strided_tensors() -> Outcome {
    if !in_child("three_dimensions_and_strided_tensors", Some(&libraries(&[CUDA, CUDNN])?), &[])? {
        return Ok(());
    }
    let case = Case::of(F32, [&[1, 1, 2, 3, 4], &[1, 1, 1, 2, 2], &[1, 1, 2, 2, 3]]);
    let (mut rank, mut sizes) = (0, [0; 5]);
    let strides = [48, 48, 24, 8, 2];
    // SAFETY: live descriptors, lists of the given lengths, and an array of five sizes.
    unsafe {
        let [zero, one] = [[0; 3], [1; 3]].map(|list: [c_int; 3]| list);
        let init = |dilations: *const c_int| {
            let (pads, steps) = (zero.as_ptr(), one.as_ptr());
            miopen::miopenInitConvolutionNdDescriptor(case.convolution, 3, pads, steps, dilations, 0)
        };
        assert_eq!((init(std::ptr::null()), init(one.as_ptr())), (BAD, 0));
        let [x, w, _] = case.tensors;
        let found = miopen::miopenGetConvolutionNdForwardOutputDim(
            case.convolution,
            x,
            w,
            &mut rank,
            sizes.as_mut_ptr(),
        );
        assert_eq!((found, rank, sizes), (0, 5, [1, 1, 2, 2, 3]));
        // The tensor covers every second element.
        let sizes = [1, 1, 2, 3, 4];
        assert_eq!(miopen::miopenSetTensorDescriptor(x, F32, 5, sizes.as_ptr(), strides.as_ptr()), 0);
    }
    let solution = case.solutions(FORWARD, 1)[0];
    let input: Vec<f32> = (0..48).map(|at| if at % 2 == 0 { (at / 2) as f32 } else { 1000.0 }).collect();
    let data = [Data::of(&input), Data::of(&[1f32; 4]), Data::of(&[0f32; 12])];
    let addresses = [0, 1, 2].map(|side| data[side].address);
    assert_eq!(case.run(FORWARD, addresses, &solution, 512), 0, "{:?}", last_error());
    // Sums of 2 x 2 neighbours of 0, 1, 2, ... in rows of 4.
    let sums: Vec<f32> = [0, 1, 2, 4, 5, 6].map(|at| (4 * at + 10) as f32).to_vec();
    let expected: Vec<f32> = sums.iter().copied().chain(sums.iter().map(|sum| sum + 48.0)).collect();
    assert_eq!(data[2].read::<f32>(), expected);
    // cuDNN has no filters with gaps. The stride of a dimension of size 1 makes no gap.
    let weights = |strides: [c_int; 5]| {
        let sizes = [1, 1, 1, 2, 2];
        // SAFETY: a descriptor, and lists of five.
        unsafe {
            miopen::miopenSetTensorDescriptor(case.tensors[1], F32, 5, sizes.as_ptr(), strides.as_ptr())
        }
    };
    assert_eq!((weights([9, 8, 7, 2, 1]), case.count(FORWARD).0), (0, 0));
    assert_eq!((weights([8, 8, 8, 4, 2]), case.count(FORWARD).0), (0, UNSUPPORTED));
    assert_contains(last_error(), &["no weights with gaps"]);
    Ok(())
}

#[test]
fn invalid_descriptors_are_rejected() -> Outcome {
    if !in_child("invalid_descriptors_are_rejected", Some(&libraries(&[CUDA, CUDNN])?), &[])? {
        return Ok(());
    }
    let case = Case::of(F32, [&[1, 2, 3, 3], &[2, 2, 2, 2], &[1, 2, 2, 2]]);
    let [x, w, y] = case.tensors;
    let unset = tensor();
    for sizes in [&[1, 0, 1, 1][..], &[1, 1, -1, 1], &[1 << 20, 1 << 20, 1 << 20, 1], &[], &[1; 6]] {
        assert_eq!(set(unset, F32, sizes), BAD, "{sizes:?}");
    }
    assert_eq!((set(unset, F32, &[1, 2, 3]), set(null_mut(), F32, &[1; 4])), (UNSUPPORTED, BAD));
    let init = |mode, pad, stride, dilation| {
        // SAFETY: a descriptor.
        unsafe {
            let conv = case.convolution;
            miopen::miopenInitConvolutionDescriptor(conv, mode, pad, pad, stride, stride, dilation, dilation)
        }
    };
    assert_eq!([init(0, -1, 1, 1), init(0, 0, 0, 1), init(0, 0, 1, 0), init(4, 0, 1, 1)], [BAD; 4]);
    assert_eq!(init(1, 0, 1, 1), UNSUPPORTED);
    assert_contains(last_error(), &["no transposed mode"]);
    // SAFETY: the descriptors are null or live, and the results are written to live variables.
    unsafe {
        assert_eq!(miopen::miopenCreateTensorDescriptor(null_mut()), BAD);
        assert_eq!(miopen::miopenSetConvolutionGroupCount(case.convolution, 0), BAD);
        assert_eq!(miopen::miopenSetConvolutionGroupCount(null_mut(), 1), BAD);
        let list = [1; 4];
        let list = list.as_ptr();
        assert_eq!(miopen::miopenInitConvolutionNdDescriptor(case.convolution, 1, list, list, list, 0), BAD);
        let out = |x, w| {
            let (conv, mut sizes) = (case.convolution, [0; 5]);
            miopen::miopenGetConvolutionNdForwardOutputDim(conv, x, w, &mut 0, sizes.as_mut_ptr())
        };
        assert_eq!([out(x, w), out(x, unset), out(unset, w), out(null_mut(), w)], [0, BAD, BAD, BAD]);
        // The window is larger than the input.
        assert_eq!(out(w, x), BAD);
        assert_contains(last_error(), &["does not take [2, 2, 2, 2] by [1, 2, 3, 3]"]);
        let count = |handle, tensors: [Tensor; 3], convolution| {
            let [a, b, c] = Case::in_order(FORWARD, tensors);
            (FORWARD.count)(handle, a, b, convolution, c, &mut 0)
        };
        let (handle, convolution) = (case.handle, case.convolution);
        assert_eq!(count(handle, [x, w, y], convolution), 0);
        for (status, text, part) in [
            (count(null_mut(), [x, w, y], convolution), last_error(), "the handle is null"),
            (count(handle, [x, w, y], null_mut()), last_error(), "a convolution descriptor is null"),
            (count(handle, [x, w, unset], convolution), last_error(), "never set"),
            (count(handle, [x, null_mut(), y], convolution), last_error(), "a tensor descriptor is null"),
            (count(handle, [x, w, x], convolution), last_error(), "output is [1, 2, 2, 2]"),
        ] {
            assert_eq!(status, BAD);
            assert_contains(text, &[part]);
        }
    }
    let solution = case.solutions(FORWARD, 1)[0];
    let data = [18, 16, 8].map(|len| Data::of(&vec![0f32; len]).address);
    assert_eq!(case.run(FORWARD, data, &solution, 512), 0);
    assert_eq!(case.run(FORWARD, [data[0], null_mut(), data[2]], &solution, 512), BAD);
    // Invalid identifiers: no tag, an unknown algorithm, a math type that allows TF32, extra bits.
    let id = solution.solution_id;
    for wrong in [0, id + (100 << 4), id & !15, id & !15 | 1, id | 1 << 60] {
        assert_eq!(case.compile(FORWARD, wrong), BAD, "{wrong:#x}");
        assert_contains(last_error(), &["is not a solution"]);
    }
    // The tensors have different types.
    assert_eq!((set(y, 0, &[1, 2, 2, 2]), case.count(FORWARD).0), (0, BAD));
    assert_contains(last_error(), &["different types"]);
    Ok(())
}

#[test]
fn cudnn_errors_are_reported() -> Outcome {
    if !in_child("cudnn_errors_are_reported", Some(&libraries(&[CUDA, CUDNN])?), &[])? {
        return Ok(());
    }
    let of_batch = |batch| Case::of(F32, [&[batch, 1, 1, 1], &[1, 1, 1, 1], &[batch, 1, 1, 1]]);
    let data = [99, 1, 99].map(|len| Data::of(&vec![0f32; len]).address);
    let case = of_batch(1);
    let solution = case.solutions(FORWARD, 1)[0];
    assert_eq!(case.run(FORWARD, data, &solution, 511), BAD);
    assert_contains(
        last_error(),
        &["cudnnConvolutionForward returned CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT (2006)"],
    );
    assert_eq!(of_batch(99).run(FORWARD, data, &solution, 512), UNSUPPORTED);
    assert_contains(last_error(), &["CUDNN_STATUS_NOT_SUPPORTED (3000)"]);
    // One of cuDNN's files is missing.
    assert_eq!(of_batch(98).count(FORWARD).0, 1);
    assert_contains(
        last_error(),
        &["SUBLIBRARY_LOADING_FAILED (1008)", "with all its files", "LD_LIBRARY_PATH"],
    );
    Ok(())
}

#[test]
fn threads_share_descriptors() -> Outcome {
    if !in_child("threads_share_descriptors", Some(&libraries(&[CUDA, CUDNN])?), &[])? {
        return Ok(());
    }
    let case = full_case(F32);
    let addresses = case.tensors.map(|tensor| tensor.expose_provenance());
    let convolution = case.convolution.expose_provenance();
    let threads: Vec<_> = (0..4)
        .map(|_| {
            std::thread::spawn(move || {
                let case = Case {
                    handle: handle(),
                    tensors: addresses.map(std::ptr::with_exposed_provenance_mut),
                    convolution: std::ptr::with_exposed_provenance_mut(convolution),
                };
                DIRECTIONS.map(|direction| case.count(&direction))
            })
        })
        .collect();
    for thread in threads {
        assert_eq!(thread.join().map_err(|_| "a thread panicked")?, [(0, 2); 3]);
    }
    // If several threads create a descriptor, one is kept.
    let lines = log(CUDNN)?;
    for kind in ["tensor", "filter", "convolution"] {
        let counted = |start: String| lines.iter().filter(|line| line.starts_with(&start)).count();
        let kept = counted(format!("{kind} ")) - counted(format!("destroyed {kind}"));
        assert_eq!(kept, if kind == "tensor" { 2 } else { 1 }, "{kind}");
    }
    Ok(())
}
