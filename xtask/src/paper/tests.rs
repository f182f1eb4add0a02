//! Tests of the model with figures computed by hand, and of the tables.
use serde_json::json;

use super::counts::{Case, Coalescing, Instructions, Kernel, Lds, Rates, Resources, Run};
use super::model::{CHIPS, Chip, bytes};
use super::tables::{Occupancy, markdown};

fn chip(name: &str) -> &'static Chip {
    CHIPS.iter().find(|chip| chip.name == name).unwrap()
}

fn kernel(wave_size: u64) -> Kernel {
    Kernel {
        name: "badd_f32".into(),
        resources: Resources { wave_size, lds_bytes: 0 },
        launches: 1,
        ..Kernel::default()
    }
}

fn case(kernels: Vec<Kernel>) -> Case {
    let text = || "add".to_string();
    Case { group: text(), case: text(), dtype: text(), shape: text(), bytes: None, elements: 0, kernels }
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() < 1e-9
}

#[test]
fn memory_moves_each_line_of_a_launch_once() {
    // 5300 GB/s move 42.4 MB, or 331,250 lines, in 8 us; 960 GB/s need 44.2 us for them.
    let mut kernel = kernel(64);
    kernel.coalescing =
        Coalescing { lines_loaded: 331_000, lines_stored: 250, lines_128: 1 << 40, ..Coalescing::default() };
    let case = case(vec![kernel]);
    assert_eq!(bytes(&case), 42_400_000);
    assert!(close(chip("MI300X").cost(&case).memory, 8.));
    assert!(close(chip("RX 7900 XTX").cost(&case).memory, 42_400. / 960.));
}

#[test]
fn vector_instructions_are_issued_by_all_vector_units() {
    // Each of 304 units issues one wave64 instruction per cycle (4 SIMDs of 16 lanes, 4 cycles each) at 2100 MHz.
    let mut slow = kernel(64);
    slow.instructions = Instructions { vector: 5 * 304 * 2100, ..Instructions::default() };
    assert!(close(chip("MI300X").cost(&case(vec![slow.clone()])).issue, 5.));
    // Two of the five instructions run at quarter rate: 3 + 2 * 4, twice.
    slow.rates = Rates { quarter_rate: 2 * 304 * 2100, double_precision: 0 };
    let cost = chip("MI300X").cost(&case(vec![slow.clone(), slow]));
    assert!(close(cost.issue, 22.) && cost.kind == "vector", "{cost:?}");
    // Each of 96 units issues two wave32 instructions per cycle at 2500 MHz; f64 takes 16 times as long.
    let mut double = kernel(32);
    double.instructions = Instructions { vector: 3 * 96 * 2 * 2500, ..Instructions::default() };
    double.rates = Rates { quarter_rate: 0, double_precision: 96 * 2 * 2500 };
    assert!(close(chip("RX 7900 XTX").cost(&case(vec![double.clone()])).issue, 2. + 16.));
    // A wave64 instruction takes two passes of 32 lanes.
    double.resources.wave_size = 64;
    assert!(close(chip("RX 7900 XTX").cost(&case(vec![double])).issue, 36.));
}

#[test]
fn the_issue_time_is_that_of_each_kernels_slowest_kind() {
    let mi300x = chip("MI300X");
    let mut scalar = kernel(64);
    scalar.instructions = Instructions {
        vector: 2 * 304 * 2100,
        scalar: 2 * 304 * 2100,
        scalar_memory: 304 * 2100,
        flow: 304 * 2100,
        ..Instructions::default()
    };
    let cost = mi300x.cost(&case(vec![scalar.clone()]));
    assert!(close(cost.issue, 3.) && cost.kind == "scalar", "{cost:?}");
    let mut lds = kernel(64);
    lds.lds = Lds { steps: 3 * 304 * 2100, bank_conflicts: 304 * 2100 };
    lds.instructions = Instructions { global_memory: 304 * 2100, lds: 1, ..Instructions::default() };
    let cost = mi300x.cost(&case(vec![scalar, lds]));
    assert!(close(cost.issue, 7.) && cost.kind == "LDS", "{cost:?}");
}

