//! One process for each rank, which find each other by a file or TCP. The test program runs itself.
use super::{SELECTED, device, world_sizes};
use anyhow::{Context, Result, bail, ensure};
use candle_core::Tensor;
use candle_core::rocm::collective::{Communicator, ReduceOp, Rendezvous};
use serial_test::serial;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::LazyLock;
use std::time::Duration;

/// Variable with the rank, the number of ranks, how a rank ends early (`exit:RANK`, `abort:RANK` or `none`), and the place
/// of the unique id.
const CHILD: &str = "COLLECTIVE_TEST_RANK";
/// Exit code of a rank that exits early.
const EXITED_EARLY: i32 = 7;
/// No test waits for so long.
const LONG: Duration = Duration::from_secs(300);

fn rendezvous(text: &str) -> Rendezvous {
    text.parse::<SocketAddr>().map_or_else(|_| Rendezvous::File(text.into()), Rendezvous::Tcp)
}

/// The program of a child process; returns at once in the parent.
#[test]
#[serial]
fn rank_of_a_process() -> Result<()> {
    let Ok(text) = std::env::var(CHILD) else { return Ok(()) };
    let parts: Vec<&str> = text.splitn(4, ' ').collect();
    let [rank, world_size, ends, place] = parts[..] else { bail!("{text}") };
    let (rank, world_size): (usize, usize) = (rank.parse()?, world_size.parse()?);
    let communicator = Communicator::connect(&device(rank)?, rank, world_size, &rendezvous(place), LONG)?;
    communicator.set_deadline(LONG);
    let x = Tensor::full(rank as f32 + 1., 70_001, communicator.device())?;
    for step in 0..4 {
        match ends.split_once(':') {
            Some((how, ending)) if step == 2 && ending == rank.to_string() => match how {
                "exit" => std::process::exit(EXITED_EARLY),
                // Ends by a signal, as a process that the system kills.
                _ => std::process::abort(),
            },
            _ => {}
        }
        let sum = communicator.all_reduce(&x, ReduceOp::Sum)?;
        let expected = (world_size * (world_size + 1) / 2) as f32;
        ensure!(sum.to_vec1::<f32>()?.iter().all(|value| *value == expected), "wrong sum in step {step}");
    }
    println!("rank {rank} has finished");
    Ok(())
}

fn start(rank: usize, world_size: usize, ends: &str, place: &str) -> Result<Child> {
    LazyLock::force(&SELECTED);
    Ok(Command::new(std::env::current_exe()?)
        .args(["--exact", "processes::rank_of_a_process", "--nocapture"])
        .env(CHILD, format!("{rank} {world_size} {ends} {place}"))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?)
}

/// Runs the ranks and returns their outputs.
fn run(world_size: usize, ends: &str, place: &str) -> Result<Vec<Output>> {
    let children =
        (0..world_size).map(|rank| start(rank, world_size, ends, place)).collect::<Result<Vec<_>>>()?;
    children.into_iter().map(|child| child.wait_with_output().context("a rank")).collect()
}

fn free_address() -> Result<String> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string())
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned()
}

#[test]
#[serial]
fn processes_compute_together() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("id");
    for (world_size, place) in
        [(2, free_address()?), (world_sizes().max().unwrap(), file.display().to_string())]
    {
        for (rank, output) in run(world_size, "none", &place)?.iter().enumerate() {
            assert!(text(output).contains(&format!("rank {rank} has finished")), "{}", text(output));
        }
    }
    assert!(!file.exists(), "rank 0 removes the file");
    Ok(())
}

#[test]
#[serial]
fn a_process_that_ends_is_named_by_the_others() -> Result<()> {
    let world_size = (*SELECTED).min(3);
    for (how, ending, code) in [("exit", 0, Some(EXITED_EARLY)), ("abort", world_size - 1, None)] {
        let outputs = run(world_size, &format!("{how}:{ending}"), &free_address()?)?;
        for (rank, output) in outputs.iter().enumerate() {
            if rank == ending {
                assert_eq!(output.status.code(), code, "{}", text(output));
                continue;
            }
            let text = text(output);
            let named = text.contains(&format!("rank {ending} (process")) && text.contains("has ended");
            assert!(!output.status.success() && named, "{text}");
        }
    }
    Ok(())
}

