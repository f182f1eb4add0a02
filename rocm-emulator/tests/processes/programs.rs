//! Correct and faulty programs. Each prints its result.
use crate::{checked, convolutions, gpu::*};
use rocm_emulator::api::*;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering};

/// Variable that names the program.
pub const VARIABLE: &str = "ROCM_EMULATOR_TEST_PROGRAM";
/// Prefix of the result in the output.
pub const RESULT: &str = "the result is ";

#[test]
#[ignore = "the other tests run it in separate processes"]
fn run() {
    let Ok(program) = std::env::var(VARIABLE) else { return };
    let configured = rocm_emulator::configure(&ARCHS);
    if program == "configure" {
        return println!("{RESULT}{}", configured.map_or_else(|error| error.to_string(), |()| String::new()));
    }
    configured.unwrap();
    let result = match program.as_str() {
        "devices" => devices(),
        "profiled" => profiled(),
        "profile taken" => take_profile(),
        "ends at once" => end_at_once(),
        "streams without an event" => two_streams(false),
        "streams with an event" => two_streams(true),
        "pinned memory read at once" => read_pinned(false),
        "pinned memory read after waiting" => read_pinned(true),
        "pinned source changed" => change_source(true, false),
        "pinned source changed after waiting" => change_source(true, true),
        "pageable source changed" => change_source(false, false),
        "null stream" => null_stream(),
        "null stream and a non-blocking one" => null_and_free_stream(),
        "queries of a stream" => queries(false),
        "queries of an event" => queries(true),
        "callback" => enqueue_in_callback(),
        "fault" => fault(),
        "many commands" => many_commands(),
        "many threads" => many_threads(),
        "schedule" => schedule(),
        "convolution" => convolutions::program(),
        other => checked::run(other),
    };
    println!("{RESULT}{result}");
}

/// Appends digits to a number on the device.
struct Append {
    _module: Module,
    function: hipFunction_t,
}

impl Append {
    fn load() -> Self {
        let on_cdna = rocm_emulator::device_archs()[0].starts_with("gfx90a");
        let module = Module::load(if on_cdna { "runtime.gfx90a.hsaco" } else { "runtime.hsaco" });
        let function = module.function("append");
        Self { _module: module, function }
    }

    fn digit(&self, stream: hipStream_t, place: &Buffer, digit: u32) {
        launch_one(self.function, stream, &mut [arg(&place.0), arg(&digit)]);
    }
}

fn number(place: &Buffer) -> String {
    // SAFETY: no arguments.
    ok(unsafe { hipDeviceSynchronize() });
    place.read::<u32>(1)[0].to_string()
}

fn event() -> hipEvent_t {
    let mut event = null_mut();
    // SAFETY: a valid pointer.
    ok(unsafe { hipEventCreate(&mut event) });
    event
}

fn pinned(value: u32) -> *mut u32 {
    let mut ptr = null_mut();
    // SAFETY: a valid pointer; afterwards four live bytes.
    unsafe {
        ok(hipHostMalloc(&mut ptr, 4, 0));
        ptr.cast::<u32>().write(value);
    }
    ptr.cast()
}

fn two_streams(with_event: bool) -> String {
    let (append, place) = (Append::load(), Buffer::of(&[0u32]));
    let (first, second) = (Stream::new(hipStreamNonBlocking), Stream::new(hipStreamNonBlocking));
    append.digit(first.0, &place, 1);
    if with_event {
        let event = event();
        // SAFETY: handles may be anything.
        unsafe {
            ok(hipEventRecord(event, first.0));
            ok(hipStreamWaitEvent(second.0, event, 0));
        }
    }
    append.digit(second.0, &place, 2);
    number(&place)
}

fn read_pinned(waits: bool) -> String {
    let (stream, host) = (Stream::new(hipStreamNonBlocking), pinned(0));
    let device = Buffer::of(&[7u32]);
    // SAFETY: both sides hold four bytes.
    unsafe {
        ok(hipMemcpyAsync(host.cast(), device.0, 4, hipMemcpyDeviceToHost, stream.0));
        if waits {
            ok(stream.synchronize());
        }
        host.read_volatile().to_string()
    }
}

