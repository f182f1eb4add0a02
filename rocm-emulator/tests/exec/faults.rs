//! Tests of faulting kernels: the reported fault, and that a later launch succeeds.
use super::code_object::{Arguments, CodeObject, Shape, WAVE_SIZES, readable, writable};
use rocm_emulator::exec::{Access, FaultKind};

fn args() -> Arguments {
    Arguments::default()
}

#[test]
fn a_load_out_of_bounds_names_lane_and_address() {
    for lanes in WAVE_SIZES {
        let code = CodeObject::for_waves("memory", lanes);
        let x = vec![1f32; 100];
        let mut y = vec![2f32; 128];
        let arguments = args().f32(2.0).pointer(&x).pointer(&y);
        let memory = [readable(&x), writable(&mut y)];
        let shape = Shape::new(2, 64);
        let fault = code.launch("saxpy_unchecked", shape, &arguments, &memory).expect_err("reads past x");
        let end = memory[0].end();
        assert_eq!(fault.kernel, "saxpy_unchecked");
        // The faulting work-item is number 36 of the second workgroup.
        assert_eq!((fault.workgroup, fault.wave), ([1, 0, 0], 36 / lanes));
        let FaultKind::OutOfBounds { access: Access::Load, lane, address, bytes: 4, nearest } = fault.kind
        else {
            panic!("{fault}");
        };
        assert_eq!((lane, address), (36 % lanes, end));
        assert_eq!(nearest, Some(memory[0]));
        let text = fault.to_string();
        assert!(text.contains("global_load_b32") && text.contains(&format!("lane {lane}")), "{text}");
        // Workgroups below the faulty one have run.
        assert_eq!(y[..64], [4.0; 64]);

        // The launch succeeds with enough memory.
        let x = vec![1f32; 128];
        let arguments = args().f32(2.0).pointer(&x).pointer(&y);
        let memory = [readable(&x), writable(&mut y)];
        code.launch("saxpy_unchecked", shape, &arguments, &memory).expect("no fault");
    }
}

#[test]
fn the_lowest_faulting_workgroup_is_reported_with_any_number_of_threads() {
    for lanes in WAVE_SIZES {
        let code = CodeObject::for_waves("memory", lanes);
        let x = vec![1f32; 1000];
        let mut y = vec![2f32; 64 * 200];
        let arguments = args().f32(2.0).pointer(&x).pointer(&y);
        let memory = [readable(&x), writable(&mut y)];
        for _ in 0..50 {
            let fault =
                code.launch("saxpy_unchecked", Shape::new(200, 64), &arguments, &memory).expect_err("faults");
            assert_eq!(fault.workgroup, [1000 / 64, 0, 0]);
        }
    }
}

#[test]
fn a_store_to_read_only_memory() {
    let code = CodeObject::fixture("memory");
    let (x, y) = (vec![1f32; 32], vec![2f32; 32]);
    let arguments = args().f32(2.0).pointer(&x).pointer(&y);
    let fault = code
        .launch("saxpy_unchecked", Shape::new(1, 32), &arguments, &[readable(&x), readable(&y)])
        .expect_err("y is read-only");
    assert!(matches!(fault.kind, FaultKind::ReadOnly { access: Access::Store, lane: 0, .. }), "{fault}");
    assert_eq!(y, [2f32; 32]);
}

#[test]
fn lds_has_the_requested_size() {
    for lanes in WAVE_SIZES {
        let code = CodeObject::for_waves("lds", lanes);
        let mut x: Vec<u32> = (0..64).collect();
        let arguments = args().pointer(&x);
        let shape = Shape { dynamic_lds: 50 * 4, ..Shape::new(1, 64) };
        let fault =
            code.launch("reverse", shape, &arguments, &[writable(&mut x)]).expect_err("too little LDS");
        let expected = FaultKind::LdsOutOfBounds {
            access: Access::Store,
            lane: 50 % lanes,
            address: 200,
            bytes: 4,
            size: 200,
        };
        assert_eq!(fault.kind, expected);
        assert_eq!(fault.wave, 50 / lanes);
    }
}

#[test]
fn an_endless_loop_is_stopped() {
    let code = CodeObject::fixture("control");
    let flag = [0u32];
    let arguments = args().pointer(&flag);
    let shape = Shape { instruction_limit: 10_000, ..Shape::new(1, 32) };
    let fault = code.launch("spin", shape, &arguments, &[readable(&flag)]).expect_err("spins");
    assert!(matches!(fault.kind, FaultKind::InstructionLimit(10_000..11_000)), "{fault}");
    // The loop ends if the flag is set.
    let flag = [1u32];
    let arguments = args().pointer(&flag);
    code.launch("spin", shape, &arguments, &[readable(&flag)]).expect("no fault");
}

#[test]
fn a_barrier_that_not_all_waves_reach() {
    for lanes in WAVE_SIZES {
        let code = CodeObject::for_waves("lds", lanes);
        let mut x = vec![0u32; 1];
        let arguments = args().pointer(&x);
        let shape = Shape::new(1, 3 * lanes);
        let fault =
            code.launch("divergent_barrier", shape, &arguments, &[writable(&mut x)]).expect_err("diverges");
        assert_eq!(fault.kind, FaultKind::BarrierDivergence { waiting: 2, ended: 1 });
        assert!(fault.site.instruction.contains("s_barrier"), "{fault}");
    }
}

#[test]
fn a_trap_stops_the_launch() {
    let code = CodeObject::fixture("control");
    let run = |value: u32| {
        let x = [value];
        code.launch("trap", Shape::new(1, 32), &args().pointer(&x), &[readable(&x)])
    };
    assert!(matches!(run(5).expect_err("traps").kind, FaultKind::Trap(2)));
    run(4).expect("no fault");
}

#[test]
fn bad_launches_are_rejected() {
    let code = CodeObject::fixture("control");
    let x = [0u32];
    for shape in [
        Shape::new(1, 0),
        Shape::new(1, 1025),
        Shape { dynamic_lds: (160 << 10) + 1, ..Shape::new(1, 32) },
        Shape { grid: [u32::MAX; 3], ..Shape::new(1, 32) },
    ] {
        let fault = code.launch("trap", shape, &args().pointer(&x), &[readable(&x)]).expect_err("refused");
        assert!(matches!(fault.kind, FaultKind::BadLaunch(_)), "{fault}");
    }
}

#[test]
fn an_empty_grid_runs_nothing() {
    let code = CodeObject::fixture("control");
    let x = [5u32];
    let counters =
        code.launch("trap", Shape::new(0, 32), &args().pointer(&x), &[readable(&x)]).expect("nothing to do");
    assert_eq!(counters.instructions(), 0);
}
