//! Tests of the model with figures computed by hand, and of the tables.
use serde_json::json;

use super::check;
use super::counts::{Coalescing, Kernel, Resources, Run};
use super::model::{ASSUMED, Constants, Gpu, Node};
use super::tables::{self, Occupancy};

fn gpu(name: &str) -> Gpu {
    let gpus = Constants::published().unwrap().gpus;
    gpus.into_iter().find(|gpu| gpu.name == name).unwrap()
}

/// Returns a launch whose waves wait for nothing.
fn node(wave_size: f64) -> Node {
    Node { wave_size, workgroups: 1., waves: 1e6, occupancy: 8., ..Node::default() }
}

fn close((us, limit): (f64, &str), expected: f64, by: &str) -> bool {
    (us / expected - 1.).abs() < 1e-3 && limit == by
}

#[test]
fn constants_name_their_sources() {
    let constants = Constants::published().unwrap();
    for gpu in &constants.gpus {
        let all = gpu.constants();
        assert_eq!(all.len(), 24, "{}", gpu.name);
        for (name, constant) in all {
            assert!(constant.0 > 0., "{} {name}", gpu.name);
            let known = constant.1 == ASSUMED || constants.sources.contains_key(&constant.1);
            assert!(known, "{} {name}: {}", gpu.name, constant.1);
        }
    }
    let text = tables::constants(&constants);
    assert!(text.contains("| `dispatch_graph` | 1.4 assumed | 1.4 assumed | 2.83 floor |"), "{text}");
}

#[test]
fn bytes_move_at_the_rate_of_the_level_that_holds_them() {
    let mi300x = gpu("MI300X");
    let of = |footprint| mi300x.time(&Node { footprint, ..node(64.) });
    assert!(close(of(30e6), 30e6 / 15_424e3, "L2"));
    assert!(close(of(200e6), 200e6 / 5_798e3, "Infinity Cache"));
    assert!(close(of(300e6), 300e6 / 3_962e3, "memory"));
    assert!((mi300x.bound(300e6, 301e6) - 1.4 - 300e6 / 3_962e3).abs() < 1e-9);
    // A wave's access touches 64 lines: those of 8 waves on each of 1,216 vector units do not fit in L1.
    let accessed = 64. * 128. * 1e6;
    let gather = Node { accessed, accesses: 1e6, footprint: 30e6, ..node(64.) };
    assert!(close(mi300x.time(&gather), accessed / 15_424e3, "L2"));
    let few = Node { waves: 304., accessed: accessed / 1e6, accesses: 1., ..gather };
    assert!(close(mi300x.time(&few), 30e6 / 15_424e3, "L2"));
}

#[test]
fn all_units_issue_instructions() {
    // Each of 304 units issues one wave64 instruction per cycle (4 SIMDs of 16 lanes, 4 cycles each) at 2100 MHz.
    let mi300x = gpu("MI300X");
    let work = 304. * 2100.;
    let vector = Node { vector: 5. * work, waves: work, ..node(64.) };
    assert!(close(mi300x.time(&vector), 5., "vector"), "{:?}", mi300x.time(&vector));
    // Two of the five instructions run at quarter rate: 3 + 2 * 4.
    let slow = Node { quarter_rate: 2. * work, ..vector.clone() };
    assert!(close(mi300x.time(&slow), 11., "vector"));
    assert!(close(mi300x.time(&Node { scalar: 12. * work, ..vector.clone() }), 12., "scalar"));
    assert!(close(mi300x.time(&Node { lds_steps: 9. * work, ..vector.clone() }), 9., "LDS"));
    // A product of 16 cycles on one of four matrix units.
    assert!(close(mi300x.time(&Node { products: 2. * work, ..vector }), 8., "matrix"));
    // Each of 96 units issues two wave32 instructions per cycle at 2500 MHz; f64 takes 16 times as long.
    let xtx = gpu("RX 7900 XTX");
    let work = 96. * 2. * 2500.;
    let double =
        Node { vector: 30. * work, double_precision: work, waves: work, occupancy: 16., ..node(32.) };
    assert!(close(xtx.time(&double), 45., "vector"), "{:?}", xtx.time(&double));
    // A wave64 instruction takes two passes of 32 lanes.
    assert!(close(xtx.time(&Node { wave_size: 64., ..double }), 90., "vector"));
}