fn change_source(is_pinned: bool, waits: bool) -> String {
    let (stream, device) = (Stream::new(hipStreamNonBlocking), Buffer::of(&[0u32]));
    let mut pageable = 1u32;
    let source: *mut u32 = if is_pinned { pinned(1) } else { &raw mut pageable };
    // SAFETY: both sides hold four bytes.
    unsafe {
        ok(hipMemcpyAsync(device.0, source.cast(), 4, hipMemcpyHostToDevice, stream.0));
        if waits {
            ok(stream.synchronize());
        }
        source.write_volatile(2);
    }
    ok(stream.synchronize());
    device.read::<u32>(1)[0].to_string()
}

fn null_stream() -> String {
    let (append, place) = (Append::load(), Buffer::of(&[0u32]));
    let (first, second) = (Stream::new(hipStreamDefault), Stream::new(hipStreamDefault));
    append.digit(first.0, &place, 1);
    append.digit(null_mut(), &place, 2);
    append.digit(second.0, &place, 3);
    number(&place)
}

fn null_and_free_stream() -> String {
    let (append, place) = (Append::load(), Buffer::of(&[0u32]));
    let free = Stream::new(hipStreamNonBlocking);
    append.digit(free.0, &place, 1);
    append.digit(null_mut(), &place, 2);
    number(&place)
}

fn queries(of_event: bool) -> String {
    let (append, place) = (Append::load(), Buffer::of(&[0u32]));
    let stream = Stream::new(hipStreamNonBlocking);
    (1..=9).for_each(|digit| append.digit(stream.0, &place, digit));
    let event = event();
    // SAFETY: handles may be anything.
    unsafe {
        ok(hipEventRecord(event, stream.0));
        while (if of_event { hipEventQuery(event) } else { stream.query() }) != 0 {}
    }
    number(&place)
}

struct Further {
    append: Append,
    place: Buffer,
    other: Stream,
}

unsafe extern "C" fn append_further(_: hipStream_t, _: hipError_t, data: *mut c_void) {
    // SAFETY: the program passes a `Further` that outlives the streams' work.
    let further = unsafe { &*data.cast::<Further>() };
    further.append.digit(further.other.0, &further.place, 2);
}

fn enqueue_in_callback() -> String {
    let stream = Stream::new(hipStreamNonBlocking);
    let further = Further {
        append: Append::load(),
        place: Buffer::of(&[0u32]),
        other: Stream::new(hipStreamNonBlocking),
    };
    further.append.digit(stream.0, &further.place, 1);
    // SAFETY: the data lives until the streams are synchronized.
    ok(unsafe { hipStreamAddCallback(stream.0, Some(append_further), arg(&further), 0) });
    ok(stream.synchronize());
    ok(further.other.synchronize());
    number(&further.place)
}

fn fault() -> String {
    let append = Append::load();
    let (faulty, other) = (Stream::new(hipStreamNonBlocking), Stream::new(hipStreamNonBlocking));
    let nowhere = Buffer(std::ptr::without_provenance_mut(64));
    append.digit(faulty.0, &nowhere, 1);
    std::mem::forget(nowhere);
    let codes = (faulty.synchronize(), other.synchronize());
    format!("{} {}", codes.0, codes.1)
}

fn many_commands() -> String {
    let module = Module::load("order.hsaco");
    let (count, place) = (module.function("counted_updates"), Buffer::of(&[0u32]));
    let streams: Vec<Stream> = (0..5).map(|n| Stream::new(n & 1)).collect();
    for n in 0..1000 {
        launch_one(count, streams[n % 5].0, &mut [arg(&place.0)]);
    }
    number(&place)
}

fn many_threads() -> String {
    let module = Module::load("order.hsaco");
    let count = module.function("counted_updates") as usize;
    let sum = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let (stream, place) = (Stream::new(hipStreamNonBlocking), Buffer::of(&[0u32]));
                for n in 0..10 {
                    let args = &mut [arg(&place.0)];
                    ok(launch(count as hipFunction_t, [100, 1, 1], [1; 3], 0, stream.0, args));
                    if n % 3 == 0 {
                        ok(stream.synchronize());
                    }
                }
                ok(stream.synchronize());
                sum.fetch_add(place.read::<u32>(1)[0], Ordering::Relaxed);
            });
        }
    });
    sum.into_inner().to_string()
}

