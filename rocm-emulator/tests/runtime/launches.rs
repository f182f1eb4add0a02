//! Arguments and sizes of launches.
use crate::gpu::*;
use rocm_emulator::api::*;
use std::ffi::c_void;
use std::ptr::null_mut;

#[test]
fn arguments_are_copied_at_the_call() {
    let _gpu = gpu();
    let module = Module::load("arguments.hsaco");
    let out = Buffer::new(24);
    let (mut first, mut layout, mut last) = (0xabu8, [1u64, 2, 3, u64::MAX], 0xcdefu16);
    let args = &mut [arg(&first), arg(&layout), arg(&out.0), arg(&last)];
    launch_one(module.function("by_value"), null_mut(), args);
    (first, layout, last) = (0, [0; 4], 0);
    assert_eq!(out.read::<u32>(6), [1, 2, 3, u32::MAX, 0xab, 0xcdef]);
    assert_eq!((first, layout, last), (0, [0; 4], 0));
}

#[test]
fn a_grid_covers_every_element_once() {
    let _gpu = gpu();
    let module = Module::load("arguments.hsaco");
    let n = 1003u32;
    let x: Vec<f32> = (0..n).map(|i| i as f32 * 0.5).collect();
    let (x_device, y) = (Buffer::of(&x), Buffer::of(&vec![2f32; n as usize]));
    let a = 3f32;
    let before = rocm_emulator::launch_count();
    let args = &mut [arg(&n), arg(&a), arg(&x_device.0), arg(&y.0)];
    ok(launch(module.function("axpy"), [8, 1, 1], [128, 1, 1], 0, null_mut(), args));
    assert_eq!(rocm_emulator::launch_count(), before + 1);
    let expected: Vec<f32> = x.iter().map(|x| 3.0 * x + 2.0).collect();
    assert_eq!(y.read::<f32>(n as usize), expected);
}

#[test]
fn hidden_arguments_describe_the_launch() {
    let _gpu = gpu();
    let module = Module::load("arguments.hsaco");
    let out = Buffer::new(14 * 8);
    let args = &mut [arg(&out.0)];
    ok(launch(module.function("hidden"), [5, 6, 7], [8, 4, 2], 1024, null_mut(), args));
    // Block counts; dynamic LDS (the kernel uses none, so it has no such argument); block sizes, remainders
    // and dimensions; offsets.
    assert_eq!(out.read::<u64>(14), [5, 6, 7, 0, 8, 4, 2, 0, 0, 0, 3, 0, 0, 0]);
}

#[test]
fn extra_passes_the_arguments_as_one_buffer() {
    let _gpu = gpu();
    let module = Module::load("arguments.hsaco");
    let (x, y) = (Buffer::of(&[4f32]), Buffer::of(&[5f32]));
    let axpy = module.function("axpy");
    let mut packed = Vec::new();
    packed.extend(1u32.to_le_bytes());
    packed.extend(10f32.to_le_bytes());
    packed.extend((x.0 as u64).to_le_bytes());
    packed.extend((y.0 as u64).to_le_bytes());
    let run = |size: usize, params: *mut *mut c_void| {
        let mut extra: [*mut c_void; 5] = [
            std::ptr::without_provenance_mut(1),
            packed.as_ptr().cast_mut().cast(),
            std::ptr::without_provenance_mut(2),
            arg(&size),
            std::ptr::without_provenance_mut(3),
        ];
        // SAFETY: the list has an end tag, and its buffer holds `packed.len()` bytes.
        unsafe { hipModuleLaunchKernel(axpy, 1, 1, 1, 1, 1, 1, 0, null_mut(), params, extra.as_mut_ptr()) }
    };
    ok(run(packed.len(), null_mut()));
    assert_eq!(y.read::<f32>(1), [45.0]);
    assert_eq!(run(4096, null_mut()), 1, "more than the kernel takes");
    let mut params = [null_mut()];
    assert_eq!(run(packed.len(), params.as_mut_ptr()), 1, "both kinds of arguments were passed");
}

#[test]
fn dynamic_lds_is_available() {
    let _gpu = gpu();
    let module = Module::load("runtime.hsaco");
    let data: Vec<u32> = (0..256).collect();
    let buffer = Buffer::of(&data);
    let reverse = module.function("reverse");
    ok(launch(reverse, [1; 3], [256, 1, 1], 1024, null_mut(), &mut [arg(&buffer.0)]));
    let reversed: Vec<u32> = data.into_iter().rev().collect();
    assert_eq!(buffer.read::<u32>(256), reversed);
}