#[test]
fn lds_limits_occupancy() {
    let mut kernel = kernel(64);
    (kernel.workgroups, kernel.waves) = (10, 40);
    assert_eq!(chip("MI300X").occupancy(&kernel, 8), 8);
    // Four workgroups of four waves share four vector units.
    kernel.resources.lds_bytes = 16 << 10;
    assert_eq!(chip("MI300X").occupancy(&kernel, 8), 4);
    assert_eq!(chip("MI300X").occupancy(&kernel, 3), 3);
    kernel.resources.lds_bytes = 64 << 10;
    assert_eq!(chip("MI300X").occupancy(&kernel, 8), 1);
    // One workgroup of four waves on two vector units.
    assert_eq!(chip("RX 7900 XTX").occupancy(&kernel, 16), 2);
}

#[test]
fn cases_above_the_limits_are_listed_and_marked() {
    let row = |name: &str, lines: u64, vector: u64| {
        json!({
            "group": "elementwise", "case": name, "dtype": "f32", "shape": "1M", "bytes": 12_800_000,
            "elements": 1 << 20,
            "kernels": [{
                "name": "badd_f32", "resources": {"wave_size": 64, "vgprs": 9, "lds_bytes": 0}, "launches": 1,
                "workgroups": 1024, "waves": 4096,
                "instructions": {"total": vector, "vector": vector, "scalar": 10, "scalar_memory": 1,
                                 "global_memory": 3, "lds": 0, "scratch": 0, "flow": 2},
                "rates": {"quarter_rate": 0, "double_precision": 0},
                "coalescing": {"accesses": 50_000, "bytes": 12_800_000, "lines_64": 0, "lines_128": 100_000,
                               "lines_loaded": lines - 50_000, "lines_stored": 50_000},
                "lds": {"accesses": 0, "steps": 0, "bank_conflicts": 0},
            }],
        })
    };
    // 100,000 lines take 2.4 us, and 10 million vector instructions 15.7 us.
    let results = json!([
        {"group": "launch", "case": "device_init", "dtype": "-", "shape": "-", "us": 1.},
        row("fine", 100_000, 1 << 16),
        row("twice", 200_000, 1 << 16),
        row("slow", 100_000, 10_000_000),
    ]);
    let meta = json!({"arch": "gfx942", "date": "2026-11-22", "scale": "paper"});
    let run: Run = serde_json::from_value(json!({"meta": meta, "results": results})).unwrap();
    let occupancy =
        Occupancy::parse("# waves\nkernel\tgfx942\tgfx1100\nbadd_f32\t11/0/2/0/0/0/7\t9/0/2/0/0/0/16\n");
    let paper = markdown(&[(chip("MI300X"), run)], &["elementwise"], &occupancy);
    assert_eq!(
        paper.summary,
        "3 cases of at least 1 MB: 1 move more than 1.05 times the minimum bytes (B), 1 have an issue time above \
         the memory time (I), 0 access lines repeatedly (L)"
    );
    let (misses, all) = paper.text.split_once("### MI300X").unwrap();
    assert!(!misses.contains("fine"), "{misses}");
    assert!(misses.contains("| twice f32 1M | **2.00** | 1.00 | 0.02 | vector | `badd_f32` |"), "{misses}");
    assert!(misses.contains("| slow f32 1M | 1.00 | 1.00 | **6.49** | vector | `badd_f32` |"), "{misses}");
    assert!(
        all.contains("| fine f32 1M | 12.8 | 1.00, 1.00, 1.00 | 2.00 | - | 7/8 | 4.00, 0.00, 0.00 | 2.42 | 0.10 | 2.42 memory |"),
        "{all}"
    );
    assert!(all.contains("| slow f32 1M **I** |") && all.contains("| 15.7 vector |"), "{all}");
}