/// Returns the order in which the commands of nine streams run.
fn schedule() -> String {
    let (append, place) = (Append::load(), Buffer::of(&[0u32]));
    let streams: Vec<Stream> = (0..9).map(|_| Stream::new(hipStreamNonBlocking)).collect();
    let mut found = Vec::new();
    for _ in 0..4 {
        for (digit, stream) in (1..).zip(&streams) {
            append.digit(stream.0, &place, digit);
        }
        found.push(number(&place));
    }
    found.join(" ")
}

fn devices() -> String {
    let mut count = -1;
    // SAFETY: valid pointers.
    let code = unsafe { hipGetDeviceCount(&mut count) };
    assert_eq!(count as usize, rocm_emulator::device_archs().len());
    let mut text = String::new();
    for (ordinal, arch) in rocm_emulator::device_archs().into_iter().enumerate() {
        let mut bus = [0; 16];
        // SAFETY: the buffer has this size.
        ok(unsafe { hipDeviceGetPCIBusId(bus.as_mut_ptr(), 16, ordinal as i32) });
        let slot: String = bus[5..7].iter().map(|&byte| byte as u8 as char).collect();
        text += &format!("{}@{slot} ", arch.split(':').next().unwrap());
    }
    format!("{text}code {code}")
}

/// Makes one launch and waits for it, makes 200 more, and ends the process on the same thread.
fn end_at_once() -> String {
    let (append, place) = (Append::load(), Buffer::of(&[0u32]));
    append.digit(null_mut(), &place, 1);
    // SAFETY: no arguments.
    ok(unsafe { hipDeviceSynchronize() });
    (0..200).for_each(|_| append.digit(null_mut(), &place, 1));
    println!("{RESULT}done");
    std::process::exit(0)
}

/// Makes two launches of one kernel, one of another, and one without a wait.
fn profiled() -> String {
    let module = Module::load("profile.hsaco");
    let (x, y) = (Buffer::of(&[1u32; 1024]), Buffer::new(4096));
    let (banks, strided) = (module.function("banks"), module.function("strided"));
    let (two, far, half) = (2u32, 32u32, 16u32);
    for _ in 0..2 {
        ok(launch(banks, [3, 1, 1], [32, 1, 1], 0, null_mut(), &mut [arg(&y.0), arg(&two)]));
    }
    let args = &mut [arg(&x.0), arg(&y.0), arg(&far)];
    ok(launch(strided, [1; 3], [32, 1, 1], 0, null_mut(), args));
    // SAFETY: no arguments.
    ok(unsafe { hipDeviceSynchronize() });
    let part = module.function("part_of_the_lanes");
    ok(launch(part, [1; 3], [32, 1, 1], 0, null_mut(), &mut [arg(&y.0), arg(&half)]));
    // Dropping any of them would wait.
    std::mem::forget((x, y, module));
    "done".into()
}

/// Returns the kernels of three profiles, taken after one launch, after two of another kernel, and after none.
fn take_profile() -> String {
    let module = Module::load("profile.hsaco");
    let (y, two, half) = (Buffer::new(4096), 2u32, 16u32);
    let taken = |name, times, last| {
        for _ in 0..times {
            let function = module.function(name);
            ok(launch(function, [1; 3], [32, 1, 1], 0, null_mut(), &mut [arg(&y.0), arg(last)]));
        }
        // SAFETY: no arguments.
        ok(unsafe { hipDeviceSynchronize() });
        let Some(text) = rocm_emulator::take_profile() else { return "none".into() };
        let says = |line: &&str| line.contains("\"name\"") || line.contains("\"launches\"");
        text.lines().filter(says).collect::<String>()
    };
    [taken("banks", 1, &two), taken("part_of_the_lanes", 2, &half), taken("banks", 0, &two)].join("|")
}
