//! Code objects: valid, damaged, or for another chip.
use crate::gpu::*;
use rocm_emulator::api::*;
use std::ffi::CString;
use std::ptr::null_mut;

const INVALID_IMAGE: hipError_t = 200;
const NO_BINARY_FOR_GPU: hipError_t = 209;

fn load(bytes: &[u8]) -> hipError_t {
    let mut module = null_mut();
    // SAFETY: the image is as long as its headers describe, or followed by readable memory.
    let code = unsafe { hipModuleLoadData(&mut module, bytes.as_ptr().cast()) };
    if code == 0 {
        // SAFETY: handles may be anything.
        ok(unsafe { hipModuleUnload(module) });
    }
    code
}

#[test]
fn damaged_images_are_rejected_and_the_device_keeps_working() {
    let _gpu = gpu();
    let whole = fixture("runtime.hsaco");
    // The headers claim more bytes than the file has; the following memory is zero. The section table is at the end,
    // and its last sections are not needed.
    let section_table = u64::from_le_bytes(whole[40..48].try_into().unwrap()) as usize;
    for len in (0..section_table).step_by(97) {
        let mut cut = whole[..len].to_vec();
        cut.resize(whole.len() + 64, 0);
        assert_eq!(load(&cut), INVALID_IMAGE, "{len} bytes");
    }
    assert_eq!(load(b"not a code object, but text"), INVALID_IMAGE);
    assert_eq!(load(&std::fs::read(std::env::current_exe().unwrap()).unwrap()), INVALID_IMAGE);
    assert!(rocm_emulator::last_error().is_some());
    // SAFETY: null pointers are rejected.
    unsafe {
        assert_eq!(hipModuleLoadData(null_mut(), whole.as_ptr().cast()), 1);
        assert_eq!(hipModuleLoadData(&mut null_mut(), null_mut()), 1);
    }
    assert_eq!(load(&whole), 0);
}

#[test]
fn the_error_for_another_chips_code_object_names_the_chip() {
    let _gpu = gpu();
    let mut bytes = fixture("runtime.hsaco");
    // The processor number in the ELF header's flags: gfx90a.
    bytes[48] = 0x3f;
    assert_eq!(load(&bytes), NO_BINARY_FOR_GPU);
    let detail = rocm_emulator::last_error().unwrap();
    assert!(detail.contains("gfx1100") && detail.contains("gfx90a"), "{detail}");
    // gfx11-generic runs on every gfx11 chip.
    (bytes[8], bytes[48], bytes[51]) = (4, 0x54, 1);
    assert_eq!(load(&bytes), 0);
    set_device(1);
    assert_eq!(load(&bytes), 0);
    assert_eq!(load(&fixture("runtime.hsaco")), NO_BINARY_FOR_GPU);
    set_device(0);
}

#[test]
fn modules_load_from_files_and_bundles() {
    let _gpu = gpu();
    let directory = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let from_file = |name: &str| {
        let path = CString::new(directory.join(name).to_str().unwrap()).unwrap();
        let mut module = null_mut();
        // SAFETY: valid pointers.
        let code = unsafe { hipModuleLoadDataEx(&mut module, null_mut(), 0, null_mut(), null_mut()) };
        assert_eq!(code, 1);
        // SAFETY: valid pointers.
        let code = unsafe { hipModuleLoad(&mut module, path.as_ptr()) };
        // SAFETY: handles may be anything.
        unsafe { hipModuleUnload(module) };
        code
    };
    assert_eq!(from_file("runtime.hsaco"), 0);
    assert_eq!(from_file("runtime.cu"), INVALID_IMAGE);
    assert_eq!(from_file("nothing.hsaco"), 301);

    let object = fixture("runtime.hsaco");
    let mut bundle = b"__CLANG_OFFLOAD_BUNDLE__".to_vec();
    let ids = ["hipv4-amdgcn-amd-amdhsa--gfx906", "hipv4-amdgcn-amd-amdhsa--gfx1100"];
    bundle.extend(2u64.to_le_bytes());
    for id in ids {
        for number in [4096, object.len() as u64, id.len() as u64] {
            bundle.extend(number.to_le_bytes());
        }
        bundle.extend(id.as_bytes());
    }
    bundle.resize(4096, 0);
    bundle.extend(&object);
    assert_eq!(load(&bundle), 0);
    set_device(1);
    assert_eq!(load(&bundle), NO_BINARY_FOR_GPU);
    set_device(0);
}