#[test]
fn invalid_sizes_are_rejected() {
    let _gpu = gpu();
    let (module, out) = (Module::load("runtime.hsaco"), Buffer::new(4));
    let (reverse, small) = (module.function("reverse"), module.function("at_most_64"));
    let shape =
        |function, grid, block, lds| launch(function, grid, block, lds, null_mut(), &mut [arg(&out.0)]);
    assert_eq!(shape(reverse, [0, 1, 1], [1; 3], 0), 1);
    assert_eq!(shape(reverse, [1; 3], [1, 0, 1], 0), 1);
    assert_eq!(shape(reverse, [1; 3], [1025, 1, 1], 0), 9);
    assert_eq!(shape(reverse, [1; 3], [32, 32, 2], 0), 9);
    assert_eq!(shape(reverse, [1; 3], [u32::MAX; 3], 0), 9);
    assert_eq!(shape(reverse, [1 << 30, 1, 1], [8, 1, 1], 0), 9);
    assert_eq!(shape(reverse, [1; 3], [1; 3], 65537), 1);
    let detail = rocm_emulator::last_error().unwrap();
    assert!(detail.contains("reverse") && detail.contains("65537") && detail.contains("65536"), "{detail}");
    assert_eq!(shape(small, [1; 3], [65, 1, 1], 0), 719);
    assert_eq!(shape(null_mut(), [1; 3], [1; 3], 0), 400);
    // SAFETY: null arguments are rejected.
    unsafe {
        assert_eq!(hipModuleLaunchKernel(small, 1, 1, 1, 1, 1, 1, 0, null_mut(), null_mut(), null_mut()), 1);
        assert_eq!(
            hipLaunchKernel(null_mut(), dim3::default(), dim3::default(), null_mut(), 0, null_mut()),
            801
        );
    }
    assert_eq!(launch(small, [1; 3], [1; 3], 0, null_mut(), &mut [null_mut()]), 1);
    ok(shape(small, [1; 3], [64, 1, 1], 0));
    assert_eq!(out.read::<u32>(1), [64]);
}

#[test]
fn every_family_checks_its_limits() {
    let _gpu = gpu();
    for (device, file) in [(0, "runtime.hsaco"), (2, "runtime.gfx90a.hsaco")] {
        set_device(device);
        let (module, data) = (Module::load(file), Buffer::of(&(0..1024).collect::<Vec<u32>>()));
        let reverse = module.function("reverse");
        let attempt = |grid, block, lds| launch(reverse, grid, block, lds, null_mut(), &mut [arg(&data.0)]);
        for (grid, block, lds, code, named) in [
            ([1; 3], [1025, 1, 1], 0, 9, "1024 work-items"),
            ([1; 3], [16, 16, 5], 0, 9, "[16, 16, 5]"),
            ([1 << 22, 1, 1], [1024, 1, 1], 0, 9, "2^32 work-items"),
            ([1, 1 << 31, 1], [1, 2, 1], 0, 9, "2^32 work-items"),
            ([1; 3], [64, 1, 1], (64 << 10) + 4, 1, "a workgroup has 65536"),
        ] {
            assert_eq!(attempt(grid, block, lds), code, "device {device}: {grid:?} {block:?} {lds}");
            let detail = rocm_emulator::last_error().unwrap();
            assert!(detail.contains("kernel reverse") && detail.contains(named), "{named}: {detail}");
        }
        // The maximum is accepted.
        ok(attempt([1; 3], [1024, 1, 1], 64 << 10));
        assert_eq!(data.read::<u32>(1024), (0..1024).rev().collect::<Vec<u32>>());
    }
    set_device(0);
}

#[test]
fn a_kernel_runs_with_its_wave_size() {
    let _gpu = gpu();
    for (file, lanes) in [("memory.hsaco", 32), ("memory.wave64.hsaco", 64)] {
        let module = Module::load(file);
        let saxpy = module.function("saxpy");
        let (n, a) = (1000u32, 3f32);
        let x: Vec<f32> = (0..n).map(|i| i as f32 * 0.5).collect();
        let (x_device, y) = (Buffer::of(&x), Buffer::of(&vec![2f32; n as usize]));
        let before = rocm_emulator::counters().get("saxpy").copied().unwrap_or_default();
        let args = &mut [arg(&n), arg(&a), arg(&x_device.0), arg(&y.0)];
        ok(launch(saxpy, [8, 1, 1], [128, 1, 1], 0, null_mut(), args));
        assert_eq!(y.read::<f32>(n as usize), x.iter().map(|x| 3.0 * x + 2.0).collect::<Vec<_>>());
        let after = rocm_emulator::counters()["saxpy"];
        assert_eq!(after.waves - before.waves, 1024 / lanes, "{file}");
        // With few registers, 16 waves of either size fit on each of the four SIMDs.
        let mut blocks = 0;
        // SAFETY: a valid pointer for the result.
        ok(unsafe { hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(&mut blocks, saxpy, 1024, 0) });
        assert_eq!(blocks as u64, 4 * 16 / (1024 / lanes), "{file}");
    }
}
