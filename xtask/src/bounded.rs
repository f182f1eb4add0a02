//! Runs a program for a bounded time: at its end, every process that it has started ends too.
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// Time that a stopped process may take to go, and its pipes to close.
const GRACE: Duration = Duration::from_secs(60);
/// Interval at which a running process is polled.
const LOOK: Duration = Duration::from_millis(5);

/// Output of a program, and its exit status.
pub struct Finished {
    pub stdout: String,
    pub stderr: String,
    /// `None` if it was stopped at its limit.
    pub status: Option<ExitStatus>,
}

/// Runs the program to its end, or stops it with all that it has started when it takes longer than `limit`.
///
/// # Errors
/// When the process cannot be started or waited for.
pub fn run(command: &mut Command, limit: Duration) -> Result<Finished> {
    let begun = Instant::now();
    run_until(command, || begun.elapsed() >= limit)
}

/// Like [`run`], but stops the program as soon as `is_over`.
fn run_until(command: &mut Command, is_over: impl Fn() -> bool) -> Result<Finished> {
    let program = command.get_program().to_string_lossy().into_owned();
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    // SAFETY: between fork and exec only prctl is called, which is a system call and takes no lock.
    unsafe { command.pre_exec(die_with_parent) };
    let mut child = command.spawn().with_context(|| format!("cannot start {program}"))?;
    let (stdout, stderr) = (read(child.stdout.take()), read(child.stderr.take()));
    let status = wait(&mut child, is_over).with_context(|| format!("cannot wait for {program}"))?;
    // What it left running holds the pipes open, and the GPU.
    stop_group(&child);
    if status.is_none() {
        let stopped = Instant::now();
        wait(&mut child, || stopped.elapsed() >= GRACE)
            .with_context(|| format!("cannot wait for {program}"))?;
    }
    Ok(Finished { stdout: received(&stdout), stderr: received(&stderr), status })
}

/// A process group is not reached by Ctrl-C in the terminal, so its first process ends with us.
fn die_with_parent() -> io::Result<()> {
    #[cfg(target_os = "linux")]
    // SAFETY: it takes two numbers.
    if unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

fn wait(child: &mut Child, is_over: impl Fn() -> bool) -> io::Result<Option<ExitStatus>> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if is_over() {
            return Ok(None);
        }
        thread::sleep(LOOK);
    }
}

fn stop_group(child: &Child) {
    if let Ok(group) = libc::pid_t::try_from(child.id()) {
        // SAFETY: it takes two numbers; the group is the one that this process was made the first of. Nobody is left
        // in it where all went well, and that is an error which means nothing.
        unsafe { libc::kill(-group, libc::SIGKILL) };
    }
}

/// Reads a pipe to its end in a thread of its own, so that neither pipe can fill up.
fn read<R: Read + Send + 'static>(pipe: Option<R>) -> mpsc::Receiver<Vec<u8>> {
    let (send, receive) = mpsc::channel();
    thread::spawn(move || {
        let mut part = [0; 1 << 14];
        let Some(mut pipe) = pipe else { return };
        // Nobody listens any more when the process was given up.
        while let Ok(count) = pipe.read(&mut part) {
            if count == 0 || send.send(part[..count].to_vec()).is_err() {
                return;
            }
        }
    });
    receive
}

/// All that was read: to the end of the pipe, which a process out of our reach may hold open.
fn received(pipe: &mpsc::Receiver<Vec<u8>>) -> String {
    let mut bytes = Vec::new();
    while let Ok(part) = pipe.recv_timeout(GRACE) {
        bytes.extend(part);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_processes_of_a_program_end_at_its_limit() {
        // Its limit comes when it has written all: it may take as long as it likes.
        let folder = tempfile::tempdir().unwrap();
        let written = folder.path().join("written");
        let script = "echo started; tail -f /dev/null & echo $!; touch \"$0\"; wait";
        let mut command = Command::new("sh");
        let finished = run_until(command.args(["-c", script]).arg(&written), || written.exists()).unwrap();
        assert!(finished.status.is_none());
        let (started, child) = finished.stdout.trim().split_once('\n').unwrap();
        assert_eq!(started, "started");
        // Gone, or dead and not yet waited for; the signal is on its way.
        let state = || std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
        let dead = || state().is_empty() || state().contains(") Z ");
        let begun = Instant::now();
        while !dead() && begun.elapsed() < GRACE {
            thread::sleep(LOOK);
        }
        assert!(dead(), "{}", state());
    }

    #[test]
    fn what_a_program_leaves_running_ends_with_it() {
        let begun = Instant::now();
        let finished = run(Command::new("sh").args(["-c", "tail -f /dev/null & echo done"]), GRACE).unwrap();
        assert_eq!((finished.stdout.as_str(), finished.status.unwrap().success()), ("done\n", true));
        assert!(begun.elapsed() < GRACE);
    }
}