fn connect(rank: usize, world_size: usize, place: &str, deadline: Duration) -> Result<String> {
    let result = Communicator::connect(&device(0)?, rank, world_size, &rendezvous(place), deadline);
    Ok(result.err().context("refused")?.to_string())
}

/// Asserts that the error has these parts.
#[track_caller]
fn assert_parts(error: &str, parts: &[&str]) {
    for part in parts {
        assert!(error.contains(part), "{part:?} is not in {error:?}");
    }
}

#[test]
#[serial]
fn damaged_and_stale_files_are_refused() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = |name: &str| folder.path().join(name).display().to_string();
    let none = Duration::ZERO;
    assert_parts(&connect(1, 2, &path("absent"), none)?, &["rank 0's file", "cannot be read"]);
    assert_parts(&connect(5, 2, &path("absent"), none)?, &["only 2 ranks"]);
    std::fs::write(path("stale"), "text")?;
    assert_parts(&connect(0, 2, &path("stale"), none)?, &["exists already", "remove it"]);
    assert_parts(&connect(1, 2, &path("stale"), none)?, &["4 bytes", "not the form of a unique id"]);
    let mut bytes = [&b"candle-rocm-id 1"[..], &3u64.to_le_bytes(), &[1; 128]].concat();
    std::fs::write(path("other"), &bytes)?;
    assert_parts(
        &connect(1, 2, &path("other"), none)?,
        &["rank 0 was started with 3 ranks", "rank 1 with 2"],
    );
    bytes.pop();
    std::fs::write(path("cut"), &bytes)?;
    assert_parts(&connect(1, 3, &path("cut"), none)?, &["151 bytes", "start all ranks again"]);
    std::os::unix::fs::symlink(path("other"), path("link"))?;
    assert_parts(&connect(1, 3, &path("link"), none)?, &["cannot be read"]);
    // SAFETY: takes no arguments.
    if unsafe { libc::geteuid() } == 0 {
        std::os::unix::fs::chown(Path::new(&path("other")), Some(12345), None)?;
        assert_parts(&connect(1, 3, &path("other"), none)?, &["belongs to user 12345"]);
    }
    Ok(())
}

#[test]
#[serial]
fn addresses_and_ranks_that_do_not_fit_are_reported() -> Result<()> {
    let taken = TcpListener::bind("127.0.0.1:0")?;
    let address = taken.local_addr()?.to_string();
    assert_parts(&connect(0, 2, &address, Duration::ZERO)?, &["cannot listen on", &address]);
    let free = free_address()?;
    assert_parts(&connect(1, 2, &free, Duration::ZERO)?, &["rank 0 at", &free]);
    assert_parts(&connect(0, 3, &free, Duration::ZERO)?, &["rank 1, 2 did not connect"]);

    // Another number of ranks, and the same rank twice.
    for (rank, world_size, expected) in [(1, 4, "rank 1 with 4"), (0, 3, "rank 0 was started twice")] {
        let address = free_address()?;
        let errors = std::thread::scope(|scope| {
            let server = scope.spawn(|| connect(0, 3, &address, LONG));
            // Rank 0 of the second case takes part as a client.
            let client = scope.spawn(|| hello(&address, world_size, rank));
            [server.join().expect("no panic"), client.join().expect("no panic")]
        });
        for error in errors {
            assert_parts(&error?, &[expected]);
        }
    }
    Ok(())
}

/// Connects like a rank, and returns the answer.
fn hello(address: &str, world_size: u64, rank: u64) -> Result<String> {
    use std::io::{Read, Write};
    let mut stream = loop {
        match std::net::TcpStream::connect(address) {
            Ok(stream) => break stream,
            Err(_) => std::thread::yield_now(),
        }
    };
    stream.write_all(&[&b"candle-rocm-id 1"[..], &world_size.to_le_bytes(), &rank.to_le_bytes()].concat())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}
