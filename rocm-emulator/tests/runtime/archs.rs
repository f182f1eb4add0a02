//! Devices of different architectures in one process: each runs its own code; memory and events are shared.
use crate::gpu::*;
use rocm_emulator::api::*;
use std::ptr::null_mut;

/// The ordinals of an RDNA and of a CDNA device.
const RDNA: i32 = 0;
const CDNA: i32 = 2;
const NOT_READY: hipError_t = 600;
const INVALID_HANDLE: hipError_t = 400;

/// The objects of one device in a test.
struct Side {
    device: i32,
    module: Module,
    stream: Stream,
    place: Buffer,
}

impl Side {
    fn new(device: i32) -> Self {
        set_device(device);
        let file = if device == CDNA { "runtime.gfx90a.hsaco" } else { "runtime.hsaco" };
        let (module, stream) = (Module::load(file), Stream::new(hipStreamNonBlocking));
        Self { device, module, stream, place: Buffer::of(&[0u32]) }
    }

    fn append(&self, place: &Buffer, digit: u32) {
        launch_one(self.module.function("append"), self.stream.0, &mut [arg(&place.0), arg(&digit)]);
    }

    fn block(&self, flag: &Flag) {
        launch_one(self.module.function("wait_for_flag"), self.stream.0, &mut [arg(&flag.0)]);
    }

    fn event(&self) -> hipEvent_t {
        set_device(self.device);
        let mut event = null_mut();
        // SAFETY: a valid pointer.
        ok(unsafe { hipEventCreate(&mut event) });
        event
    }
}

#[test]
fn each_device_runs_its_own_code_objects() {
    let _gpu = gpu();
    let sides = [Side::new(RDNA), Side::new(CDNA)];
    for (side, other) in [(&sides[0], "runtime.gfx90a.hsaco"), (&sides[1], "runtime.hsaco")] {
        (1..=3).for_each(|digit| side.append(&side.place, digit));
        ok(side.stream.synchronize());
        assert_eq!(side.place.read::<u32>(1), [123]);
        set_device(side.device);
        let (bytes, mut module) = (fixture(other), null_mut());
        // SAFETY: a complete code object.
        let code = unsafe { hipModuleLoadData(&mut module, bytes.as_ptr().cast()) };
        assert_eq!(code, 209, "no binary for this device");
        let arch = ARCHS[side.device as usize];
        let detail = rocm_emulator::last_error().unwrap();
        assert!(detail.contains(arch), "{detail}");
    }
    set_device(RDNA);
}

#[test]
fn copies_between_them_need_no_peer_access_but_kernels_do() {
    let _gpu = gpu();
    let (rdna, cdna) = (Side::new(RDNA), Side::new(CDNA));
    rdna.append(&rdna.place, 7);
    ok(rdna.stream.synchronize());
    // SAFETY: the runtime checks the addresses.
    unsafe {
        ok(hipMemcpyPeerAsync(cdna.place.0, CDNA, rdna.place.0, RDNA, 4, rdna.stream.0));
        ok(rdna.stream.synchronize());
        cdna.append(&cdna.place, 8);
        ok(cdna.stream.synchronize());
        assert_eq!(cdna.place.read::<u32>(1), [78]);
        // A copy with the default direction determines the devices from the addresses.
        ok(hipMemcpy(rdna.place.0, cdna.place.0, 4, hipMemcpyDefault));
        assert_eq!(rdna.place.read::<u32>(1), [78]);

        cdna.append(&rdna.place, 9);
        assert_eq!(cdna.stream.synchronize(), 700, "peer access is not enabled");
        set_device(CDNA);
        ok(hipDeviceEnablePeerAccess(RDNA, 0));
        cdna.append(&rdna.place, 9);
        ok(cdna.stream.synchronize());
        assert_eq!(rdna.place.read::<u32>(1), [789]);
        // Peer access is one-way.
        rdna.append(&cdna.place, 1);
        assert_eq!(rdna.stream.synchronize(), 700);
        // A reset revokes it.
        let fresh = {
            ok(hipDeviceReset());
            Side::new(CDNA)
        };
        fresh.append(&rdna.place, 1);
        assert_eq!(fresh.stream.synchronize(), 700);
        assert_eq!(hipDeviceDisablePeerAccess(RDNA), 705);
    }
    set_device(RDNA);
}

#[test]
fn events_order_streams_of_two_devices() {
    let _gpu = gpu();
    let (rdna, cdna, flag) = (Side::new(RDNA), Side::new(CDNA), Flag::new());
    let event = rdna.event();
    rdna.block(&flag);
    rdna.append(&rdna.place, 4);
    // SAFETY: handles may be anything; the runtime checks the addresses.
    unsafe {
        ok(hipEventRecord(event, rdna.stream.0));
        ok(hipStreamWaitEvent(cdna.stream.0, event, 0));
        ok(hipMemcpyPeerAsync(cdna.place.0, CDNA, rdna.place.0, RDNA, 4, cdna.stream.0));
        cdna.append(&cdna.place, 5);
        assert_eq!(cdna.stream.query(), NOT_READY);
        flag.set();
        ok(cdna.stream.synchronize());
        ok(hipEventDestroy(event));
    }
    assert_eq!(cdna.place.read::<u32>(1), [45]);
    set_device(RDNA);
}

#[test]
fn time_is_measured_between_streams_of_one_device_only() {
    let _gpu = gpu();
    let (rdna, cdna) = (Side::new(RDNA), Side::new(CDNA));
    set_device(RDNA);
    let second = Stream::new(hipStreamNonBlocking);
    let (start, stop, foreign) = (rdna.event(), rdna.event(), cdna.event());
    let mut milliseconds = -1f32;
    // SAFETY: valid pointers; handles may be anything.
    unsafe {
        ok(hipEventRecord(start, rdna.stream.0));
        rdna.append(&rdna.place, 1);
        ok(hipEventSynchronize(start));
        ok(hipStreamWaitEvent(second.0, start, 0));
        ok(hipEventRecord(stop, second.0));
        ok(hipEventSynchronize(stop));
        ok(hipEventElapsedTime(&mut milliseconds, start, stop));
        assert!(milliseconds >= 0.0);
        // An event of another device has no common time base with these.
        assert_eq!(hipEventRecord(foreign, rdna.stream.0), INVALID_HANDLE);
        ok(hipEventRecord(foreign, cdna.stream.0));
        ok(hipEventSynchronize(foreign));
        assert_eq!(hipEventElapsedTime(&mut milliseconds, start, foreign), INVALID_HANDLE);
        let detail = rocm_emulator::last_error().unwrap();
        assert!(detail.contains("devices 0 and 2"), "{detail}");
        for event in [start, stop, foreign] {
            ok(hipEventDestroy(event));
        }
    }
    set_device(RDNA);
}