#[test]
fn functions_and_globals_are_found_by_name() {
    let _gpu = gpu();
    let module = Module::load("runtime.hsaco");
    let (mut function, mut address, mut bytes) = (null_mut(), null_mut(), 0);
    // SAFETY: valid pointers.
    unsafe {
        assert_eq!(hipModuleGetFunction(&mut function, module.0, c"nothing".as_ptr()), 500);
        assert!(rocm_emulator::last_error().unwrap().contains("nothing"));
        assert_eq!(hipModuleGetFunction(&mut function, module.0, null_mut()), 1);
        assert_eq!(hipModuleGetFunction(&mut function, function, c"append".as_ptr()), 400);
        assert_eq!(hipModuleGetGlobal(&mut address, &mut bytes, module.0, c"append".as_ptr()), 500);
        ok(hipModuleGetGlobal(&mut address, null_mut(), module.0, c"counter".as_ptr()));
        ok(hipModuleGetGlobal(null_mut(), &mut bytes, module.0, c"table".as_ptr()));
    }
    assert_eq!(bytes, 12);
    let out = Buffer::new(12);
    let globals = module.function("globals");
    launch_one(globals, null_mut(), &mut [arg(&out.0)]);
    assert_eq!(out.read::<u32>(3), [7, 20, 0]);
    launch_one(globals, null_mut(), &mut [arg(&out.0)]);
    assert_eq!(out.read::<u32>(1), [8], "the kernel counts");
    // SAFETY: the global holds four bytes.
    ok(unsafe { hipMemcpyHtoD(address, arg(&100u32), 4) });
    launch_one(globals, null_mut(), &mut [arg(&out.0)]);
    assert_eq!(out.read::<u32>(1), [100]);
    // Another module has its own globals.
    let other = Module::load("runtime.hsaco");
    launch_one(other.function("globals"), null_mut(), &mut [arg(&out.0)]);
    assert_eq!(out.read::<u32>(1), [7]);
}

#[test]
fn an_unloaded_modules_work_finishes_and_its_handles_become_invalid() {
    let _gpu = gpu();
    let (flag, stream, place) = (Flag::new(), Stream::new(hipStreamNonBlocking), Buffer::of(&[0u32]));
    let module = Module::load("runtime.hsaco");
    let append = module.function("append");
    let digit = 3u32;
    launch_one(module.function("wait_for_flag"), stream.0, &mut [arg(&flag.0)]);
    launch_one(append, stream.0, &mut [arg(&place.0), arg(&digit)]);
    let handle = module.0;
    drop(module);
    assert_eq!(launch(append, [1; 3], [1; 3], 0, stream.0, &mut [arg(&place.0), arg(&digit)]), 400);
    // SAFETY: handles may be anything.
    assert_eq!(unsafe { hipModuleUnload(handle) }, 400);
    flag.set();
    ok(stream.synchronize());
    assert_eq!(place.read::<u32>(1), [3]);
}

#[test]
fn functions_report_their_resources() {
    let _gpu = gpu();
    let module = Module::load("runtime.hsaco");
    let attribute = |name: &str, number: u32| {
        let mut value = -1;
        // SAFETY: a valid pointer.
        let code = unsafe { hipFuncGetAttribute(&mut value, number, module.function(name)) };
        if code == 0 { Ok(value) } else { Err(code) }
    };
    assert_eq!(attribute("at_most_64", 0), Ok(64));
    assert_eq!(attribute("append", 0), Ok(1024));
    assert_eq!(attribute("append", 1), Ok(0));
    assert_eq!(attribute("append", 8), Ok(65536));
    assert!(attribute("append", 4).unwrap() > 0);
    assert_eq!(attribute("append", 99), Err(1));
    let blocks = |block: i32, lds: usize| {
        let mut blocks = -1;
        // SAFETY: a valid pointer.
        let code = unsafe {
            hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(
                &mut blocks,
                module.function("append"),
                block,
                lds,
            )
        };
        if code == 0 { Ok(blocks) } else { Err(code) }
    };
    // Four SIMDs of 16 waves: 64 waves of 32 lanes; 128 KiB of LDS.
    assert_eq!(blocks(32, 0), Ok(64));
    assert_eq!(blocks(256, 0), Ok(8));
    assert_eq!(blocks(256, 64 << 10), Ok(2));
    assert_eq!(blocks(256, 65 << 10), Ok(0));
    assert_eq!(blocks(0, 0), Err(1));
}