#[test]
fn few_waves_in_flight_wait_for_memory() {
    // Workgroups of four waves with all of the LDS: one wave on each of 1,216 vector units, ten waits of 137 ns.
    let mi300x = gpu("MI300X");
    let node = Node { workgroups: 2432., waves: 9728., lds_bytes: 65536., waits: 10., ..node(64.) };
    assert_eq!(mi300x.occupancy(&node), 1.);
    assert!(close(mi300x.time(&node), 8. * 1.37, "latency"), "{:?}", mi300x.time(&node));
    let free = Node { lds_bytes: 0., ..node };
    assert!(close(mi300x.time(&free), 1.37, "latency"));
    // Each of eight dies launches a workgroup per six cycles.
    let groups = Node { workgroups: 8. * 2100., waits: 0., ..free };
    assert!(close(mi300x.time(&groups), 6., "workgroups"));
}

#[test]
fn a_kernels_node_is_the_mean_of_its_launches() {
    let kernel = Kernel {
        resources: Resources { wave_size: 64, lds_bytes: 512 },
        launches: 2,
        waves: 8,
        coalescing: Coalescing { accesses: 72, lines_loaded: 3, lines_stored: 1, ..Coalescing::default() },
        ..Kernel::default()
    };
    let node = kernel.node(5.);
    assert_eq!((node.waves, node.footprint, node.waits, node.occupancy), (4., 256., 2., 5.));
}

#[test]
fn the_cases_furthest_above_their_bound_are_listed() {
    let row = |name: &str, lines: u64, vector: u64| {
        json!({
            "group": "elementwise", "case": name, "dtype": "f32", "shape": "1M", "bytes": 12_800_000,
            "kernels": [{
                "name": "arithmetic_f32", "resources": {"wave_size": 64, "vgprs": 9, "lds_bytes": 0}, "launches": 2,
                "workgroups": 1024, "waves": 4096,
                "instructions": {"total": vector, "vector": vector, "scalar": 10, "scalar_memory": 1,
                                 "global_memory": 3, "lds": 0, "scratch": 0, "flow": 2},
                "rates": {"quarter_rate": 0, "double_precision": 0, "products": 0},
                "coalescing": {"accesses": 50_000, "bytes": 12_800_000, "lines_64": 0, "lines_128": 100_000,
                               "lines_loaded": lines - 50_000, "lines_stored": 50_000},
                "lds": {"accesses": 0, "steps": 0, "bank_conflicts": 0},
            }],
        })
    };
    let results = json!([
        {"group": "launch", "case": "device_init", "dtype": "-", "shape": "-", "us": 1.},
        row("fine", 100_000, 1 << 16),
        row("slow", 100_000, 100_000_000),
    ]);
    let meta = json!({"arch": "gfx942:sramecc+:xnack-", "date": "2026-11-22", "scale": "paper"});
    let run: Run = serde_json::from_value(json!({"meta": meta, "results": results})).unwrap();
    assert_eq!(run.processor(), "gfx942");
    let occupancy = Occupancy::parse(
        "# waves\nkernel\tgfx942\tgfx1100\narithmetic_f32\t11/0/2/0/0/0/7\t9/0/2/0/0/0/16\n",
    );
    let gpu = gpu("MI300X");
    let text = tables::worst(&[(&gpu, &run)], 1, &occupancy);
    assert!(text.contains("### MI300X (gfx942), counted as gfx942 on 2026-11-22\n\n2 cases"), "{text}");
    // 100 million instructions take 156.6 us, and two dispatches 2.8; the bytes take 0.83, and one dispatch 1.4.
    let slow = "| slow f32 1M | 159 | 2.23 | 71.50 | vector | 7/8 | 2 `arithmetic_f32` |";
    assert!(text.contains(slow) && !text.contains("fine"), "{text}");
    let bench = json!({"results": [{"case": "device_copy", "us": 2., "bytes": 8_000_000}]});
    let beside = tables::with_measurements(&gpu, &bench);
    assert!(beside.contains("| memory_rate | 3962 | mt4g | 4000 |"), "{beside}");
    assert!(beside.contains("| dispatch_stream | 2.4 | assumed | - |"), "{beside}");
}

#[test]
fn errors_are_listed_by_class() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("times.csv");
    // 12 GB at 3962 GB/s and the floor of 4 us take 3,033 us; one row is exact, and the other takes twice as long.
    let csv = "kernel_name,problem_size,iterations,avg_ms,min_ms,max_ms\n\
               vectoradd,1000000000,5,4,3.0327740,4\nvectoradd,1000000000,5,7,6.065548,8\nbfs,nodes1024,5,1,0.004,9\n";
    std::fs::write(&file, csv).unwrap();
    let text = check::run_check(Some(&file)).unwrap();
    let row = "| elementwise | `arithmetic_f32`, `usimple_f32` | 2 | 1.50 | 2.00 | 0.71 | 2 | 1.50 | vectoradd 1000000000: 3033, 6066 |";
    assert!(text.contains(row), "{text}");
    assert!(text.contains("2 of 3 rows are compared. The floor is 4.0 us"), "{text}");
}
