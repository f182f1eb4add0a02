//! Benchmark of host overhead of small operations: prints time, heap allocations and driver calls as a Markdown table.
//!
//! ```text
//! cargo bench --features rocm --bench host
//! cargo bench --features rocm --bench host -- instructions
//! ```
//!
//! Builds a stub driver ([`driver`], which needs rustc) and measures in a child process that uses it, without
//! a GPU. `instructions` adds instruction counts from valgrind, which do not depend on other programs on the
//! machine. Other arguments select the operations whose names contain them.
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

/// Arguments of the child process.
const TABLE: &str = "--table";
const INSTRUCTIONS: &str = "--instructions";

const COLUMNS: [&str; 9] = [
    "operation, 16 elements",
    "min ns",
    "median ns",
    "backend only: min ns",
    "median ns",
    "heap allocations",
    "in the backend",
    "driver calls",
    "hipSetDevice calls",
];

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        [TABLE, names @ ..] => table(&select_operations(names)?),
        [INSTRUCTIONS, names @ ..] => {
            for_each_work(&select_operations(names)?, |_, _, work| measure::count_instructions(work))
        }
        arguments => report(arguments),
    }
}

/// Returns the operations whose name contains one of `names`; all operations if `names` is empty.
fn select_operations(names: &[&str]) -> Result<Vec<&'static Operation>> {
    let wanted = |o: &&Operation| names.is_empty() || names.iter().any(|name| o.name.contains(name));
    let selected: Vec<&Operation> = OPERATIONS.iter().filter(wanted).collect();
    ensure!(!selected.is_empty(), "no operation name contains any of {names:?}");
    Ok(selected)
}

/// Builds the driver, measures in a child process, and prints the table.
fn report(arguments: &[&str]) -> Result<()> {
    let names: Vec<&str> = arguments.iter().copied().filter(|name| *name != "instructions").collect();
    let with_instructions = names.len() < arguments.len();
    let operations = select_operations(&names)?;
    let driver = Driver::build()?;
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let cpu =
        cpu.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": ")).map(|(_, name)| name);
    println!("stub driver: host time only, no GPU time ({})\n", cpu.unwrap_or("unknown host"));
    let mut columns = COLUMNS.to_vec();
    let measured = driver.run(&[], &[&[TABLE], names.as_slice()].concat())?;
    let mut lines: Vec<String> = measured.lines().map(str::to_string).collect();
    if with_instructions {
        columns.extend(["instructions", "in the backend"]);
        for (line, counted) in lines.iter_mut().zip(instructions(&driver, &operations, &names)?) {
            line.push_str(&counted);
        }
    }
    println!("| {} |\n|{}", columns.join(" | "), "---|".repeat(columns.len()));
    lines.iter().for_each(|line| println!("{line}"));
    Ok(())
}

/// Returns two cells per operation. Callgrind writes a file whenever the counted function returns.
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
            .context("callgrind's output has no totals line")?;
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

/// Calls `each` for every operation with its index, its form (0 for `Tensor`, 1 for the backend) and its work.
fn for_each_work(
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

/// Measures the operations and prints the lines of the table.
fn table(operations: &[&Operation]) -> Result<()> {
    let mut times: Vec<[Times; 2]> = operations.iter().map(|_| Default::default()).collect();
    for _ in 0..ROUNDS {
        for_each_work(operations, |number, form, work| times[number][form].measure(work))?;
    }
    let mut counts: Vec<[Option<Counts>; 2]> = operations.iter().map(|_| [None, None]).collect();
    let calls = Calls::of_this_process()?;
    for_each_work(operations, |number, form, work| {
        counts[number][form] = Some(Counts::of(work, &calls)?);
        Ok(())
    })?;
    for ((operation, [tensor, storage]), counts) in operations.iter().zip(&mut times).zip(&counts) {
        let [Some(of_tensor), of_storage] = counts else { continue };
        let (min, median) = tensor.min_and_median()?;
        let backend = match of_storage {
            Some(counts) => {
                let (min, median) = storage.min_and_median()?;
                [format!("{min:.0}"), format!("{median:.0}"), counts.allocations.to_string()]
            }
            None => ["-", "-", "-"].map(str::to_string),
        };
        let [backend_min, backend_median, backend_allocations] = backend;
        let Counts { allocations, driver_calls, set_device } = of_tensor;
        println!(
            "| {} | {min:.0} | {median:.0} | {backend_min} | {backend_median} | {allocations} | \
             {backend_allocations} | {driver_calls} | {set_device} |",
            operation.name
        );
    }
    Ok(())
}
