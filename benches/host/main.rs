//! The host's own share of small operations: time, heap allocations and driver calls, as a table in markdown.
//!
//! ```text
//! cargo bench --features rocm --bench host
//! cargo bench --features rocm --bench host -- instructions
//! ```
//!
//! Builds a driver that does nothing ([`driver`]; rustc must be there) and starts itself again on it: no GPU is needed,
//! and none is measured. `instructions` adds what valgrind counts, which other programs on the machine do not change.
//! Other arguments choose the operations with that in their name.
mod driver;
mod measure;
mod operations;

use anyhow::{Context, Result, ensure};
use candle_core::Device;
use driver::{Calls, Driver};
use measure::{COUNTED, COUNTED_FUNCTION, Counts, ROUNDS, Times, Work};
use operations::{OPERATIONS, Operands, Operation, Storages};
use std::hint::black_box;

#[global_allocator]
static ALLOCATOR: measure::CountingAllocator = measure::CountingAllocator;

/// What the second process is asked for.
const TABLE: &str = "--table";
const INSTRUCTIONS: &str = "--instructions";

const COLUMNS: [&str; 9] = [
    "operation, 16 elements",
    "ns, least",
    "ns, median",
    "backend alone: ns, least",
    "ns, median",
    "heap allocations",
    "of the backend",
    "driver calls",
    "of hipSetDevice",
];

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        [TABLE, names @ ..] => table(&chosen(names)?),
        [INSTRUCTIONS, names @ ..] => {
            each_work(&chosen(names)?, |_, _, work| measure::count_instructions(work))
        }
        arguments => report(arguments),
    }
}

/// The operations with one of `names` in their name; all if there is none.
fn chosen(names: &[&str]) -> Result<Vec<&'static Operation>> {
    let wanted = |o: &&Operation| names.is_empty() || names.iter().any(|name| o.name.contains(name));
    let chosen: Vec<&Operation> = OPERATIONS.iter().filter(wanted).collect();
    ensure!(!chosen.is_empty(), "no operation has one of {names:?} in its name");
    Ok(chosen)
}

/// Builds the driver, measures on it in a second process, and prints the table.
fn report(arguments: &[&str]) -> Result<()> {
    let names: Vec<&str> = arguments.iter().copied().filter(|name| *name != "instructions").collect();
    let with_instructions = names.len() < arguments.len();
    let operations = chosen(&names)?;
    let driver = Driver::build()?;
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let cpu =
        cpu.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": ")).map(|(_, name)| name);
    println!("driver that does nothing: host time only, no GPU figure ({})\n", cpu.unwrap_or("unknown host"));
    let mut columns = COLUMNS.to_vec();
    let measured = driver.run(&[], &[&[TABLE], names.as_slice()].concat())?;
    let mut lines: Vec<String> = measured.lines().map(str::to_string).collect();
    if with_instructions {
        columns.extend(["instructions", "of the backend"]);
        for (line, counted) in lines.iter_mut().zip(instructions(&driver, &operations, &names)?) {
            line.push_str(&counted);
        }
    }
    println!("| {} |\n|{}", columns.join(" | "), "---|".repeat(columns.len()));
    lines.iter().for_each(|line| println!("{line}"));
    Ok(())
}

/// Two cells for each operation: callgrind writes a file whenever the counted function returns.
fn instructions(driver: &Driver, operations: &[&Operation], names: &[&str]) -> Result<Vec<String>> {
    let file = driver.folder().join("instructions");
    let wrapper = [
        "valgrind".to_string(),
        "--tool=callgrind".to_string(),
        "--quiet".to_string(),
        format!("--toggle-collect={COUNTED_FUNCTION}"),
        format!("--dump-after={COUNTED_FUNCTION}"),
        format!("--callgrind-out-file={}", file.display()),
    ];
    driver.run(&wrapper, &[&[INSTRUCTIONS], names].concat())?;
    let mut part = 0;
    let mut next = || -> Result<u64> {
        part += 1;
        let text = std::fs::read_to_string(file.with_extension(part.to_string()))?;
        let total = text
            .lines()
            .find_map(|line| line.strip_prefix("totals: "))
            .context("callgrind wrote no total")?;
        Ok(total.trim().parse::<u64>()? / COUNTED as u64)
    };
    operations
        .iter()
        .map(|operation| {
            let tensor = next()?;
            let storage = operation.storage.map(|_| next()).transpose()?;
            Ok(format!(
                " {tensor} | {} |",
                storage.map_or_else(|| "-".to_string(), |count| count.to_string())
            ))
        })
        .collect()
}

/// Calls `each` with every operation's number, its form (0 of `Tensor`, 1 of the backend) and itself.
fn each_work(
    operations: &[&Operation],
    mut each: impl FnMut(usize, usize, Work) -> Result<()>,
) -> Result<()> {
    let operands = Operands::new(&Device::new_rocm(0)?)?;
    operands.with_storages(|storages: &Storages| {
        for (number, operation) in operations.iter().enumerate() {
            each(number, 0, &|| (operation.tensor)(&operands).map(|result| drop(black_box(result))))?;
            if let Some(storage) = operation.storage {
                each(number, 1, &|| storage(storages).map(|result| drop(black_box(result))))?;
            }
        }
        Ok(())
    })
}

/// Measures, and prints the lines of the table.
fn table(operations: &[&Operation]) -> Result<()> {
    let mut times: Vec<[Times; 2]> = operations.iter().map(|_| Default::default()).collect();
    for _ in 0..ROUNDS {
        each_work(operations, |number, form, work| times[number][form].measure(work))?;
    }
    let mut counts: Vec<[Option<Counts>; 2]> = operations.iter().map(|_| [None, None]).collect();
    let calls = Calls::of_this_process()?;
    each_work(operations, |number, form, work| {
        counts[number][form] = Some(Counts::of(work, &calls)?);
        Ok(())
    })?;
    for ((operation, [tensor, storage]), counts) in operations.iter().zip(&mut times).zip(&counts) {
        let [Some(of_tensor), of_storage] = counts else { continue };
        let (least, median) = tensor.least_and_median()?;
        let backend = match of_storage {
            Some(counts) => {
                let (least, median) = storage.least_and_median()?;
                [format!("{least:.0}"), format!("{median:.0}"), counts.allocations.to_string()]
            }
            None => ["-", "-", "-"].map(str::to_string),
        };
        let [backend_least, backend_median, backend_allocations] = backend;
        let Counts { allocations, driver_calls, set_device } = of_tensor;
        println!(
            "| {} | {least:.0} | {median:.0} | {backend_least} | {backend_median} | {allocations} | \
             {backend_allocations} | {driver_calls} | {set_device} |",
            operation.name
        );
    }
    Ok(())
}
